//! The flags of the webhook listener. Flatten them into the daemon's arguments.
//!
//! Architecture Invariant: values only. Nothing is read or bound here.

use std::{path::PathBuf, time::Duration};

use portreeve_client::parse_duration;

/// The default of `--webhook-shutdown-delay`.
const SHUTDOWN_DELAY: Duration = Duration::from_secs(10);

/// The listener for the apiserver. It uses the address of `--bind-address` and the certificates of
/// the HTTPS listener.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Admission webhooks")]
#[group(skip)]
pub struct Args {
    /// The port on which to serve the admission webhooks of the enabled controllers, whether this
    /// replica leads or not. If 0, don't serve them. portreeve webhooks prints their
    /// configurations.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub webhook_port: u16,

    /// File with the CAs of the apiserver's client certificate. If set, only requests with such a
    /// certificate are served. docs/webhook-operation.md says how the apiserver presents one.
    #[arg(long, value_name = "FILE", requires = "webhook_port")]
    pub webhook_client_ca_file: Option<PathBuf>,

    /// How long webhooks are served after SIGTERM, while /readyz of the webhook port fails. The
    /// Service should stop sending requests to this replica within that time.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub webhook_shutdown_delay: Duration,
}

impl Args {
    /// Returns whether `--webhook-shutdown-delay` is set, but there is no listener.
    pub fn is_delay_ignored(&self) -> bool {
        self.webhook_port == 0 && self.webhook_shutdown_delay != SHUTDOWN_DELAY
    }
}
