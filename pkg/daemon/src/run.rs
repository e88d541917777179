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
};
use tracing_appender::non_blocking::WorkerGuard;

use crate::{
    client, debug,
    error::Error,
    leader_election, logging, metrics, open_files,
    options::{Config, Options},
    serving,
};

/// Runs until a signal arrives. The second signal ends the process immediately.
///
/// This thread only waits, and other threads do the work. So a second signal, and leader election
/// that has given up, end the process even when a worker thread is blocked.
pub(crate) fn until_signal(
    config: Config,
    known: &'static [Descriptor],
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
    let content = serving::Content {
        manager: &manager,
        extra_routes: debug::routes(manager.pages()).merge(debug::about_the_process(&config)),
        metrics: &metrics,
        clock,
    };
    let (serving, certificate) = listeners.serve(&config.options, content, &close, &stop)?;
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
