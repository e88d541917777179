//! The command line: Kubernetes' names and defaults wherever it has them.

use std::{ffi::OsString, time::Duration};

use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use portreeve_client::duration;
use portreeve_manager::selection::{Selection, UnknownNames};
use portreeve_reconcile::Descriptor;

use crate::{
    cron,
    logging::Format,
    manifests::{Account, Action},
};

/// Hosts controllers for Kubernetes: one binary with leader election, health, metrics and shared informers.
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
    #[command(flatten)]
    pub(crate) choice: Choice,
    #[command(flatten)]
    pub(crate) manager: Manager,
    #[command(flatten)]
    pub(crate) election: portreeve_leader::Args,
    #[command(flatten)]
    pub(crate) client: portreeve_client::Args,
    #[command(flatten)]
    pub(crate) serving: portreeve_serving::Args,
    #[command(flatten)]
    pub(crate) logging: Logging,
}

/// What the binary does instead of running.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    /// Print the CustomResourceDefinitions of the controllers, for `kubectl apply --server-side -f -`
    Crds {
        #[command(flatten)]
        controllers: Only,
    },
    /// Print the roles of the controllers and of their election, and their bindings to a ServiceAccount
    Rbac {
        #[command(flatten)]
        controllers: Only,
        #[command(flatten)]
        account: Account,
        #[command(flatten)]
        election: portreeve_leader::Args,
        /// Add what --install-crds needs
        #[arg(long)]
        install_crds: bool,
    },
    /// Print an admission policy by which the apiserver refuses what replicas write that do not lead
    Fence {
        #[command(flatten)]
        controllers: Only,
        #[command(flatten)]
        account: Account,
        #[command(flatten)]
        election: portreeve_leader::Args,
        /// What becomes of such a write. Switch a fence off by Audit, not by deleting it: see docs/deploying.md
        #[arg(long, value_enum, default_value = "Deny")]
        action: Action,
    },
    /// Try a schedule: when it runs, and what it says
    #[command(subcommand)]
    Cron(cron::Command),
}

/// The controllers whose manifests are printed.
#[derive(Args, Clone, Debug)]
pub(crate) struct Only {
    /// A list of controllers, as the daemon takes it
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
pub(crate) struct Choice {
    /// A list of controllers to enable. '*' enables all on-by-default controllers, 'foo' enables the controller named 'foo', '-foo'
    /// disables it. The first item that names a controller decides.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "*",
        allow_hyphen_values = true
    )]
    pub(crate) controllers: Vec<String>,
    /// Print the known controllers and end
    #[arg(long)]
    pub(crate) list_controllers: bool,
    /// How --list-controllers prints
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        requires = "list_controllers",
        default_value = "table"
    )]
    pub(crate) output: ListFormat,
}

/// How `--list-controllers` prints.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ListFormat {
    /// For people
    Table,
    /// For programs
    Json,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Manager")]
pub(crate) struct Manager {
    /// The resync period of informers is random between this and twice this. 0 turns resyncs off.
    #[arg(long, value_name = "DURATION", default_value = "12h", value_parser = duration)]
    pub(crate) min_resync_period: Duration,
    /// The pause between starting two controllers, random between this and twice this.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    pub(crate) controller_start_interval: Duration,
    /// How long running reconciles may take to end after SIGTERM. 0 waits for as long as they need.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub(crate) controller_shutdown_timeout: Duration,
    /// Install the CustomResourceDefinitions of the enabled controllers at start, by server-side apply. One that has other versions
    /// in the cluster is left alone.
    #[arg(long)]
    pub(crate) install_crds: bool,
    /// Log what would be done; write no object, event, definition or Lease. There is no leader election then.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Logs")]
pub(crate) struct Logging {
    /// The log format
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) logging_format: Format,
    /// The log level verbosity: 4 shows debug, 6 traces
    #[arg(short, long, value_name = "LEVEL", default_value_t = 0)]
    pub(crate) v: u8,
}

/// A command line that was read: the options, and the flags that controllers brought along.
#[derive(Clone, Debug)]
pub struct Config {
    /// What every controller shares.
    pub options: Options,
    /// The controllers' own flags.
    pub flags: ArgMatches,
}

impl Config {
    /// Reads a command line; its first item is the program's name.
    ///
    /// # Errors
    ///
    /// clap's error, which also stands for `--help` and `--version`.
    pub fn parse<I, T>(arguments: I, known: &[Descriptor]) -> Result<Self, clap::Error>
    where
        I: IntoIterator<Item = T>,
        T: Into<OsString> + Clone,
    {
        let mut command = Options::command();
        for descriptor in known {
            let flags = (descriptor.flags)();
            command = command.args(flags.into_iter().map(|flag| flag.help_heading(descriptor.name)));
        }
        let flags = command.try_get_matches_from(arguments)?;
        let options = Options::from_arg_matches(&flags)?;
        Ok(Self { options, flags })
    }

    /// The controllers that `--controllers` enables, in registry order.
    ///
    /// # Errors
    ///
    /// Fails on names that nobody has.
    pub fn enabled(&self, known: &[Descriptor]) -> Result<Vec<Descriptor>, UnknownNames> {
        enabled(&self.options.choice.controllers, known)
    }
}

pub(crate) fn enabled(items: &[String], known: &[Descriptor]) -> Result<Vec<Descriptor>, UnknownNames> {
    let selection = Selection::parse(items, known)?;
    let on = known.iter().filter(|descriptor| selection.enables(descriptor));
    Ok(on.copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CONTROLLERS;

    fn parse(arguments: &[&str]) -> Result<Config, String> {
        let arguments = std::iter::once(&"portreeve").chain(arguments);
        Config::parse(arguments, CONTROLLERS).map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Options::command().debug_assert();
    }

    #[test]
    fn a_list_may_begin_with_a_minus() {
        let config = parse(&["--controllers=-foo,-crontab,*"]).unwrap();
        assert!(config.enabled(CONTROLLERS).unwrap().is_empty());
    }

    #[test]
    fn flags_of_controllers_are_checked_with_the_rest() {
        assert!(parse(&["--concurrent-foo-syncs=7"]).is_ok());
        let error = parse(&["--concurrent-foo-syncs=0"]).unwrap_err();
        assert!(error.contains("--concurrent-foo-syncs"), "{error}");
        let error = parse(&["--concurrent-bar-syncs=1"]).unwrap_err();
        assert!(
            error.contains("--concurrent-foo-syncs"),
            "the nearest flag is suggested: {error}"
        );
    }
}
