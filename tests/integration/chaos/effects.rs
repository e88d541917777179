//! The executable is killed after each single effect and started again, until all work is done.
//!
//! The audit log shows that the apiserver executed the effect, but the response is lost. The
//! controllers' own tests of `decide` do the same within a process, for many more plans.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use portreeve_testing::{ControlPlane, Fault, FaultProxy, Matcher, Repeat, Signal, eventually};

use super::scenario::Account;
use crate::{
    audit::{AuditLog, Event, policy},
    fixtures::{
        LIMIT,
        daemon::{ALL_CONTROLLERS, Daemon, PROMPT_NAMESPACES},
        namespace::NamespaceFixture,
    },
    profile::{self, Expected},
    registry::{self, PROFILES},
};

/// The maximum number of kills, far more than there are effects.
const MAX_KILLS: usize = 100;

/// Work for every controller, created before the daemon starts.
struct PendingWork {
    fixture: NamespaceFixture,
    /// The state that each controller must reach, by name.
    expected: Vec<(&'static str, Box<dyn Expected>)>,
}

impl PendingWork {
    async fn build(plane: &ControlPlane) -> Result<Self> {
        let fixture = NamespaceFixture::new(plane, "killed").await?;
        let mut expected = Vec::new();
        for profile in PROFILES {
            let name = profile.descriptor.name;
            expected.push((name, (profile.pending)(fixture.clone()).await.context(name)?));
        }
        Ok(Self { fixture, expected })
    }

    fn expected(&self) -> Vec<(&'static str, &dyn Expected)> {
        let expected = self.expected.iter();
        expected.map(|(name, expected)| (*name, &**expected)).collect()
    }
}

/// Returns the daemon's writes so far in the namespaces and to the cluster-scoped objects whose
/// names begin with this, in order, including rejected ones.
fn effects(plane: &ControlPlane, namespace: &str) -> Result<Vec<Event>> {
    let mut writes = AuditLog::of(plane)?.events_since(0)?;
    writes.retain(|write| write.is_of_daemon() && write.namespace_or_name().starts_with(namespace));
    Ok(writes)
}

#[tokio::test]
async fn a_daemon_killed_after_each_effect_completes_its_work_without_duplicates() -> Result<()> {
    let plane = ControlPlane::builder().audit_policy(policy::WRITES).pooled().await?;
    let proxy = FaultProxy::start(&plane).await?;
    let Account { kubeconfig, .. } = Account::of(&plane, &proxy, &[]).await?;
    let flags = [&[&*ALL_CONTROLLERS, "--install-crds"], &PROMPT_NAMESPACES[..]].concat();
    // A first daemon installs the CRDs, so that the custom resources can be created before
    // the next one starts.
    let daemon = Daemon::start_as(&plane, &kubeconfig, "mortal", &flags).await?;
    daemon.admin.wait_until_ready().await?;
    daemon.process.signal(Signal::KILL)?;
    daemon.process.wait(LIMIT).await?;
    let pending_work = PendingWork::build(&plane).await?;
    let expected = pending_work.expected();
    let mut killed_controllers = BTreeSet::new();
    for kills in 0..MAX_KILLS {
        let before = effects(&plane, pending_work.fixture.name())?.len();
        let write = || Matcher::writes().namespaces_with(pending_work.fixture.name());
        let done = proxy.fault(write(), Fault::DropResponse, Repeat::Nth(1));
        // Cut the writes that other workers send until the daemon is killed.
        proxy.fault(write(), Fault::Cut, Repeat::UntilHealed);
        let daemon = Daemon::start_as(&plane, &kubeconfig, "mortal", &flags).await?;
        tokio::select! {
            biased;
            killed = done.wait_for_applied(1, LIMIT) => {
                killed.with_context(|| daemon.process.log_tail())?;
                let effect = eventually(LIMIT, "the effect in the audit log", || async {
                    effects(&plane, pending_work.fixture.name())?.get(before).cloned().context("the effect is missing")
                })
                .await?;
                println!("killed after {effect}");
                killed_controllers.extend(registry::names().find(|name| effect.user_agent.ends_with(name)));
                daemon.process.signal(Signal::KILL)?;
                daemon.process.wait(LIMIT).await?;
                proxy.heal();
            }
            finished = profile::wait_until_done(&expected), if kills > 0 => {
                finished.with_context(|| daemon.process.log_tail())?;
                println!("killed {kills} times");
                // The work needs at least these effects: a Deployment and a status, Jobs and
                // statuses, deletions and patches.
                ensure!(kills >= 12, "only {kills} kills");
                ensure!(
                    killed_controllers.len() == portreeve_cli::CONTROLLERS.len(),
                    "only {killed_controllers:?} were killed after an effect"
                );
                proxy.heal();
                profile::verify(&expected).await?;
                ensure!(!daemon.log()?.contains("panicked"), "{}", daemon.process.log_tail());
                return AuditLog::of(&plane)?.check_effects();
            }
        }
    }
    let writes = effects(&plane, pending_work.fixture.name())?;
    let last: Vec<_> = writes.iter().rev().take(20).map(Event::to_string).collect();
    bail!("the work was not done after {MAX_KILLS} kills; the last writes were {last:#?}");
}
