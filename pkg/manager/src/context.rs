//! What the manager and its groups share.

use std::sync::Arc;

use kube::Client;
use parking_lot::RwLock;
use portreeve_client::Connection;
use portreeve_informer::Factory;
use portreeve_reconcile::SharedContext;

use crate::{health::ManagerState, metrics::Metrics, settings::Settings};

/// What all groups share while they run.
pub(crate) struct ManagerContext {
    pub(crate) connection: Connection,
    pub(crate) settings: Settings,
    pub(crate) informers: Factory,
    pub(crate) shared: SharedContext,
    pub(crate) client: Client,
    pub(crate) metrics: Metrics,
    pub(crate) state: Arc<RwLock<ManagerState>>,
}
