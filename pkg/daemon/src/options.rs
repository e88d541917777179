//! The command line. Flags that Kubernetes' components also have keep their names and defaults.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use portreeve_client::{InvalidDuration, parse_duration};
use portreeve_informer::InformerConfig;
use portreeve_leader::Heartbeat;
use portreeve_manager::selection::{Selection, UnknownNames};
use portreeve_reconcile::Descriptor;

use crate::{
    config::{self, FileLocation},
    feature_gates::FeatureGate,
    logging::Logging,
    manifests::{Account, Action},
    testenv_options,
};

/// A controller manager for Kubernetes: one binary that runs controllers with leader election,
/// health checks, metrics and shared informers.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "portreeve",
    version = concat!("v", env!("CARGO_PKG_VERSION")),
    max_term_width = 120,
    args_conflicts_with_subcommands = true,
    subcommand_help_heading = "Commands",
    after_help = "Exit codes: 0 clean, 1 usage, configuration or a crash, 2 lost lease, 3 drain timeout."
)]
pub struct Options {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// A YAML file with settings; docs/configuration.md lists the keys. A flag on the command line
    /// takes precedence over the file.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) selected: ControllerSelection,
    #[command(flatten)]
    pub(crate) manager: ManagerArgs,
    #[command(flatten)]
    pub(crate) election: portreeve_leader::Args,
    #[command(flatten)]
    pub(crate) client: portreeve_client::Args,
    #[command(flatten)]
    pub(crate) serving: portreeve_serving::Args,
    #[command(flatten)]
    pub(crate) auth: portreeve_auth::Args,
    #[command(flatten)]
    pub(crate) webhook: portreeve_webhook::Args,
    #[command(flatten)]
    pub(crate) logging: Logging,
}

/// A command that runs instead of the controllers.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    /// Print the CustomResourceDefinitions of the controllers, for
    /// `kubectl apply --server-side -f -`
    Crds {
        #[command(flatten)]
        controllers: ControllerFilter,
    },
    /// Print the admission policies of the controllers, which enforce limits and set defaults per
    /// namespace. Apply them after the CustomResourceDefinitions; see docs/policies.md
    Policies {
        #[command(flatten)]
        controllers: ControllerFilter,
    },
    /// Print the RBAC roles for the controllers and for leader election, and their bindings to a
    /// ServiceAccount
    Rbac {
        #[command(flatten)]
        controllers: ControllerFilter,
        #[command(flatten)]
        account: Account,
        #[command(flatten)]
        election: portreeve_leader::Args,
        #[command(flatten)]
        secret: portreeve_serving::SecretArgs,
        /// Add the rules that --install-crds needs
        #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
        install_crds: bool,
    },
    /// Print an admission policy that makes the apiserver reject writes of replicas that do not
    /// lead
    Fence {
        #[command(flatten)]
        controllers: ControllerFilter,
        #[command(flatten)]
        account: Account,
        #[command(flatten)]
        election: portreeve_leader::Args,
        /// What the apiserver does with such a write. To disable a fence, set Audit and do not
        /// delete the policy; see docs/fence.md
        #[arg(long, value_enum, default_value = "Deny")]
        action: Action,
    },
    /// Print an admission policy that lets the fence be deleted and created again. Apply it before
    /// the fence, and do not delete it; see docs/fence.md
    FenceAnchor {
        #[command(flatten)]
        account: Account,
    },
    /// Print a FlowSchema that gives the requests of leader election seats of their own in the
    /// apiserver
    #[command(name = "flowschema")]
    FlowSchema {
        #[command(flatten)]
        account: Account,
        #[command(flatten)]
        election: portreeve_leader::Args,
    },
    /// Print the configurations of the controllers' admission webhooks, and the role for their
    /// parameters. --tls-ca-bundles or cert-manager sets their caBundle; see docs/webhooks.md
    Webhooks {
        #[command(flatten)]
        controllers: ControllerFilter,
        #[command(flatten)]
        account: Account,
    },
    /// Run the controllers that a control plane for tests lacks, until standard input is closed or
    /// SIGTERM; see docs/testing.md
    Testenv(testenv_options::Args),
    /// Print the keys of the --config file, in the form of docs/configuration.md
    ConfigReference,
    /// Print the families of metrics, in the form of docs/metrics.md
    MetricsReference,
    #[command(hide = true)]
    Validate(Moved),
    #[command(hide = true)]
    Conversion(Moved),
    #[command(hide = true)]
    Migrate(Moved),
    #[command(hide = true)]
    Cron(Moved),
}

