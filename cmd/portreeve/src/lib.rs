//! The daemon as a library: [`main`] for a binary with controllers of one's own, [`run`] for tests and embedders.

mod config;
mod cron;
mod debug;
mod leader_election;
pub mod logging;
mod manifests;
mod options;
mod registry;

use std::{io::Write, pin::Pin, process::ExitCode, sync::Arc, time::Duration};

use jiff::Timestamp;
use portreeve_client::{AlwaysOpen, Connection, Fence, Metrics, ReadOnly, error_chain};
use portreeve_informer::InformerConfig;
use portreeve_manager::{Manager, selection::UnknownNames};
use portreeve_reconcile::{Clock, Descriptor, Shutdown, SystemClock};
use portreeve_serving::{HttpEndpoints, Server};
use prometheus::Registry;
use serde_json::Value;
use tokio::{
    runtime,
    signal::unix::{Signal, SignalKind, signal},
    task::JoinSet,
};

use crate::options::{Command, ListFormat};
pub use crate::{
    config::{Error as ConfigError, FileLocation, Problem},
    manifests::Error as ManifestError,
    options::{Config, Options, UsageError},
    registry::CONTROLLERS,
};

/// The first part of the user agent.
const AGENT: &str = concat!("portreeve/", env!("CARGO_PKG_VERSION"));
/// How long one call to the apiserver may take.
const CALL_LIMIT: Duration = Duration::from_secs(30);

