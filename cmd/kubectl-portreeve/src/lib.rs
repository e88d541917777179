//! `kubectl portreeve`: commands for people, with their own rights. No replica of the daemon runs
//! them.

mod apiserver;
mod cron;
mod migration;
mod validate;

use std::{io::Write, path::PathBuf};

use clap::{Parser, Subcommand};
use jiff::Timestamp;
use portreeve_reconcile::Descriptor;

pub use crate::{migration::Error as MigrationError, validate::Error as ValidateError};

/// Check manifests, explain schedules, and move CronTabs from one version to another.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-portreeve",
    bin_name = "kubectl portreeve",
    version = concat!("v", env!("CARGO_PKG_VERSION")),
    max_term_width = 120,
    subcommand_required = true,
    arg_required_else_help = true,
    subcommand_help_heading = "Commands",
    after_help = "kubectl passes no flags that stand before the name of a plugin: give --context and \
                  --kubeconfig after the command. Exit codes: 0 success, 1 failure."
)]
pub struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check manifests offline, as the apiserver does with the CustomResourceDefinitions and the
    /// webhooks of the controllers
    Validate {
        /// A file with YAML documents or lists; - reads the standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Serve the newest version of a CustomResourceDefinition through a conversion webhook, or
    /// withdraw it; see docs/upgrading.md
    #[command(subcommand)]
    Conversion(migration::conversion::Command),
    /// Store all objects of a CustomResourceDefinition in its newest version, or in another one;
    /// see docs/upgrading.md
    Migrate(migration::migrate::Args),
    /// Print when a schedule runs, or what it means
    #[command(subcommand)]
    Cron(cron::Command),
}

/// The reason why a command fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A schedule cannot be parsed.
    #[error("invalid schedule")]
    Schedule(#[source] portreeve_cron::Error),
    /// A file cannot be validated, or an object in it is invalid.
    #[error(transparent)]
    Validate(ValidateError),
    /// A version cannot be served, or objects cannot be migrated to it.
    #[error(transparent)]
    Migration(MigrationError),
    /// Standard output cannot be written.
    #[error("failed to write to standard output")]
    Print(#[source] std::io::Error),
}

impl CommandLine {
    /// Runs the command, with the definitions and the webhooks of `controllers`.
    ///
    /// # Errors
    ///
    /// Returns an error if the command fails, or if `validate` finds an invalid object.
    pub fn run(&self, controllers: &[Descriptor]) -> Result<(), Error> {
        match &self.command {
            Command::Validate { file } => {
                let report = validate::validate(file, controllers, Timestamp::now()).map_err(Error::Validate)?;
                print(&report.errors)?;
                write!(std::io::stderr(), "{}", report.notes).map_err(Error::Print)?;
                report.result(file).map_err(Error::Validate)
            }
            Command::Conversion(command) => migration::conversion::run(command).map_err(Error::Migration),
            Command::Migrate(args) => migration::migrate::run(args).map_err(Error::Migration),
            Command::Cron(command) => print(&cron::run(command, Timestamp::now()).map_err(Error::Schedule)?),
        }
    }
}

fn print(text: &str) -> Result<(), Error> {
    std::io::stdout().write_all(text.as_bytes()).map_err(Error::Print)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_is_well_formed() {
        CommandLine::command().debug_assert();
    }
}
