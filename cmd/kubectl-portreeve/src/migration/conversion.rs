//! `kubectl portreeve conversion`: serves the newest version of a CustomResourceDefinition through
//! a conversion webhook, and withdraws it.
//!
//! Clients get the version only while its conversion works: one conversion that fails makes every
//! list of the resource fail, for everybody.

mod disable;
mod enable;
mod probe;
mod signals;
mod webhook;

use std::{path::PathBuf, time::Duration};

use clap::Subcommand;
use portreeve_client::parse_duration;

use self::webhook::{ServiceAddress, WebhookUrl};
use super::Error;

/// `kubectl portreeve conversion`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    /// Set the conversion webhook, wait for its CA, serve the newest version and check that it can
    /// be read and written. If it cannot, the version is withdrawn
    Enable(EnableArgs),
    /// Withdraw the newest version, then remove the conversion webhook. All objects must be stored
    /// in another version; see `kubectl portreeve migrate --to`
    Disable(DisableArgs),
}

/// The arguments of `kubectl portreeve conversion enable`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct EnableArgs {
    #[command(flatten)]
    address: WebhookAddress,
    /// The CA of the webhook in PEM. Without it, the command waits until --tls-ca-bundles of the
    /// daemon or cert-manager has set the CA
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// A manifest for the check, which stores nothing, in the newest version. If objects are stored
    /// in that version already, in the oldest one. It is needed if there is no object yet and the
    /// definition is not that of CronTabs
    #[arg(long, value_name = "FILE")]
    sample: Option<PathBuf>,
    /// How long to wait for the CA, and then for the version to be usable
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    cluster: super::ClusterArgs,
}

/// Where the apiserver reaches the webhook.
#[derive(clap::Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct WebhookAddress {
    /// The Service of the daemon's webhooks
    #[arg(long, value_name = "NAMESPACE/NAME[:PORT]")]
    service: Option<ServiceAddress>,
    /// The URL of a daemon outside of the cluster. Without a path, it gets that of the daemon
    #[arg(long, value_name = "URL")]
    url: Option<WebhookUrl>,
}

/// The arguments of `kubectl portreeve conversion disable`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct DisableArgs {
    #[command(flatten)]
    cluster: super::ClusterArgs,
}

/// Runs `kubectl portreeve conversion`.
pub(crate) fn run(command: &Command) -> Result<(), Error> {
    super::block_on(async {
        match command {
            Command::Enable(args) => enable::enable(args, &args.cluster.connect().await?).await,
            Command::Disable(args) => disable::disable(&args.cluster.connect().await?).await,
        }
    })
}
