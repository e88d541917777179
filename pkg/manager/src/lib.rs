//! Starts controllers, watches over them, and stops them in the reverse order.
//!
//! Start: wait for the apiserver, install definitions (when asked to), build every controller, run them. Stop: no item is taken
//! any more, what runs ends, events are flushed, watches end. The listener for health and metrics belongs to the caller, who opens
//! it first and closes it last.
//!
//! Architecture Invariant: every task that is started here is joined here.

mod definitions;
mod health;
mod metrics;
pub mod selection;

use std::{sync::Arc, time::Duration};

use kube::Client;
use parking_lot::RwLock;
use portreeve_client::{Answer, Connection, chain};
use portreeve_informer::{Factory, Tuning};
use portreeve_reconcile::{
    Applier, BuildError, Clock, Controller, Crash, Descriptor, EventWriter, Events, Instruments, Setup, Shared,
    Shutdown, Vital,
};
use portreeve_serving::Health;
use prometheus::Registry;
use tokio::{task::JoinSet, time::timeout};

use crate::{health::Progress, metrics::Metrics};
pub use definitions::Error as DefinitionError;

/// How long queued events may take to be written at the end.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);
/// The longest pause between two looks for an apiserver that is away at the start.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How the manager goes about its work.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program's name: field manager of definitions, label of metrics.
    pub program: &'static str,
    /// Which replica this is, as events report it.
    pub instance: String,
    /// Install the controllers' definitions at the start.
    pub install_crds: bool,
    /// Log plans, write nothing.
    pub dry_run: bool,
    /// The pause between two controllers' starts, at random between once and twice this.
    pub start_interval: Duration,
    /// How long running reconciles may take to end; zero: as long as they need.
    pub shutdown_timeout: Duration,
    /// The times that informers go by.
    pub tuning: Tuning,
}

/// Why the manager ended, other than by being asked to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A client could not be made.
    #[error("failed to make a client for {component}")]
    Client {
        /// Whose.
        component: &'static str,
        /// What is wrong.
        #[source]
        source: portreeve_client::Error,
    },
    /// Two metrics have one name.
    #[error("failed to register metrics")]
    Metrics(#[source] prometheus::Error),
    /// A definition could not be installed.
    #[error("failed to install CustomResourceDefinitions")]
    Install(#[source] DefinitionError),
    /// A controller could not be built.
    #[error("failed to build {controller}")]
    Build {
        /// Which one.
        controller: &'static str,
        /// What is wrong.
        #[source]
        source: BuildError,
    },
    /// A controller ended by itself.
    #[error(transparent)]
    Crash(Crash),
    /// Reconciles were still running when their time was up.
    #[error("controller shutdown timeout reached: still running after {limit:?}: {controllers}")]
    DrainTimeout {
        /// `--controller-shutdown-timeout`.
        limit: Duration,
        /// Who did not end.
        controllers: String,
    },
}

/// Everything that controllers share, before they run.
pub struct Manager {
    connection: Connection,
    settings: Settings,
    shared: Shared,
    client: Client,
    writer: EventWriter,
    metrics: Metrics,
    progress: Arc<RwLock<Progress>>,
}

impl Manager {
    /// Sets up what controllers share. Watches nothing but CustomResourceDefinitions yet.
    ///
    /// # Errors
    ///
    /// Fails when a client cannot be made, or when `registry` already holds metrics of these names.
    pub fn new(
        connection: Connection,
        settings: Settings,
        clock: Arc<dyn Clock>,
        registry: &Registry,
    ) -> Result<Self, Error> {
        let client = |component| {
            connection
                .client(component)
                .map_err(|source| Error::Client { component, source })
        };
        let informers = Factory::new(client("shared-informers")?, settings.tuning.clone());
        let (events, writer) =
            Events::channel(client("events")?, settings.instance.clone(), registry).map_err(Error::Metrics)?;
        let shared = Shared {
            events,
            clock,
            registry: registry.clone(),
            queues: portreeve_workqueue::Metrics::register(registry).map_err(Error::Metrics)?,
            metrics: portreeve_reconcile::Metrics::register(registry).map_err(Error::Metrics)?,
            dry_run: settings.dry_run,
            informers: informers.clone(),
        };
        Ok(Self {
            client: client("manager")?,
            metrics: Metrics::register(registry, informers).map_err(Error::Metrics)?,
            connection,
            settings,
            shared,
            writer,
            progress: Arc::default(),
        })
    }

    /// What the health endpoints ask; stays true while the manager runs.
    pub fn health(&self) -> Health {
        health::providers(&self.progress, &self.shared.informers)
    }

    /// Runs `controllers` until `stop` is requested or one of them crashes, and then stops everything in order.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub async fn run(self, controllers: &[Descriptor], flags: &clap::ArgMatches, stop: Shutdown) -> Result<(), Error> {
        let flushed = Shutdown::new();
        let mut writer = JoinSet::new();
        writer.spawn(self.writer.run(flushed.clone()));
        let manager = Running {
            connection: self.connection,
            settings: self.settings,
            shared: self.shared,
            client: self.client,
            metrics: self.metrics,
            progress: self.progress,
        };
        let result = manager.run(controllers, flags, stop).await;
        flushed.request();
        if timeout(FLUSH_LIMIT, writer.join_next()).await.is_err() {
            tracing::warn!("some events were not written in time");
            writer.shutdown().await;
        }
        manager.shared.informers.stop().await;
        result
    }
}

