//! The reasons why the manager ends.

use std::time::Duration;

use portreeve_reconcile::{BuildError, ControllerFailure};

/// The reason why the manager ended without a stop request.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A client cannot be created.
    #[error("failed to create a client for {component}")]
    Client {
        /// The component that needs the client.
        component: &'static str,
        /// The cause.
        #[source]
        source: portreeve_client::Error,
    },
    /// Two metrics have the same name.
    #[error("failed to register metrics")]
    Metrics(#[source] prometheus::Error),
    /// A controller cannot be built.
    #[error("failed to build {controller}")]
    Build {
        /// The name of the controller.
        controller: &'static str,
        /// The cause.
        #[source]
        source: BuildError,
    },
    /// A controller ended without a stop request.
    #[error(transparent)]
    ControllerFailure(ControllerFailure),
    /// Another replica leads, or may lead by now.
    #[error("leaderelection lost: {lease}: {reason}")]
    Lost {
        /// The Lease.
        lease: String,
        /// The reason.
        reason: String,
    },
    /// Reconciles were still running at the end of the shutdown timeout.
    #[error("controller shutdown timeout reached: still running after {limit:?}: {controllers}")]
    DrainTimeout {
        /// The value of `--controller-shutdown-timeout`.
        limit: Duration,
        /// The controllers that did not finish.
        controllers: String,
    },
}
