//! The daemon as a library. Use [`main`] in a binary with your own controllers, and [`run`] in
//! tests or to embed the daemon.

mod client;
mod config;
mod cron;
mod debug;
mod error;
mod feature_gates;
mod leader_election;
mod logging;
mod manifests;
mod metrics;
#[cfg(feature = "migrate")]
mod migration;
mod open_files;
mod options;
mod profile;
mod registry;
mod serving;
mod serving_certificate;
#[cfg(feature = "validate")]
mod validate;
mod webhooks;

use std::{io::Write, pin::Pin, process::ExitCode, sync::Arc, time::Duration};

use jiff::Timestamp;
use portreeve_client::{Connection, Outage, error_chain};
use portreeve_leader::Heartbeat;
use portreeve_manager::Manager;
use portreeve_metrics::Registry;
use portreeve_reconcile::{Clock, Descriptor, Shutdown, SystemClock};
use portreeve_serving::SecretArgs;
use tokio::{
    runtime,
    signal::unix::{Signal, SignalKind, signal},
};
use tracing_appender::non_blocking::WorkerGuard;

#[cfg(feature = "migrate")]
pub use crate::migration::Error as MigrationError;
use crate::options::{Command, ListFormat};
#[cfg(feature = "validate")]
pub use crate::validate::Error as ValidateError;
pub use crate::{
    config::{Error as ConfigError, FileLocation, Problem},
    error::Error,
    manifests::Error as ManifestError,
    options::{Config, Options, UsageError},
    registry::CONTROLLERS,
};

/// The first part of the user agent.
const AGENT: &str = concat!("portreeve/", env!("CARGO_PKG_VERSION"));

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
            let leases = leader_election::leases(election, known, &with_issuer(enabled.clone(), secret))?;
            let roles = manifests::rbac(&enabled, account, election, &leases, (secret, *install_crds));
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
        #[cfg(feature = "validate")]
        Some(Command::Validate { file }) => validate(file, known),
        #[cfg(feature = "migrate")]
        Some(Command::Conversion(command)) => migration::conversion::run(command).map_err(Error::Migration),
        #[cfg(feature = "migrate")]
        Some(Command::Migrate(args)) => migration::migrate::run(args).map_err(Error::Migration),
        Some(Command::Webhooks { controllers, account }) => {
            let webhooks = portreeve_webhook::declared(&enabled(&controllers.controllers)?).map_err(Error::Webhooks)?;
            let configurations = manifests::webhooks(&webhooks, account).map_err(Error::Manifest)?;
            print_or_explain(
                &configurations,
                "no configuration printed: no enabled controller has webhooks",
            )
        }
        Some(Command::ConfigReference) => print(&config::reference(&options::command(known))),
        Some(Command::MetricsReference) => print(&metrics_reference(known)?),
        Some(Command::Cron(command)) => print(&cron::run(command, Timestamp::now()).map_err(Error::Schedule)?),
        None if config.options.selected.list_controllers => print(&list(config.options.selected.output, known)),
        None => daemon(config, known, log),
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

