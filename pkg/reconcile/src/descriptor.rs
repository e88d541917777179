//! What a controller declares to the manager, and the inputs to build it.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use portreeve_informer::{Cache, Factory, Informer, Projection, Watch};
use portreeve_workqueue::{Key, Queue};
use prometheus::Registry;

use crate::{
    Clock, DebugPage, Events, KeyedController, LeaseAnnotations, Metrics, ReadinessChecker, Reconciler, Shutdown,
};

/// The registry entry of a controller.
#[derive(Clone, Copy)]
pub struct Descriptor {
    /// The ID, such as `foo-controller`, for `--controllers`, logs, metrics and events. Never
    /// rename it; add an alias instead.
    pub name: &'static str,
    /// Other names that `--controllers` accepts. Never remove one.
    pub aliases: &'static [&'static str],
    /// Whether `*` in `--controllers` includes it.
    pub on_by_default: bool,
    /// The CRDs that it needs in the cluster.
    pub crds: fn() -> Vec<CustomResourceDefinition>,
    /// The permissions that it needs. `portreeve rbac`, `portreeve fence` and the manifests in
    /// deploy/ are generated from these rules.
    pub rules: &'static [Rule],
    /// Its own flags, named as in Kubernetes: `--concurrent-foo-syncs`.
    pub flags: fn() -> Vec<clap::Arg>,
    /// Builds the controller. Must not block; informers and other tasks start in the background.
    pub build: fn(&mut Setup<'_>) -> Result<Box<dyn Controller>, BuildError>,
}

/// The permissions of a role, with the fields of an RBAC `PolicyRule`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rule {
    /// API groups; the empty string is the core group.
    pub groups: &'static [&'static str],
    /// Resources, including subresources such as `foos/status`.
    pub resources: &'static [&'static str],
    /// Verbs.
    pub verbs: &'static [&'static str],
}

/// A built controller. Most are a [`KeyedController`]; implement this trait for controllers that do
/// not fit it.
pub trait Controller: Send {
    /// Runs until `stop` is requested. Returns only after all workers have finished.
    fn run(self: Box<Self>, stop: Shutdown) -> BoxFuture<'static, Result<(), ControllerFailure>>;
}

/// A controller ended without a shutdown request.
#[derive(Debug, thiserror::Error)]
#[error("{controller} ended: {reason}")]
pub struct ControllerFailure {
    /// The name of the controller.
    pub controller: &'static str,
    /// The cause.
    pub reason: String,
}

/// The reasons why a controller cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// It reads a flag that its descriptor does not declare, or declares with another type.
    #[error("failed to read --{flag}: {controller} does not declare this flag, or declares it with another type")]
    Flag {
        /// The name of the controller.
        controller: &'static str,
        /// The name of the flag.
        flag: &'static str,
        /// The error from clap.
        #[source]
        source: clap::parser::MatchesError,
    },
    /// It declares a metric that cannot be registered.
    #[error("failed to register the metric {metric} of {controller}")]
    Metric {
        /// The name of the controller.
        controller: &'static str,
        /// The name of the metric.
        metric: &'static str,
        /// The cause.
        #[source]
        source: prometheus::Error,
    },
    /// Its flags have an invalid value.
    #[error("{reason}")]
    Refused {
        /// The name of the controller.
        controller: &'static str,
        /// The flag, the cause and the remedy.
        reason: String,
    },
    /// Its client could not be created.
    #[error("failed to create the client of {controller}")]
    Client {
        /// The name of the controller.
        controller: &'static str,
        /// The cause.
        #[source]
        source: portreeve_client::Error,
    },
}

/// What all controllers of a process share. Cheap to clone.
#[derive(Clone)]
pub struct ControllerContext {
    /// The shared informers.
    pub informers: Factory,
    /// The event queue.
    pub events: Events,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// The registry for the controllers' own metrics.
    pub registry: Registry,
    /// The metrics of work queues.
    pub queues: portreeve_workqueue::Metrics,
    /// The metrics of workers.
    pub metrics: Metrics,
    /// Whether to log plans without writing anything.
    pub dry_run: bool,
}

