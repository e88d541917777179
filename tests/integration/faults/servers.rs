//! Faults of the apiserver and etcd.

use anyhow::Result;
use portreeve_testing::ControlPlane;

/// A fault of the servers, which run again after it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ServerFault {
    ApiserverKilled,
    EtcdKilled,
    BothKilled,
    /// etcd forgets all versions of objects but the last, and so does the apiserver's watch cache.
    /// A watch that was cut off before gets a 410.
    Compaction,
}

impl ServerFault {
    /// Injects the fault, and returns when the servers are ready again.
    pub(crate) async fn inject(self, plane: &ControlPlane) -> Result<()> {
        let (apiserver, etcd) = (plane.apiserver(), plane.etcd());
        if self == Self::Compaction {
            plane.compact().await?;
        }
        if matches!(self, Self::EtcdKilled | Self::BothKilled) {
            etcd.kill().await?;
        }
        if self != Self::EtcdKilled {
            apiserver.kill().await?;
        }
        if matches!(self, Self::EtcdKilled | Self::BothKilled) {
            etcd.start().await?;
        }
        if self != Self::EtcdKilled {
            // Its watch cache still had the compacted events.
            apiserver.start().await?;
        }
        Ok(())
    }

    /// Returns whether the apiserver rejects all requests for a while. An apiserver that has just
    /// started does so until it has read the roles.
    pub(crate) fn forbids(self) -> bool {
        self != Self::EtcdKilled
    }
}

/// Does `meanwhile` while the apiserver is stopped.
pub(crate) async fn during_outage(plane: &ControlPlane, meanwhile: impl FnOnce()) -> Result<()> {
    plane.apiserver().stop().await?;
    meanwhile();
    plane.apiserver().start().await
}