/// Why the daemon ended, other than by being asked to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `--controllers` names what nobody is.
    #[error("invalid --controllers")]
    Controllers(#[source] UnknownNames),
    /// `--leader-elect-groups` names what nobody is.
    #[error("invalid --leader-elect-groups")]
    Groups(#[source] UnknownNames),
    /// `--leader-elect-groups` has something else than a name.
    #[error(
        "invalid --leader-elect-groups: {0:?} is no name of a controller; give each by its name (--list-controllers prints them)"
    )]
    Group(String),
    /// `--leader-elect-groups` puts a controller into two groups.
    #[error("invalid --leader-elect-groups: {controller} is in the groups {} and {}; give it one", groups[0], groups[1])]
    TwoGroups {
        /// Which one.
        controller: &'static str,
        /// Which groups.
        groups: [String; 2],
    },
    /// The times of `--leader-elect-…` do not go together.
    #[error("invalid leader election")]
    ElectionTimings(#[source] portreeve_leader::ArgsError),
    /// Leader election cannot begin.
    #[error("failed to start leader election")]
    Elections(#[source] portreeve_leader::Error),
    /// What is wrong comes from the file of `--config`.
    #[error("{}", .locations.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    InFile {
        /// Where.
        locations: Vec<FileLocation>,
        /// What, by the names of the flags.
        #[source]
        source: Box<Self>,
    },
    /// The apiserver's address or credentials cannot be used.
    #[error("failed to set up the connection to the apiserver")]
    Connection(#[source] portreeve_client::Error),
    /// The listener cannot be opened.
    #[error("failed to serve health and metrics")]
    Serving(#[source] portreeve_serving::Error),
    /// Two metrics have one name.
    #[error("failed to register metrics")]
    Metrics(#[source] prometheus::Error),
    /// The manager failed.
    #[error("failed to run controllers")]
    Manager(#[source] portreeve_manager::Error),
    /// A schedule cannot be read.
    #[error("invalid schedule")]
    Schedule(#[source] portreeve_cron::Error),
    /// A manifest cannot be printed.
    #[error("failed to print a manifest")]
    Manifest(#[source] ManifestError),
    /// Standard output is closed.
    #[error("failed to write to standard output")]
    Print(#[source] std::io::Error),
    /// The daemon itself panicked, which no controller can bring about.
    #[error("failed to run to the end")]
    Panicked(#[source] tokio::task::JoinError),
    /// The operating system refuses something basic.
    #[error("failed to set up {what}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// 2 when the Lease was lost, 3 when reconciles were still running at the end of their time, else 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Manager(portreeve_manager::Error::Lost { .. }) => 2,
            Self::Manager(portreeve_manager::Error::DrainTimeout { .. }) => 3,
            _ => 1,
        }
    }

    /// The same, with the locations in the file of `--config` that it is about.
    fn placed(self, config: &Config) -> Self {
        let flags: &[&str] = match &self {
            Self::Controllers(_) => &["controllers"],
            Self::Groups(_) | Self::Group(_) | Self::TwoGroups { .. } => &["leader_elect_groups"],
            Self::ElectionTimings(_) => &[
                "leader_elect_lease_duration",
                "leader_elect_renew_deadline",
                "leader_elect_retry_period",
            ],
            Self::Connection(_) => &["kubeconfig", "master"],
            Self::Serving(_) => &["secure_port", "bind_address", "tls_cert_file", "tls_private_key_file"],
            _ => &[],
        };
        let locations = config.locations(flags);
        if locations.is_empty() {
            return self;
        }
        Self::InFile {
            locations,
            source: Box::new(self),
        }
    }
}

/// The whole binary: reads the command line, runs, and returns the exit code. `known` is every controller that it offers.
pub fn main(known: &'static [Descriptor]) -> ExitCode {
    let failed = |text: &str, code: u8| {
        writeln!(std::io::stderr(), "error: {text}").ok();
        ExitCode::from(code)
    };
    let config = match Config::parse(std::env::args_os(), known) {
        Ok(config) => config,
        Err(UsageError::CommandLine(usage)) => {
            let code = u8::from(usage.use_stderr());
            // Nothing is left to do about a closed terminal.
            usage.print().ok();
            return ExitCode::from(code);
        }
        Err(error) => return failed(&error_chain(&error), 1),
    };
    match execute(config, known) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error_chain(&error), error.exit_code()),
    }
}

fn execute(config: Config, known: &'static [Descriptor]) -> Result<(), Error> {
    let print = |text: &str| std::io::stdout().write_all(text.as_bytes()).map_err(Error::Print);
    let enabled = |items| options::enabled(items, known).map_err(Error::Controllers);
    match &config.options.command {
        Some(Command::Crds { controllers }) => {
            print(&manifests::crds(&enabled(&controllers.controllers)?).map_err(Error::Manifest)?)
        }
        Some(Command::Rbac {
            controllers,
            account,
            election,
            install_crds,
        }) => {
            let enabled = enabled(&controllers.controllers)?;
            let leases = leader_election::leases(election, known, &enabled)?;
            print(&manifests::rbac(&enabled, account, election, &leases, *install_crds).map_err(Error::Manifest)?)
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
            if fence.is_empty() {
                let said = std::io::stderr()
                    .write_all(b"no fence: without a leader election or a controller there is nothing to guard\n");
                said.map_err(Error::Print)?;
            }
            print(&fence)
        }
        Some(Command::ConfigReference) => print(&config::reference(&options::command(known))),
        Some(Command::Cron(command)) => print(&cron::run(command, Timestamp::now()).map_err(Error::Schedule)?),
        None if config.options.selected.list_controllers => match config.options.selected.output {
            ListFormat::Table => print(&manifests::table(known)),
            ListFormat::Json => print(&format!("{:#}\n", manifests::list(known))),
        },
        None => daemon(config, known),
    }
}

/// Runs until a signal. The second signal ends the process at once.
///
/// Signals are awaited on this thread, everything else runs on others: whoever blocks one of them, a second signal ends the process.
fn daemon(config: Config, known: &'static [Descriptor]) -> Result<(), Error> {
    logging::init(config.options.logging.logging_format, config.options.logging.v);
    std::panic::set_hook(Box::new(|panic| tracing::error!(err = %panic, "panicked")));
    let system = |what| move |source| Error::System { what, source };
    let listening = runtime::Builder::new_current_thread().enable_all().build();
    // Controllers wait for the apiserver, with a thousand things at once: to hand those from thread to thread costs more than it saves.
    let working = runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(system("the runtime"))?;
    let result = listening.map_err(system("the runtime"))?.block_on(async {
        let stop = Shutdown::new();
        let mut interrupt = signal(SignalKind::interrupt()).map_err(system("the handler of SIGINT"))?;
        let mut terminate = signal(SignalKind::terminate()).map_err(system("the handler of SIGTERM"))?;
        let asked = stop.clone();
        let signals = async move {
            let name = either(&mut interrupt, &mut terminate).await;
            tracing::info!(signal = name, "asked to stop; a second signal ends the process at once");
            asked.request();
            let name = either(&mut interrupt, &mut terminate).await;
            tracing::warn!(signal = name, "asked to stop again");
        };
        let work = working.spawn(async move { run(config, known, Arc::new(SystemClock), stop).await });
        tokio::select! {
            result = work => result.map_err(Error::Panicked)?,
            () = signals => std::process::exit(1),
        }
    });
    // A credential plugin or a name look-up that hangs on a thread of its own must not keep the process.
    working.shutdown_timeout(Duration::from_secs(1));
    result
}

async fn either(interrupt: &mut Signal, terminate: &mut Signal) -> &'static str {
    tokio::select! {
        _ = interrupt.recv() => "SIGINT",
        _ = terminate.recv() => "SIGTERM",
    }
}

/// Runs the enabled ones of the `known` controllers until `stop` is requested.
///
/// Health and metrics are served before anything else starts and after everything else has stopped.
///
/// # Errors
///
/// See [`Error`].
pub async fn run(config: Config, known: &[Descriptor], clock: Arc<dyn Clock>, stop: Shutdown) -> Result<(), Error> {
    let placed = |error: Error| error.placed(&config);
    let enabled = config.enabled(known).map_err(Error::Controllers).map_err(placed)?;
    let plan = leader_election::ElectionPlan::of(&config.options, known, &enabled).map_err(placed)?;
    let Options {
        manager,
        client,
        serving,
        ..
    } = &config.options;
    let registry = Registry::new();
    let fence: Arc<dyn Fence> = if manager.dry_run {
        Arc::new(ReadOnly)
    } else {
        Arc::new(AlwaysOpen)
    };
    let requests = Metrics::register(&registry).map_err(Error::Metrics)?;
    let settings = portreeve_client::Settings {
        program: AGENT.to_owned(),
        call_limit: CALL_LIMIT,
        fence,
        metrics: requests.clone(),
    };
    // Boxed, or else rustc cannot see that the whole may run on any thread.
    let opening: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(Connection::open(client, settings));
    let connection = tokio::select! {
        connection = opening => connection.map_err(Error::Connection).map_err(placed)?,
        () = stop.requested() => return Ok(()),
    };
    let server = Server::bind(serving).map_err(Error::Serving).map_err(placed)?;
    let names: Vec<_> = enabled.iter().map(|descriptor| descriptor.name).collect();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        controllers = names.join(","),
        config = config.file().map(|file| file.display().to_string()),
        apiserver = %connection.url(),
        identity = plan.identity(),
        dry_run = manager.dry_run,
        "portreeve starts"
    );
    if enabled.is_empty() {
        tracing::warn!("no controller is enabled: without '*', --controllers enables only those that it names");
    }
    let starting: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(plan.start(client, requests, &clock, &registry));
    let (groups, elections) = tokio::select! {
        started = starting => started?,
        () = stop.requested() => return Ok(()),
    };
    let settings = manager_settings(manager);
    let manager = Manager::new(connection, settings, groups, clock, &registry).map_err(Error::Manager)?;
    let closed = Shutdown::new();
    let serving = serve(server, &manager, &registry, &config.effective, &closed, &stop).map_err(Error::Serving)?;
    let result = manager.run(&config.flags, stop).await.map_err(Error::Manager);
    if let Some(elections) = elections {
        elections.end().await;
    }
    closed.request();
    let closing = join(serving).await;
    tracing::info!("stopped");
    result.and(closing)
}

/// Serves health and metrics until `closed` is requested.
fn serve(
    server: Option<Server>,
    manager: &Manager,
    registry: &Registry,
    effective_config: &Value,
    closed: &Shutdown,
    stop: &Shutdown,
) -> Result<JoinSet<Result<(), portreeve_serving::Error>>, portreeve_serving::Error> {
    let mut serving = JoinSet::new();
    let Some(server) = server else { return Ok(serving) };
    let endpoints = HttpEndpoints {
        health: manager.health(),
        registry: registry.clone(),
        extra_routes: debug::routes(manager.pages()).merge(debug::configz(effective_config)),
    };
    let mut listener = server.spawn(endpoints, &closed.token())?;
    let stop = stop.clone();
    serving.spawn(async move {
        let end = listener.ended().await;
        // A daemon that nobody can see into must not run on.
        stop.request();
        end
    });
    Ok(serving)
}

/// Waits for the listener, if there is one, to be closed.
async fn join(mut serving: JoinSet<Result<(), portreeve_serving::Error>>) -> Result<(), Error> {
    let mut result = Ok(());
    while let Some(end) = serving.join_next().await {
        let end = end.unwrap_or(Err(portreeve_serving::Error::ThreadExited));
        result = result.and(end.map_err(Error::Serving));
    }
    result
}

fn manager_settings(options: &options::ManagerArgs) -> portreeve_manager::Settings {
    let resync_period = options.min_resync_period;
    portreeve_manager::Settings {
        program: "portreeve",
        instance: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        install_crds: options.install_crds,
        dry_run: options.dry_run,
        start_interval: options.controller_start_interval,
        shutdown_timeout: options.controller_shutdown_timeout,
        controller_stuck_timeout: options.controller_stuck_timeout,
        queue_stuck_timeout: options.queue_stuck_timeout,
        informer_config: InformerConfig {
            idle_timeout: options.watch_idle_timeout,
            resync_period: (!resync_period.is_zero()).then_some(resync_period),
            ..InformerConfig::default()
        },
    }
}
