//! A cluster with an estate, a proxy that has faults, and a collector behind it.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use portreeve_testing::{ControlPlane, Counter, FaultProxy, Matcher, Times};

use super::{
    collector::{Collector, bound_kubeconfig},
    estate::Estate,
    yard::{Policy, Yard},
};
use crate::support::LIMIT;

/// How long the answer to each of the collector's deletions is under way, so that a cascade takes a second or two.
const LAG: Duration = Duration::from_millis(200);
/// After so many of its deletions a cascade is under way, and far from its end.
const UNDER_WAY: u64 = 20;
/// One of each that differs.
const POLICIES: [Policy; 4] = [
    Policy::Background,
    Policy::Background,
    Policy::Foreground,
    Policy::Orphan,
];

pub(super) struct Stage {
    // Dropped in this order.
    pub(super) collector: Collector,
    pub(super) scenery: Scenery,
}

/// The stage without its collector.
pub(super) struct Scenery {
    pub(super) proxy: FaultProxy,
    pub(super) deletions: Counter,
    pub(super) yard: Yard,
    pub(super) estate: Estate,
    /// Of an account that has exactly the rights that `portreeve rbac` prints, through the proxy.
    pub(super) kubeconfig: PathBuf,
    pub(super) plane: ControlPlane,
}

impl Stage {
    /// A collector that has seen everything, and nothing to collect.
    pub(super) async fn start(name: &str) -> Result<Self> {
        let scenery = Scenery::new(name).await?;
        let collector = scenery.collector().await?;
        Ok(Self { collector, scenery })
    }

    /// Waits until all is as it must be, and nothing was refused for want of a right.
    pub(super) async fn judge(&self) -> Result<()> {
        self.judge_after_a_restart().await?;
        self.collector.ensure_nothing_forbidden().await
    }

    /// The same for an apiserver that was restarted: until it has read the roles, it refuses what they allow.
    pub(super) async fn judge_after_a_restart(&self) -> Result<()> {
        let Scenery { estate, yard, .. } = &self.scenery;
        let judged = estate.ledger.judge(yard).await;
        judged.with_context(|| format!("the collector was wrong{}", self.collector.daemon.process.log_tail()))
    }
}

impl Scenery {
    pub(super) async fn new(name: &str) -> Result<Self> {
        let plane = ControlPlane::start().await?;
        let yard = Yard::new(&plane, name).await?;
        let estate = Estate::build(&yard, "first", &POLICIES).await?;
        let proxy = FaultProxy::start(&plane).await?;
        let deletions = slow_down(&proxy);
        let kubeconfig = proxy.kubeconfig(&bound_kubeconfig(&plane).await?, name)?;
        Ok(Self {
            proxy,
            deletions,
            yard,
            estate,
            kubeconfig,
            plane,
        })
    }

    /// Loses what is under way, and heals at once all but the slowness of the collector's deletions.
    pub(super) fn cut(&self) {
        self.proxy.cut();
        self.proxy.heal();
        slow_down(&self.proxy);
    }

    /// Starts a collector that is alone, and waits until it has seen everything.
    pub(super) async fn collector(&self) -> Result<Collector> {
        let collector = Collector::start_as(&self.plane, &self.kubeconfig, "collector", &[]).await?;
        collector.wait_until_synced().await?;
        Ok(collector)
    }

    /// Deletes what is doomed, and returns while the collector is at it. How many deletions it has sent by then is returned.
    pub(super) async fn bring_down(&mut self) -> Result<u64> {
        let before = self.deletions.seen();
        self.estate.bring_down(&self.yard).await?;
        self.deletions.until_seen(before + UNDER_WAY, LIMIT).await?;
        Ok(self.deletions.seen())
    }

    /// Fails when the collector has sent no deletion since there were so many: then what happened since was no fault in mid-cascade.
    pub(super) fn ensure_more_deletions_than(&self, before: u64) -> Result<()> {
        let now = self.deletions.seen();
        println!("{before} deletions before the fault, {} after it", now - before);
        ensure!(now > before, "the cascade was over already");
        Ok(())
    }
}

/// Makes a cascade take a second or two.
fn slow_down(proxy: &FaultProxy) -> Counter {
    proxy.lag(Matcher::any().method("DELETE"), LAG, Times::UntilHealed)
}