/// The manager without the event writer, which outlives it.
struct Running {
    connection: Connection,
    settings: Settings,
    shared: Shared,
    client: Client,
    metrics: Metrics,
    progress: Arc<RwLock<Progress>>,
}

type Named = (&'static str, Result<(), Crash>);

impl Running {
    async fn run(&self, controllers: &[Descriptor], flags: &clap::ArgMatches, stop: Shutdown) -> Result<(), Error> {
        tokio::select! {
            prepared = self.prepare(controllers) => prepared?,
            () = stop.requested() => return Ok(()),
        }
        let mut built = Vec::new();
        for descriptor in controllers {
            built.push((descriptor.name, self.build(descriptor, flags)?));
        }
        self.progress.write().started = true;
        let mut tasks = JoinSet::new();
        let crash = tokio::select! {
            // First: a controller that ends because it was asked to has not crashed.
            biased;
            () = stop.requested() => None,
            crash = self.start_and_watch(built, &mut tasks, &stop) => Some(crash),
        };
        tracing::info!("stopping: no item is taken any more, running ones end");
        self.progress.write().stopping = true;
        stop.request();
        let drained = self.drain(&mut tasks).await;
        crash.map_or(drained, |crash| Err(Error::Crash(crash)))
    }

    /// Waits for the apiserver, then installs what is to be installed.
    async fn prepare(&self, controllers: &[Descriptor]) -> Result<(), Error> {
        self.wait_for_apiserver().await;
        self.progress.write().reached = true;
        if !self.settings.install_crds {
            return Ok(());
        }
        let applier = Applier {
            client: self.client.clone(),
            events: self.shared.events.clone(),
            manager: self.settings.program.to_owned(),
            dry_run: self.settings.dry_run,
            instruments: Instruments::default(),
            clock: Arc::clone(&self.shared.clock),
        };
        let wanted: Vec<_> = controllers.iter().flat_map(|controller| (controller.crds)()).collect();
        definitions::install(&applier, wanted).await.map_err(Error::Install)
    }

    /// An apiserver that is away is waited for: a control plane that starts everything at once must not crash its controllers.
    async fn wait_for_apiserver(&self) {
        let mut pause = Duration::from_millis(100);
        loop {
            let error = match definitions::ready(&self.client).await {
                Ok(()) => return,
                Err(error) if Answer::of(&error) != Answer::Transient => return,
                Err(error) => error,
            };
            let reason = chain(&error);
            tracing::warn!(apiserver = %self.connection.url(), reason, "waiting for the apiserver");
            self.progress.write().waiting_for = reason;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn build(&self, descriptor: &Descriptor, flags: &clap::ArgMatches) -> Result<Box<dyn Controller>, Error> {
        let name = descriptor.name;
        let client = self.connection.client(name);
        let mut setup = Setup {
            name,
            client: client.map_err(|source| Error::Client {
                component: name,
                source,
            })?,
            flags,
            shared: self.shared.clone(),
            vitals: Vec::new(),
        };
        let controller = (descriptor.build)(&mut setup).map_err(|source| Error::Build {
            controller: name,
            source,
        })?;
        let mut progress = self.progress.write();
        progress.controllers.push(name);
        progress.vitals.extend::<Vec<Vital>>(setup.vitals);
        Ok(controller)
    }

    /// Starts every controller, then waits for one to end, which none should.
    async fn start_and_watch(
        &self,
        built: Vec<(&'static str, Box<dyn Controller>)>,
        tasks: &mut JoinSet<Named>,
        stop: &Shutdown,
    ) -> Crash {
        for (name, controller) in built {
            tracing::info!(controller = name, "starting");
            let running = self.metrics.running(name, self.settings.program);
            let task = controller.run(stop.child());
            tasks.spawn(async move {
                running.set(1);
                let end = task.await;
                running.set(0);
                (name, end)
            });
            let interval = self.settings.start_interval;
            tokio::time::sleep(interval.mul_f64(1.0 + fastrand::f64())).await;
        }
        match tasks.join_next().await {
            Some(Ok((_, Err(crash)))) => crash,
            Some(Ok((controller, Ok(())))) => Crash {
                controller,
                reason: "nobody had asked it to".to_owned(),
            },
            Some(Err(error)) => Crash {
                controller: "a controller",
                reason: error.to_string(),
            },
            // No controller is enabled: serve health and metrics until told to stop.
            None => std::future::pending().await,
        }
    }

    /// Joins every controller. The first one that broke on the way counts as the reason.
    async fn drain(&self, tasks: &mut JoinSet<Named>) -> Result<(), Error> {
        let limit = self.settings.shutdown_timeout;
        let mut left: Vec<&str> = self.progress.read().controllers.clone();
        let mut broken = None;
        let joined = async {
            while let Some(end) = tasks.join_next().await {
                match end {
                    Ok((name, end)) => {
                        left.retain(|controller| *controller != name);
                        broken = broken.take().or(end.err());
                    }
                    Err(error) => {
                        let reason = error.to_string();
                        broken = broken.take().or(Some(Crash {
                            controller: "a controller",
                            reason,
                        }));
                    }
                }
            }
        };
        let in_time = if limit.is_zero() {
            joined.await;
            true
        } else {
            timeout(limit, joined).await.is_ok()
        };
        if !in_time {
            // What still runs is dropped where it waits, and nothing of it is left when this returns.
            tasks.shutdown().await;
            let controllers = left.join(", ");
            return Err(Error::DrainTimeout { limit, controllers });
        }
        broken.map_or(Ok(()), |crash| Err(Error::Crash(crash)))
    }
}
