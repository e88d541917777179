//! The daemon: starts everything in order, and stops it in the reverse order.

use std::{pin::Pin, sync::Arc, time::Duration};

use portreeve_client::{Connection, Outage};
use portreeve_leader::Heartbeat;
use portreeve_manager::Manager;
use portreeve_metrics::Registry;
use portreeve_reconcile::{Clock, Descriptor, Shutdown, SystemClock};
use portreeve_serving::SecretArgs;
use tokio::{
    runtime,
    signal::unix::{Signal, SignalKind, signal},
    time::sleep,
};
use tracing_appender::non_blocking::WorkerGuard;

use crate::{
    client, debug,
    error::Error,
    leader_election, logging, metrics, open_files,
    options::{Config, Options},
    serving, testenv,
};

/// How long `portreeve testenv` may take to stop. It has no Lease to release, so it then exits.
const TESTENV_STOP_LIMIT: Duration = Duration::from_millis(800);

/// Runs until a signal arrives, or with `testenv` also until standard input is closed. The second
/// signal ends the process immediately.
///
/// This thread only waits, and other threads do the work. So a second signal, and leader election
/// that has given up, end the process even when a worker thread is blocked.
pub(crate) fn until_ended(
    config: Config,
    known: Vec<Descriptor>,
    testenv: Option<testenv::Settings>,
    log: &mut Option<WorkerGuard>,
) -> Result<(), Error> {
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
    let is_testenv = testenv.is_some();
    let result = signal_runtime.map_err(system("the signal runtime"))?.block_on(async {
        let stop = Shutdown::new();
        let interrupt = signal(SignalKind::interrupt()).map_err(system("the SIGINT handler"))?;
        let terminate = signal(SignalKind::terminate()).map_err(system("the SIGTERM handler"))?;
        let signals = stop_on_signal(interrupt, terminate, stop.clone(), is_testenv);
        let heartbeat = Heartbeat::default();
        let worker = heartbeat.clone();
        let clock = Arc::new(SystemClock);
        let work = worker_runtime.spawn(async move { run_with(config, &known, testenv, clock, stop, worker).await });
        tokio::select! {
            result = work => result.map_err(Error::Panicked)?,
            () = heartbeat.wait_until_stuck() => Err(Error::Stuck),
            code = signals => {
                logging::finish(log.take(), || ());
                std::process::exit(code)
            }
        }
    });
    // A credential plugin or a DNS lookup that hangs on a blocking thread must not keep the process
    // alive.
    worker_runtime.shutdown_timeout(if is_testenv {
        Duration::from_millis(100)
    } else {
        Duration::from_secs(1)
    });
    result
}

/// Requests the stop at the first signal, or with `is_testenv` when standard input is closed.
/// Returns the exit code when the process must not wait for the stop any longer.
async fn stop_on_signal(mut interrupt: Signal, mut terminate: Signal, stop: Shutdown, is_testenv: bool) -> i32 {
    tokio::select! {
        name = next_signal(&mut interrupt, &mut terminate) => tracing::info!(
            signal = name,
            "received signal, shutting down; a second signal ends the process immediately"
        ),
        () = testenv::stdin_closed(), if is_testenv => {
            tracing::info!("standard input was closed, shutting down");
        }
    }
    stop.request();
    tokio::select! {
        name = next_signal(&mut interrupt, &mut terminate) => {
            tracing::warn!(signal = name, "received second signal, exiting");
            1
        }
        () = sleep(TESTENV_STOP_LIMIT), if is_testenv => {
            tracing::warn!("exiting before everything has stopped");
            0
        }
    }
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
    run_with(config, known, None, clock, stop, Heartbeat::default()).await
}

/// Runs like [`run`], with a heartbeat that shows whether this runtime is stuck.
async fn run_with(
    config: Config,
    known: &[Descriptor],
    testenv: Option<testenv::Settings>,
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
    // Boxed, because otherwise rustc cannot prove that the whole future is `Send`.
    let opening: Pin<Box<dyn Future<Output = _> + Send>> =
        Box::pin(connect(&config.options, &metrics, &outage, testenv.as_ref()));
    let (connection, port) = tokio::select! {
        opened = opening => opened.map_err(locate)?,
        () = stop.requested() => return Ok(()),
    };
    let opening: Pin<Box<dyn Future<Output = _> + Send>> =
        Box::pin(serving::bind(&config.options, port, &metrics, &enabled));
    let listeners = tokio::select! {
        listeners = opening => listeners.map_err(locate)?,
        () = stop.requested() => return Ok(()),
    };
    let checking: Pin<Box<dyn Future<Output = _> + Send>> =
        Box::pin(plan.ensure_only_leader(&config.options, &connection, &*clock));
    tokio::select! {
        checked = checking => checked?,
        () = stop.requested() => return Ok(()),
    }
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
    let (settled, announcement) = testenv::serve(testenv, listeners.https(), manager.settling(), &stop);
    let content = serving::Content {
        manager: &manager,
        extra_routes: debug::all(manager.pages(), &config).merge(settled),
        metrics: &metrics,
        clock,
    };
    let (serving, certificate) = listeners.serve(&config.options, content, &close, &stop)?;
    let following = serving::follow_secret(certificate, &credentials).map_err(Error::Connection)?;
    let result = tokio::select! {
        failed = Box::pin(testenv::announce(announcement)) => failed.map(drop).map_err(Error::Testenv),
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

/// Opens the connection. With `testenv`, also checks the apiserver, and returns the port of the
/// listener.
async fn connect(
    options: &Options,
    metrics: &metrics::Metrics,
    outage: &Outage,
    testenv: Option<&testenv::Settings>,
) -> Result<(Connection, Option<u16>), Error> {
    let settings = client::settings(options.manager.dry_run, &metrics.client, outage);
    let connection = Connection::open(&options.client, settings).await;
    let connection = connection.map_err(Error::Connection)?;
    let port = testenv::check(testenv, connection.url())
        .await
        .map_err(Error::Testenv)?;
    Ok((connection, port))
}

/// Returns the controllers that the flags enable.
fn enabled(config: &Config, known: &[Descriptor]) -> Result<Vec<Descriptor>, Error> {
    let enabled = config.enabled(known).map_err(Error::Controllers)?;
    Ok(with_issuer(enabled, &config.options.serving.secret))
}

/// Adds the controller that maintains the serving certificate, if the flags ask for it.
pub(crate) fn with_issuer(mut enabled: Vec<Descriptor>, secret: &SecretArgs) -> Vec<Descriptor> {
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
