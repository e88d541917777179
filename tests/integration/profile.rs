//! What the tests of all controllers have to know about each of them.
//!
//! Each controller has a [`Profile`] in the folder of its tests, and [`crate::registry`] lists
//! them. To add a controller, write its profile: it then takes part in the tests of permissions, of
//! faults, of restarts and of metrics.

use anyhow::{Context, Result};
use futures::{FutureExt, future::BoxFuture};
use jiff::Timestamp;
use portreeve_api::Resource;
use portreeve_reconcile::Descriptor;
use portreeve_testing::eventually;

use crate::fixtures::{LIMIT, clock::OffsetClock, metric_family::Family, namespace::NamespaceFixture};

/// The number of minutes between two waves of work, more than a wave takes on a busy machine: the
/// clock of a test goes on during a wave.
pub(crate) const STEP: i64 = 30;

/// What the tests know about one controller.
pub(crate) struct Profile {
    pub(crate) descriptor: Descriptor,
    pub(crate) reach: Reach,
    pub(crate) reads: Reads,
    /// The resources whose whole objects its informers list and watch, in all namespaces.
    pub(crate) objects: &'static [Resource],
    /// A resource whose metadata its informers list and watch in all namespaces, if no other
    /// controller watches whole objects of it.
    pub(crate) metadata: Option<Resource>,
    /// The names of its work queues in metrics: those of Kubernetes, if it has the controller.
    pub(crate) queues: &'static [&'static str],
    /// Its own metrics on which dashboards and alerts depend.
    pub(crate) families: &'static [Family],
    /// The ClusterRole of kube-controller-manager's controller that does the same. The apiserver
    /// creates it.
    pub(crate) kubernetes_role: Option<&'static str>,
    /// Makes the controller use each permission of its role, except those on finalizers.
    pub(crate) use_permissions: fn(NamespaceFixture, OffsetClock) -> BoxFuture<'static, Result<()>>,
    /// Creates the objects of its work in the chaos tests.
    pub(crate) work: fn(Wave) -> Created<dyn Work>,
    /// Creates work for a daemon that starts afterwards, with the system clock. It has several
    /// effects, and each leaves something to do.
    pub(crate) pending: fn(NamespaceFixture) -> Created<dyn Expected>,
}

/// What a profile creates on the control plane.
pub(crate) type Created<T> = BoxFuture<'static, Result<Box<T>>>;

/// The objects on which a controller acts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Reach {
    /// Objects of its kinds, so controllers can share a control plane.
    OwnKinds,
    /// All objects of the cluster.
    Cluster,
}

/// When a controller reads a single object from the apiserver.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Reads {
    Never,
    /// In each wave of work: it reads a Foo or an owner before it acts, to check that it still
    /// exists.
    InEachWave,
    /// When a test deletes a running Job: it reads a Job that is in the status but not in the
    /// cache, before it removes the Job from the status.
    AfterDeletion,
}

/// A wave of work. The work of all controllers is in one namespace.
#[derive(Clone)]
pub(crate) struct Wave {
    pub(crate) fixture: NamespaceFixture,
    pub(crate) clock: OffsetClock,
    /// The number of waves before it.
    pub(crate) number: usize,
    /// The time to which the test sets the clock before this wave, a multiple of minutes.
    pub(crate) slot: Timestamp,
}

/// The state in which a controller leaves the cluster when it has done its work.
pub(crate) trait Expected: Send + Sync {
    /// Checks once whether the work is done. It writes nothing.
    fn check(&self) -> BoxFuture<'_, Result<()>>;

    /// Checks work that is done: nothing else has happened.
    fn verify(&self) -> BoxFuture<'_, Result<()>> {
        async { Ok(()) }.boxed()
    }
}

/// Waits until all of this is done. Each is given with the name of its controller.
pub(crate) async fn wait_until_done(expected: &[(&str, &dyn Expected)]) -> Result<()> {
    eventually(LIMIT, "all work to be done", || async {
        for (controller, expected) in expected {
            expected.check().await.with_context(|| (*controller).to_owned())?;
        }
        anyhow::Ok(())
    })
    .await
}

/// Checks all of this, which is done, as [`Expected::verify`] does.
pub(crate) async fn verify(expected: &[(&str, &dyn Expected)]) -> Result<()> {
    for (controller, expected) in expected {
        expected.verify().await.with_context(|| (*controller).to_owned())?;
    }
    Ok(())
}

/// The objects that keep a controller busy. The tests write them directly to the apiserver, not
/// through the proxy.
pub(crate) trait Work: Expected {
    /// Creates, changes and deletes objects, so that the controller writes something, and reads
    /// what its profile says.
    fn wave<'a>(&'a mut self, wave: &'a Wave) -> BoxFuture<'a, Result<()>>;

    /// Does what a wave does, for a controller with the system clock.
    fn churn<'a>(&'a mut self, wave: &'a Wave) -> BoxFuture<'a, Result<()>> {
        self.wave(wave)
    }
}