/// The inputs for building a controller, and what it registers while it is built.
pub struct Setup<'a> {
    /// The name in the descriptor.
    pub name: &'static str,
    /// A client with the controller's name in its user agent.
    pub client: Client,
    /// The command line, including the descriptor's own flags.
    pub flags: &'a clap::ArgMatches,
    /// What all controllers share.
    pub shared: ControllerContext,
    /// The queue health checks that the controller registered.
    pub queue_health_checkers: Vec<QueueHealthChecker>,
    /// The informers that the controller uses. They list again when this process becomes the
    /// leader.
    pub caches: Vec<Arc<dyn Cache>>,
    /// The pages that it serves under `/debug/controllers/`.
    pub pages: Vec<DebugPage>,
    /// The checks that it adds to `/readyz`.
    pub readiness_checkers: Vec<ReadinessChecker>,
    /// Annotations for state that survives the process; `None` without leader election.
    pub lease_annotations: Option<Arc<dyn LeaseAnnotations>>,
}

/// The current health of a queue and its workers, for `/livez`.
#[derive(Clone, Debug)]
pub struct QueueHealth {
    /// The name of the queue in metrics.
    pub queue: &'static str,
    /// The running item that has gone longest without progress, and for how long.
    pub longest_stalled: Option<(String, Duration)>,
    /// The number of items that are ready and not being worked on.
    pub ready: usize,
    /// How long the item at the head of a lane has been ready; the longer time of both lanes.
    pub oldest_ready: Option<Duration>,
    /// How long ago an item was last taken, finished or made progress; `None` before the first
    /// time.
    pub since_progress: Option<Duration>,
}

/// A controller's queue and a function that checks its health.
#[derive(Clone)]
pub struct QueueHealthChecker {
    /// The name of the controller.
    pub controller: &'static str,
    /// Returns the current health.
    pub check: Arc<dyn Fn() -> QueueHealth + Send + Sync>,
}

impl QueueHealthChecker {
    /// Creates the check of a work queue. `name` is the queue's name in metrics, and `tell` formats
    /// a key. The check runs on the health thread and must not block.
    ///
    /// The queue must hold keys only while there are workers, because a standby's keys would wait
    /// for days.
    pub fn of<K: Key>(
        controller: &'static str,
        name: &'static str,
        queue: Queue<K>,
        tell: impl Fn(&K) -> String + Send + Sync + 'static,
    ) -> Self {
        let check = move || {
            let progress = queue.progress();
            QueueHealth {
                queue: name,
                longest_stalled: progress.longest_stalled.map(|(key, still)| (tell(&key), still)),
                ready: progress.ready,
                oldest_ready: progress.oldest_ready,
                since_progress: progress.since_progress,
            }
        };
        Self {
            controller,
            check: Arc::new(check),
        }
    }
}

impl Setup<'_> {
    /// Returns the shared informer of a watch.
    pub fn informer<T: Projection>(&mut self, watch: Watch) -> Informer<T> {
        let informer = self.shared.informers.informer(watch);
        self.caches.push(Arc::new(informer.clone()));
        informer
    }

    /// Returns the value of one of the controller's own flags. The flag should have a default
    /// value; otherwise an absent flag has the default of `T`.
    ///
    /// # Errors
    ///
    /// Returns an error when the descriptor does not declare the flag with this type.
    pub fn flag<T: Clone + Default + Send + Sync + 'static>(&self, flag: &'static str) -> Result<T, BuildError> {
        Ok(self.flag_values::<T>(flag)?.into_iter().next().unwrap_or_default())
    }

    /// Returns the values of one of the controller's own flags that is a list.
    ///
    /// # Errors
    ///
    /// Returns an error when the descriptor does not declare the flag with this type.
    pub fn flag_values<T: Clone + Send + Sync + 'static>(&self, flag: &'static str) -> Result<Vec<T>, BuildError> {
        let values = self.flags.try_get_many::<T>(flag).map_err(|source| BuildError::Flag {
            controller: self.name,
            flag,
            source,
        })?;
        Ok(values.into_iter().flatten().cloned().collect())
    }

    /// Starts building a controller that reconciles keys. `queue` is the name of its work queue in
    /// metrics.
    pub fn keyed<R: Reconciler>(&mut self, queue: &'static str, reconciler: R) -> KeyedController<R> {
        KeyedController::new(self, queue, reconciler)
    }
}