/// Prints the errors of the objects in a file to stdout, and warnings and what was skipped to
/// stderr.
#[cfg(feature = "validate")]
fn validate(file: &std::path::Path, known: &[Descriptor]) -> Result<(), Error> {
    let report = validate::validate(file, known, Timestamp::now()).map_err(Error::Validate)?;
    write!(std::io::stdout(), "{}", report.errors).map_err(Error::Print)?;
    write!(std::io::stderr(), "{}", report.notes).map_err(Error::Print)?;
    report.result(file).map_err(Error::Validate)
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

/// Runs until a signal arrives. The second signal ends the process immediately.
///
/// This thread only waits, and other threads do the work. So a second signal, and leader election
/// that has given up, end the process even when a worker thread is blocked.
fn daemon(config: Config, known: &'static [Descriptor], log: &mut Option<WorkerGuard>) -> Result<(), Error> {
    *log = Some(logging::init(
        config.options.logging.logging_format,
        config.options.logging.v,
        known.iter().map(|controller| controller.log_target).collect(),
    ));
    logging::log_panics();
    open_files::raise_limit();
    let system = |what| move |source| Error::System { what, source };
    let signal_runtime = runtime::Builder::new_current_thread().enable_all().build();
    // Controllers mostly wait for the apiserver, with many requests at once. Passing tasks between
    // threads costs more than a second thread saves.
    let worker_runtime = runtime::Builder::new_multi_thread()
        .worker_threads(1)
        // Files are compared every few seconds. Threads that wait for the next time take memory.
        .thread_keep_alive(Duration::from_millis(100))
        .enable_all()
        .build()
        .map_err(system("the worker runtime"))?;
    let result = signal_runtime.map_err(system("the signal runtime"))?.block_on(async {
        let stop = Shutdown::new();
        let mut interrupt = signal(SignalKind::interrupt()).map_err(system("the SIGINT handler"))?;
        let mut terminate = signal(SignalKind::terminate()).map_err(system("the SIGTERM handler"))?;
        let stop_on_signal = stop.clone();
        let signals = async move {
            let name = next_signal(&mut interrupt, &mut terminate).await;
            tracing::info!(
                signal = name,
                "received signal, shutting down; a second signal ends the process immediately"
            );
            stop_on_signal.request();
            let name = next_signal(&mut interrupt, &mut terminate).await;
            tracing::warn!(signal = name, "received second signal, exiting");
        };
        let heartbeat = Heartbeat::default();
        let worker = heartbeat.clone();
        let clock = Arc::new(SystemClock);
        let work = worker_runtime.spawn(async move { run_with(config, known, clock, stop, worker).await });
        tokio::select! {
            result = work => result.map_err(Error::Panicked)?,
            () = heartbeat.wait_until_stuck() => Err(Error::Stuck),
            () = signals => {
                logging::finish(log.take(), || ());
                std::process::exit(1)
            }
        }
    });
    // A credential plugin or a DNS lookup that hangs on a blocking thread must not keep the process
    // alive.
    worker_runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

async fn next_signal(interrupt: &mut Signal, terminate: &mut Signal) -> &'static str {
    tokio::select! {
        _ = interrupt.recv() => "SIGINT",
        _ = terminate.recv() => "SIGTERM",
    }
}

/// Runs the enabled controllers among `known` until `stop` is requested.
///
/// Health and metrics are served before anything else starts and until everything else has stopped.
///
/// # Errors
///
/// Returns an [`Error`] when the settings are invalid or the daemon fails.
pub async fn run(config: Config, known: &[Descriptor], clock: Arc<dyn Clock>, stop: Shutdown) -> Result<(), Error> {
    run_with(config, known, clock, stop, Heartbeat::default()).await
}

/// Runs like [`run`], with a heartbeat that shows whether this runtime is stuck.
async fn run_with(
    config: Config,
    known: &[Descriptor],
    clock: Arc<dyn Clock>,
    stop: Shutdown,
    heartbeat: Heartbeat,
) -> Result<(), Error> {
    let locate = |error: Error| error.with_locations(&config);
    let enabled = enabled(&config, known).map_err(locate)?;
    let plan = leader_election::ElectionPlan::of(&config.options, known, &enabled).map_err(locate)?;
    let Options { manager, client, .. } = &config.options;
    let registry = Registry::new();
    let metrics = metrics::Metrics::register(&registry, &manager.feature_gates).map_err(Error::Metrics)?;
    let outage = Outage::default();
    let settings = client::settings(manager.dry_run, &metrics.client, &outage);
    // Boxed, because otherwise rustc cannot prove that the whole future is `Send`.
    let opening: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(Connection::open(client, settings));
    let connection = tokio::select! {
        connection = opening => connection.map_err(Error::Connection).map_err(locate)?,
        () = stop.requested() => return Ok(()),
    };
    let opening: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(serving::bind(&config.options, &metrics, &enabled));
    let listeners = tokio::select! {
        listeners = opening => listeners.map_err(locate)?,
        () = stop.requested() => return Ok(()),
    };
    log_start(&config, &enabled, &connection, plan.identity());
    let starting: Pin<Box<dyn Future<Output = _> + Send>> =
        Box::pin(plan.start(client, &metrics, outage, &clock, &heartbeat));
    let (groups, elections) = tokio::select! {
        started = starting => started?,
        () = stop.requested() => return Ok(()),
    };
    let settings = manager.settings(heartbeat);
    let credentials = connection.clone();
    let manager = Manager::new(connection, settings, groups, Arc::clone(&clock), &registry).map_err(Error::Manager)?;
    let close = Shutdown::new();
    let routes = debug::routes(manager.pages()).merge(debug::about_the_process(&config));
    let (serving, certificate) =
        listeners.serve(&config.options, (&manager, routes), (&metrics, clock), (&close, &stop))?;
    let following = serving::follow_secret(certificate, &credentials).map_err(Error::Connection)?;
    let result = tokio::select! {
        result = manager.run(&config.flags, stop) => result.map_err(Error::Manager),
        never = credentials.reload_credentials("controllers") => match never {},
        never = following => match never {},
    };
    if let Some(elections) = elections {
        elections.end().await;
    }
    close.request();
    let closing = serving::join(serving).await;
    tracing::info!("stopped");
    result.and(closing)
}

/// Returns the controllers that the flags enable.
fn enabled(config: &Config, known: &[Descriptor]) -> Result<Vec<Descriptor>, Error> {
    let enabled = config.enabled(known).map_err(Error::Controllers)?;
    Ok(with_issuer(enabled, &config.options.serving.secret))
}

/// Adds the controller that maintains the serving certificate, if the flags ask for it.
fn with_issuer(mut enabled: Vec<Descriptor>, secret: &SecretArgs) -> Vec<Descriptor> {
    if !secret.tls_issue_names.is_empty() {
        enabled.push(portreeve_servingcertificate::DESCRIPTOR);
    }
    enabled
}

fn log_start(config: &Config, enabled: &[Descriptor], connection: &Connection, identity: &str) {
    let names: Vec<_> = enabled.iter().map(|descriptor| descriptor.name).collect();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        controllers = names.join(","),
        config = config.file().map(|file| file.display().to_string()),
        apiserver = %connection.url(),
        identity,
        dry_run = config.options.manager.dry_run,
        "starting portreeve"
    );
    if enabled.is_empty() {
        tracing::warn!("no controller is enabled: without '*', --controllers enables only the named controllers");
    }
}
