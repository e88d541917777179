//! The inputs of a controller's constructor, and its result.

use std::sync::Arc;

use futures::future::BoxFuture;
use kube::Client;
use portreeve_client::{Authorities, Outage, ServerClock};
use portreeve_informer::{Informer, Projection, Watch};
use portreeve_metrics::Registry;
use portreeve_workqueue::RetryBudget;

use crate::{
    ActivityChecker, Clock, DebugPage, Events, GroupInformers, GroupLease, Metrics, QueueHealthChecker,
    ReadinessChecker, RootCaError, Shutdown,
};

/// The inputs for building one controller.
pub struct Context<'a> {
    /// The name in the descriptor.
    pub name: &'static str,
    /// A client with the controller's name in its user agent.
    pub client: Client,
    /// The command line, including the descriptor's own flags.
    pub flags: &'a clap::ArgMatches,
    /// The informers of the controller's group.
    pub informers: &'a GroupInformers,
    /// The Lease of the controller's group; `None` without leader election.
    pub lease: Option<GroupLease>,
    /// The dependencies that all controllers of the group share.
    pub shared: &'a SharedContext,
}

/// The dependencies that all controllers of a group share. Cheap to clone.
#[derive(Clone)]
pub struct SharedContext {
    /// The event queue.
    pub events: Events,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// The registry for the controllers' own metrics.
    pub registry: Registry,
    /// The metrics of work queues.
    pub queues: portreeve_workqueue::Metrics,
    /// The limit of retries of each controller.
    pub retry_budget: RetryBudget,
    /// Ends the waits of failed keys after an outage.
    pub outage: Outage,
    /// The apiserver's clock.
    pub server_clock: ServerClock,
    /// The CA certificates with which the connection verifies the apiserver.
    pub authorities: Authorities,
    /// The metrics of workers.
    pub metrics: Metrics,
    /// Whether to log plans without writing anything.
    pub dry_run: bool,
}

impl Context<'_> {
    /// Returns the shared informer of a watch.
    pub fn informer<T: Projection>(&self, watch: Watch) -> Informer<T> {
        self.informers.informer(watch)
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
}

/// A built controller, and what it adds to the endpoints of the process.
pub struct Registrations {
    /// The controller.
    pub controller: Box<dyn Controller>,
    /// The health checks of its queues.
    pub queue_health_checkers: Vec<QueueHealthChecker>,
    /// Returns what it has to do; empty if it never has work that a test waits for.
    pub activity_checkers: Vec<ActivityChecker>,
    /// The pages that it serves under `/debug/controllers/`.
    pub debug_pages: Vec<DebugPage>,
    /// The checks that it adds to `/readyz`.
    pub readiness_checkers: Vec<ReadinessChecker>,
}

impl Registrations {
    /// Returns registrations with only a controller.
    pub fn new(controller: impl Controller + 'static) -> Self {
        Self {
            controller: Box::new(controller),
            queue_health_checkers: Vec::new(),
            activity_checkers: Vec::new(),
            debug_pages: Vec::new(),
            readiness_checkers: Vec::new(),
        }
    }
}

/// A task that runs until the manager stops it. Most are built by a
/// [`KeyedController`](crate::KeyedController); implement this trait for controllers that do not
/// fit it.
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
    /// The CA that it publishes cannot be used.
    #[error("{controller} has no CA to publish; set --{flag} to the file with the CA certificates of the apiserver")]
    RootCa {
        /// The name of the controller.
        controller: &'static str,
        /// The flag.
        flag: &'static str,
        /// The cause.
        #[source]
        source: RootCaError,
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