/// The arguments of a command that is now one of kubectl-portreeve.
#[derive(Args, Clone, Debug)]
pub(crate) struct Moved {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    rest: Vec<OsString>,
}

/// The controllers whose manifests are printed.
#[derive(Args, Clone, Debug)]
pub(crate) struct ControllerFilter {
    /// A list of controllers, in the syntax of the daemon's --controllers
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "*",
        allow_hyphen_values = true
    )]
    pub(crate) controllers: Vec<String>,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Controllers")]
pub(crate) struct ControllerSelection {
    /// A list of controllers to enable. '*' enables all on-by-default controllers, 'foo' enables
    /// the controller named 'foo', '-foo' disables it. The first item that names a controller
    /// decides.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "*",
        allow_hyphen_values = true
    )]
    pub(crate) controllers: Vec<String>,
    /// Print the known controllers and exit
    #[arg(long)]
    pub(crate) list_controllers: bool,
    /// The output format of --list-controllers
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        requires = "list_controllers",
        default_value = "table"
    )]
    pub(crate) output: ListFormat,
}

/// The output format of `--list-controllers`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ListFormat {
    /// A table for people
    Table,
    /// JSON for programs
    Json,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Manager")]
pub(crate) struct ManagerArgs {
    /// The resync period in reflectors will be random between this and twice this. 0 disables
    /// resyncs.
    #[arg(long, value_name = "DURATION", default_value = "12h", value_parser = parse_duration)]
    pub(crate) min_resync_period: Duration,
    /// Interval between starting controllers, random between this and twice this.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration)]
    pub(crate) controller_start_interval: Duration,
    /// Time to wait for running reconciles to finish after SIGTERM. 0 waits without a limit.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub(crate) controller_shutdown_timeout: Duration,
    /// How long a worker may process an item without progress before /livez fails. Each finished
    /// call to the apiserver is progress; a call takes at most 35 s. 0 disables the check.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    pub(crate) controller_stuck_timeout: Duration,
    /// How long a due item may wait in a queue that makes no progress before /livez fails. 0
    /// disables the check.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    pub(crate) queue_stuck_timeout: Duration,
    /// The QPS limit for retries of each controller that fail again. A retry that succeeds is not
    /// limited and releases two more; changes and scheduled times are never held back. 0 disables
    /// the limit.
    #[arg(long, value_name = "N", default_value_t = 10.0, value_parser = portreeve_client::parse_qps)]
    pub(crate) retry_qps: f32,
    /// The number of retries of each controller that may exceed --retry-qps in a burst. Ignored
    /// while --retry-qps is 0.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) retry_burst: u32,
    /// How long a watch may be silent before the informer restarts it. /readyz fails after 4/3 of
    /// this time without contact. At least 1s; the apiserver sends a bookmark about every minute,
    /// except for a resource that has not changed since the apiserver started.
    #[arg(long, value_name = "DURATION", default_value = "90s", value_parser = parse_idle_timeout)]
    pub(crate) watch_idle_timeout: Duration,
    /// Install the CustomResourceDefinitions of the enabled controllers at startup, by
    /// server-side apply. A definition with other versions in the cluster is left unchanged.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub(crate) install_crds: bool,
    /// A list of features to turn on or off.
    #[arg(
        long,
        help = "A list of features to turn on or off: NAME=true or NAME=false. ComponentFlagz serves /flagz and ComponentStatusz serves /statusz; both are on by default",
        value_name = "GATES",
        value_delimiter = ','
    )]
    pub(crate) feature_gates: Vec<FeatureGate>,
    /// Log what the controllers would do, without writing any object, event,
    /// CustomResourceDefinition or Lease. Disables leader election.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub(crate) dry_run: bool,
}

impl ManagerArgs {
    pub(crate) fn settings(&self, heartbeat: Heartbeat) -> portreeve_manager::Settings {
        let resync_period = self.min_resync_period;
        portreeve_manager::Settings {
            program: "portreeve",
            instance: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            install_crds: self.install_crds,
            dry_run: self.dry_run,
            start_interval: self.controller_start_interval,
            shutdown_timeout: self.controller_shutdown_timeout,
            controller_stuck_timeout: self.controller_stuck_timeout,
            queue_stuck_timeout: self.queue_stuck_timeout,
            retry_qps: self.retry_qps,
            retry_burst: self.retry_burst,
            informer_config: InformerConfig {
                idle_timeout: self.watch_idle_timeout,
                resync_period: (!resync_period.is_zero()).then_some(resync_period),
                ..InformerConfig::default()
            },
            heartbeat,
        }
    }
}

