//! The binary: what a command line does, and the exit code.

use std::{io::Write, process::ExitCode};

use portreeve_client::error_chain;
use portreeve_reconcile::Descriptor;
use tokio::runtime;
use tracing_appender::non_blocking::WorkerGuard;

use crate::{
    config,
    error::Error,
    leader_election, logging, manifests, metrics,
    options::{self, Command, Config, ListFormat, UsageError},
    run, testenv_command,
};

/// Runs the whole binary: parses the command line, executes it, and returns the exit code. `known`
/// contains all available controllers.
pub fn main(known: &'static [Descriptor]) -> ExitCode {
    let mut log = None;
    let (error, code) = match Config::parse(std::env::args_os(), known) {
        Ok(config) => match execute(config, known, &mut log) {
            Ok(()) => (None, 0),
            Err(error) => (Some(error_chain(&error)), error.exit_code()),
        },
        Err(UsageError::CommandLine(usage)) => return print_usage(usage),
        Err(error) => (Some(error_chain(&error)), 1),
    };
    logging::finish(log, move || {
        if let Some(error) = error {
            writeln!(std::io::stderr(), "error: {error}").ok();
        }
    });
    ExitCode::from(code)
}

/// Prints the help or the version to stdout, or a usage error to stderr.
fn print_usage(usage: clap::Error) -> ExitCode {
    let code = u8::from(usage.use_stderr());
    let print = move || drop(usage.print());
    if code == 0 {
        // A reader of the help may take its time.
        print();
    } else {
        logging::finish(None, print);
    }
    ExitCode::from(code)
}

/// Executes the command. The daemon puts the guard of its log into `log`.
fn execute(config: Config, known: &'static [Descriptor], log: &mut Option<WorkerGuard>) -> Result<(), Error> {
    let enabled = |items| options::enabled(items, known).map_err(Error::Controllers);
    match &config.options.command {
        Some(Command::Crds { controllers }) => print(&manifests::crds(&enabled(&controllers.controllers)?)),
        Some(Command::Policies { controllers }) => {
            let reason = "no policy printed: no enabled controller has admission policies";
            print_or_explain(&manifests::policies(&enabled(&controllers.controllers)?), reason)
        }
        Some(Command::Rbac {
            controllers,
            account,
            election,
            secret,
            install_crds,
        }) => {
            let enabled = enabled(&controllers.controllers)?;
            let leases = leader_election::leases(election, known, &run::with_issuer(enabled.clone(), secret))?;
            let roles = manifests::rbac(&enabled, account, election, &leases, secret, *install_crds);
            print(&roles.map_err(Error::Manifest)?)
        }
        Some(Command::Fence {
            controllers,
            account,
            election,
            action,
        }) => {
            let enabled = enabled(&controllers.controllers)?;
            let leases = leader_election::leases(election, known, &enabled)?;
            let fence = manifests::fence(account, election, &leases, *action).map_err(Error::Manifest)?;
            let reason = "no fence printed: leader election is disabled or no enabled controller writes anything";
            print_or_explain(&fence, reason)
        }
        Some(Command::FenceAnchor { account }) => print(&manifests::fence_anchor(account).map_err(Error::Manifest)?),
        Some(Command::FlowSchema { account, election }) => {
            let flow_schema = manifests::flow_schema(account, election).map_err(Error::Manifest)?;
            print_or_explain(&flow_schema, "no FlowSchema printed: leader election is disabled")
        }
        Some(Command::Validate(_)) => Err(Error::Moved("validate")),
        Some(Command::Conversion(_)) => Err(Error::Moved("conversion")),
        Some(Command::Migrate(_)) => Err(Error::Moved("migrate")),
        Some(Command::Cron(_)) => Err(Error::Moved("cron")),
        Some(Command::Webhooks { controllers, account }) => {
            let webhooks = portreeve_webhook::declared(&enabled(&controllers.controllers)?).map_err(Error::Webhooks)?;
            let configurations = manifests::webhooks(&webhooks, account).map_err(Error::Manifest)?;
            print_or_explain(
                &configurations,
                "no configuration printed: no enabled controller has webhooks",
            )
        }
        Some(Command::Testenv(args)) => testenv_command::execute(args, &config.flags, known, log),
        Some(Command::ConfigReference) => print(&config::reference(&options::command(known))),
        Some(Command::MetricsReference) => print(&metrics_reference(known)?),
        None if config.options.selected.list_controllers => print(&list(config.options.selected.output, known)),
        None => run::until_ended(config, known.to_vec(), None, log),
    }
}

fn print(text: &str) -> Result<(), Error> {
    std::io::stdout().write_all(text.as_bytes()).map_err(Error::Print)
}

/// Prints a text to stdout, or if it is empty, why to stderr.
fn print_or_explain(text: &str, reason: &str) -> Result<(), Error> {
    if text.is_empty() {
        writeln!(std::io::stderr(), "{reason}").map_err(Error::Print)?;
    }
    print(text)
}

/// Returns the output of `--list-controllers`.
fn list(format: ListFormat, known: &[Descriptor]) -> String {
    match format {
        ListFormat::Table => manifests::table(known),
        ListFormat::Json => format!("{:#}\n", manifests::list(known)),
    }
}

/// Returns docs/metrics.md, in a runtime that ends before any task of a controller runs.
fn metrics_reference(known: &[Descriptor]) -> Result<String, Error> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let system = |source| Error::System {
        what: "the runtime",
        source,
    };
    runtime.map_err(system)?.block_on(metrics::reference(known))
}
