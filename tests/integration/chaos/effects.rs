//! The executable is killed after an effect of each controller and started again; in `make chaos`,
//! after every effect.
//!
//! The audit log shows that the apiserver executed the effect, but the response is lost. The
//! controllers' own tests of `decide` do the same within a process, for many more plans.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use portreeve_testing::{ControlPlane, Fault, FaultProxy, Matcher, PooledPlane, Repeat, Signal, eventually};

use super::scenario::Account;
use crate::{
    audit::{AuditLog, Event, policy},
    fixtures::{
        LIMIT,
        daemon::{ALL_CONTROLLERS, Daemon, PROMPT_NAMESPACES},
        rounds::is_exhaustive,
    },
    registry::{self, PendingWork},
};

/// The maximum number of kills, far more than there are effects.
const MAX_KILLS: usize = 100;
/// The minimum number of kills after the first effect of each controller. Fewer mean that a kill
/// came after several effects.
const MIN_KILLS: usize = 12;

/// Returns the daemon's writes so far in the namespaces and to the cluster-scoped objects whose
/// names begin with this, in order, including rejected ones.
fn effects(plane: &ControlPlane, namespace: &str) -> Result<Vec<Event>> {
    let mut writes = AuditLog::of(plane)?.events_since(0)?;
    writes.retain(|write| write.is_of_daemon() && write.namespace_or_name().starts_with(namespace));
    Ok(writes)
}

/// A daemon that is killed, and the work that it leaves.
struct Mortal {
    plane: PooledPlane,
    proxy: FaultProxy,
    kubeconfig: PathBuf,
    work: PendingWork,
}

impl Mortal {
    async fn new() -> Result<Self> {
        let plane = ControlPlane::builder().audit_policy(policy::WRITES).pooled().await?;
        let proxy = FaultProxy::start(&plane).await?;
        let Account { kubeconfig, .. } = Account::of(&plane, &proxy, &[]).await?;
        // A first daemon installs the CRDs, so that the custom resources can be created before the
        // next one starts.
        let daemon = start(&plane, &kubeconfig).await?;
        daemon.admin.wait_until_ready().await?;
        kill(daemon).await?;
        let work = PendingWork::create(&plane, "killed").await?;
        Ok(Self {
            plane,
            proxy,
            kubeconfig,
            work,
        })
    }

    /// Starts a daemon and kills it after the first effect of this controller, or of any. No other
    /// effect happens until then. Returns the effect.
    async fn kill_after(&self, controller: Option<&str>) -> Result<Event> {
        let before = effects(&self.plane, self.work.fixture.name())?.len();
        let writes = || Matcher::writes().namespaces_with(self.work.fixture.name());
        let first = controller.map_or_else(writes, |name| writes().user_agent(name));
        let done = self.proxy.fault(first, Fault::DropResponse, Repeat::Nth(1));
        self.proxy.fault(writes(), Fault::Cut, Repeat::UntilHealed);
        let daemon = start(&self.plane, &self.kubeconfig).await?;
        let killed = done.wait_for_applied(1, LIMIT).await;
        killed.with_context(|| daemon.process.log_tail())?;
        let effect = eventually(LIMIT, "the effect in the audit log", || async {
            let effects = effects(&self.plane, self.work.fixture.name())?;
            effects.get(before).cloned().context("the effect is missing")
        })
        .await?;
        println!("killed after {effect}");
        kill(daemon).await?;
        self.proxy.heal();
        Ok(effect)
    }

    /// Kills a daemon after each further effect, until all work is done.
    async fn kill_after_each_effect(&self) -> Result<()> {
        for kills in 0..MAX_KILLS {
            tokio::select! {
                biased;
                killed = self.kill_after(None) => drop(killed?),
                finished = self.work.wait_until_done() => {
                    self.proxy.heal();
                    finished?;
                    ensure!(kills >= MIN_KILLS, "only {kills} further kills");
                    println!("killed {kills} more times");
                    return Ok(());
                }
            }
        }
        let effects = effects(&self.plane, self.work.fixture.name())?;
        let last: Vec<_> = effects.iter().rev().take(10).map(ToString::to_string).collect();
        bail!("the work was not done after {MAX_KILLS} kills; the last writes: {last:#?}")
    }

    /// Lets a daemon do what is left.
    async fn finish(self) -> Result<()> {
        let daemon = start(&self.plane, &self.kubeconfig).await?;
        let done = self.work.wait_until_done().await;
        done.with_context(|| daemon.process.log_tail())?;
        self.work.verify().await?;
        ensure!(!daemon.log()?.contains("panicked"), "{}", daemon.process.log_tail());
        AuditLog::of(&self.plane)?.check_effects()
    }
}

async fn start(plane: &ControlPlane, kubeconfig: &Path) -> Result<Daemon> {
    let flags = [&[&*ALL_CONTROLLERS, "--install-crds"], &PROMPT_NAMESPACES[..]].concat();
    Daemon::start_as(plane, kubeconfig, "mortal", &flags).await
}

async fn kill(daemon: Daemon) -> Result<()> {
    daemon.process.signal(Signal::KILL)?;
    daemon.process.wait(LIMIT).await?;
    Ok(())
}

#[tokio::test]
async fn a_daemon_killed_after_its_effects_completes_its_work_without_duplicates() -> Result<()> {
    let mortal = Mortal::new().await?;
    for controller in registry::names() {
        let effect = mortal.kill_after(Some(controller)).await.context(controller)?;
        ensure!(
            effect.user_agent.ends_with(controller),
            "{effect} is not of {controller}"
        );
    }
    if is_exhaustive() {
        mortal.kill_after_each_effect().await?;
    }
    mortal.finish().await
}