/// The mistake in a value of `--watch-idle-timeout`.
#[derive(Debug, thiserror::Error)]
enum InvalidIdleTimeout {
    #[error(transparent)]
    NoDuration(InvalidDuration),
    #[error("a watch takes time to begin: give 1s or more")]
    TooShort,
}

/// Parses `--watch-idle-timeout`. The minimum is one second, because shorter timeouts would restart
/// watches constantly.
fn parse_idle_timeout(text: &str) -> Result<Duration, InvalidIdleTimeout> {
    let idle = parse_duration(text).map_err(InvalidIdleTimeout::NoDuration)?;
    if idle < Duration::from_secs(1) {
        return Err(InvalidIdleTimeout::TooShort);
    }
    Ok(idle)
}

/// An error in the command line or in the config file.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// An error of clap, or its output for `--help` and `--version`.
    #[error(transparent)]
    CommandLine(clap::Error),
    /// The config file has errors.
    #[error(transparent)]
    File(config::Error),
}

/// A parsed command line and config file: the options, and the flags of the controllers.
#[derive(Clone, Debug)]
pub struct Config {
    /// The options that all controllers share.
    pub options: Options,
    /// The controllers' own flags.
    pub flags: ArgMatches,
    /// The file that `--config` names.
    file: Option<config::File>,
    /// The response of `/configz`.
    pub(crate) effective: serde_json::Value,
    /// The content of `/flagz`.
    pub(crate) flag_values: BTreeMap<String, String>,
}

impl Config {
    /// Parses a command line, whose first item is the program's name, and the file that `--config`
    /// names.
    ///
    /// # Errors
    ///
    /// See [`UsageError`].
    pub fn parse<I, T>(arguments: I, known: &[Descriptor]) -> Result<Self, UsageError>
    where
        I: IntoIterator<Item = T>,
        T: Into<OsString> + Clone,
    {
        let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
        let mut command = command(known);
        let read = |command: &clap::Command| command.clone().try_get_matches_from(&arguments);
        let mut flags = read(&command).map_err(UsageError::CommandLine)?;
        let file = match flags.get_one::<PathBuf>("config") {
            Some(path) => Some(config::File::read(path, &command).map_err(UsageError::File)?),
            None => None,
        };
        if let Some(file) = &file {
            command = file.apply(command);
            flags = read(&command).map_err(UsageError::CommandLine)?;
        }
        // If the working directory no longer exists, relative paths are shown as given.
        let folder = std::env::current_dir().unwrap_or_default();
        Ok(Self {
            options: Options::from_arg_matches(&flags).map_err(UsageError::CommandLine)?,
            effective: config::render_effective(&command, &flags, &folder),
            flag_values: config::flag_values(&command, &flags, &folder),
            flags,
            file,
        })
    }

    /// Returns the path of the file that `--config` names.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_ref().map(config::File::path)
    }

    /// Returns the locations in the config file of the settings for these flags, which are given by
    /// their field names. Flags that the file does not set have none.
    pub(crate) fn locations(&self, flags: &[&str]) -> Vec<FileLocation> {
        let file = self.file.as_ref();
        file.map(|file| file.locations(flags, &self.flags)).unwrap_or_default()
    }

    /// Returns the controllers that `--controllers` enables, in registry order.
    ///
    /// # Errors
    ///
    /// Returns an error if a name matches no controller.
    pub fn enabled(&self, known: &[Descriptor]) -> Result<Vec<Descriptor>, UnknownNames> {
        enabled(&self.options.selected.controllers, known)
    }
}

/// Returns the daemon's command line, including the flags of the controllers.
pub(crate) fn command(known: &[Descriptor]) -> clap::Command {
    let mut command = Options::command();
    for descriptor in known {
        let flags = (descriptor.flags)();
        command = command.args(flags.into_iter().map(|flag| flag.help_heading(descriptor.name)));
    }
    testenv_options::with_flags(command, known)
}

pub(crate) fn enabled(items: &[String], known: &[Descriptor]) -> Result<Vec<Descriptor>, UnknownNames> {
    let selection = Selection::parse(items, known)?;
    let enabled = known.iter().filter(|descriptor| selection.enables(descriptor));
    Ok(enabled.copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_well_formed() {
        Options::command().debug_assert();
    }
}
