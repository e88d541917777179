//! What a controller tells the manager of itself, and what it gets to build itself from.

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

/// One controller, as the registry lists it.
#[derive(Clone, Copy)]
pub struct Descriptor {
    /// An ID, such as `foo-controller`: for `--controllers`, logs, metrics and events. Never renamed, only aliased.
    pub name: &'static str,
    /// Other names that `--controllers` takes. Never removed.
    pub aliases: &'static [&'static str],
    /// Whether `*` includes it.
    pub on_by_default: bool,
    /// The definitions that it needs in the cluster.
    pub crds: fn() -> Vec<CustomResourceDefinition>,
    /// What it must be allowed to do; `portreeve rbac`, `portreeve fence` and what deploy/ has of both are made from these.
    pub rules: &'static [Rule],
    /// Its own flags, by Kubernetes' naming: `--concurrent-foo-syncs`.
    pub flags: fn() -> Vec<clap::Arg>,
    /// Makes it. Sends nothing.
    pub build: fn(&mut Setup<'_>) -> Result<Box<dyn Controller>, BuildError>,
}

/// What a role allows: the fields of an RBAC `PolicyRule`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rule {
    /// API groups; the empty string is the core group.
    pub groups: &'static [&'static str],
    /// Resources, with `/status` and the like as resources of their own.
    pub resources: &'static [&'static str],
    /// Verbs.
    pub verbs: &'static [&'static str],
}

/// A controller that was built. Most are [`KeyedController`]; this trait is the way out for what is no keyed reconcile.
pub trait Controller: Send {
    /// Runs until told to stop; returns only after its workers have drained.
    fn run(self: Box<Self>, stop: Shutdown) -> BoxFuture<'static, Result<(), ControllerFailure>>;
}

/// A controller ended though nobody had asked it to.
#[derive(Debug, thiserror::Error)]
#[error("{controller} ended: {reason}")]
pub struct ControllerFailure {
    /// Which one.
    pub controller: &'static str,
    /// Why.
    pub reason: String,
}

/// A controller could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// It reads a flag that its descriptor does not declare, or as another type.
    #[error("failed to read --{flag}, which {controller} should have declared among its flags")]
    Flag {
        /// Which controller.
        controller: &'static str,
        /// Which flag.
        flag: &'static str,
        /// What clap says.
        #[source]
        source: clap::parser::MatchesError,
    },
    /// It declares a metric that cannot be.
    #[error("failed to register the metric {metric} of {controller}")]
    Metric {
        /// Which controller.
        controller: &'static str,
        /// Which metric.
        metric: &'static str,
        /// What is wrong with it.
        #[source]
        source: prometheus::Error,
    },
    /// What its flags ask for cannot be.
    #[error("{reason}")]
    Refused {
        /// Which controller.
        controller: &'static str,
        /// Which flag, why, and the way out.
        reason: String,
    },
    /// It has no client.
    #[error("failed to make a client for {controller}")]
    Client {
        /// Which controller.
        controller: &'static str,
        /// What is wrong.
        #[source]
        source: portreeve_client::Error,
    },
}

/// What all controllers of a process share. Cheap to clone.
#[derive(Clone)]
pub struct ControllerContext {
    /// Shared informers.
    pub informers: Factory,
    /// Where events go.
    pub events: Events,
    /// The time of day.
    pub clock: Arc<dyn Clock>,
    /// For metrics of one's own.
    pub registry: Registry,
    /// The queues' metrics.
    pub queues: portreeve_workqueue::Metrics,
    /// The workers' metrics.
    pub metrics: Metrics,
    /// Log plans, write nothing.
    pub dry_run: bool,
}

/// What a controller is built from.
pub struct Setup<'a> {
    /// The descriptor's name.
    pub name: &'static str,
    /// A client with the controller's name in its user agent.
    pub client: Client,
    /// The command line; holds the descriptor's own flags.
    pub flags: &'a clap::ArgMatches,
    /// What all controllers share.
    pub shared: ControllerContext,
    /// The vital signs that the controller has reported while it was built.
    pub queue_health_checkers: Vec<QueueHealthChecker>,
    /// The informers that it was given while it was built: whoever comes to lead has them list anew.
    pub caches: Vec<Arc<dyn Cache>>,
    /// What it shows under `/debug/controllers/`.
    pub pages: Vec<DebugPage>,
    /// What it adds to `/readyz`.
    pub readiness_checkers: Vec<ReadinessChecker>,
    /// Where it notes what its successors have to know; `None` without an election.
    pub lease_annotations: Option<Arc<dyn LeaseAnnotations>>,
}

/// How a queue and its workers fare now, for `/livez`.
#[derive(Clone, Debug)]
pub struct QueueHealth {
    /// The queue, as metrics name it.
    pub queue: &'static str,
    /// Of the items in work the one that has gone longest without a step, and for how long.
    pub longest_stalled: Option<(String, Duration)>,
    /// How many items are due that nobody works on.
    pub ready: usize,
    /// For how long the one of them has been due that is next.
    pub oldest_ready: Option<Duration>,
    /// For how long no item was taken, none was given back, and none made a step; `None` before the first.
    pub since_progress: Option<Duration>,
}

/// A queue by name, and a way to take its vital signs.
#[derive(Clone)]
pub struct QueueHealthChecker {
    /// The controller.
    pub controller: &'static str,
    /// Takes the signs.
    pub check: Arc<dyn Fn() -> QueueHealth + Send + Sync>,
}

impl QueueHealthChecker {
    /// Those of a work queue. `name` is what metrics call it, and `tell` says which item a key stands for; it is called on the runtime's
    /// own threads, and must not wait.
    ///
    /// A queue holds keys only while there are workers: those of a standby would wait for days.
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
    /// The shared informer of a watch.
    pub fn informer<T: Projection>(&mut self, watch: Watch) -> Informer<T> {
        let informer = self.shared.informers.informer(watch);
        self.caches.push(Arc::new(informer.clone()));
        informer
    }

    /// The value of one of the controller's own flags, which needs a default.
    ///
    /// # Errors
    ///
    /// Fails when the descriptor does not declare the flag with that type and a default.
    pub fn flag<T: Clone + Default + Send + Sync + 'static>(&self, flag: &'static str) -> Result<T, BuildError> {
        Ok(self.flag_values::<T>(flag)?.into_iter().next().unwrap_or_default())
    }

    /// The values of a flag that is a list.
    ///
    /// # Errors
    ///
    /// Fails when the descriptor does not declare the flag with that type.
    pub fn flag_values<T: Clone + Send + Sync + 'static>(&self, flag: &'static str) -> Result<Vec<T>, BuildError> {
        let values = self.flags.try_get_many::<T>(flag).map_err(|source| BuildError::Flag {
            controller: self.name,
            flag,
            source,
        })?;
        Ok(values.into_iter().flatten().cloned().collect())
    }

    /// Starts to build a controller that reconciles keys. `queue` names its work queue in metrics.
    pub fn keyed<R: Reconciler>(&mut self, queue: &'static str, reconciler: R) -> KeyedController<R> {
        KeyedController::new(self, queue, reconciler)
    }
}
