//! Which controllers wait for their CRDs, for health checks and metrics.

use std::collections::BTreeMap;

use tokio::sync::watch;

use super::obstacle::Obstacle;

/// The installations that are in progress. Cheap to clone.
///
/// By controller, the CRD that cannot be installed at present, if there is one. Bounded by the
/// number of controllers.
#[derive(Clone, Default)]
pub(crate) struct InstallProgress(watch::Sender<BTreeMap<&'static str, Option<Blocked>>>);

/// A CRD that cannot be installed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Blocked {
    pub(crate) definition: String,
    pub(crate) obstacle: Obstacle,
}

impl InstallProgress {
    /// Marks a controller as waiting for its CRDs.
    pub(crate) fn expect(&self, controller: &'static str) {
        self.0.send_modify(|waiting| {
            waiting.entry(controller).or_default();
        });
    }

    /// Returns whether a controller waits for CRDs that nothing is known to prevent.
    pub(crate) fn is_installing(&self) -> bool {
        self.0.borrow().values().any(Option::is_none)
    }

    /// Waits until every CRD is installed or known to be blocked.
    pub(crate) async fn settled(&self) {
        let mut waiting = self.0.subscribe();
        // The sender is part of `self`, so this cannot fail.
        let settled = waiting.wait_for(|waiting| waiting.values().all(Option::is_some));
        drop(settled.await);
    }

    /// Returns the CRDs that cannot be installed, each with the controllers that wait for it.
    pub(crate) fn blocked(&self) -> BTreeMap<String, (Obstacle, Vec<&'static str>)> {
        let mut found: BTreeMap<String, (Obstacle, Vec<_>)> = BTreeMap::new();
        for (controller, blocked) in &*self.0.borrow() {
            let Some(Blocked { definition, obstacle }) = blocked else {
                continue;
            };
            let (_, controllers) = found
                .entry(definition.clone())
                .or_insert_with(|| (obstacle.clone(), Vec::new()));
            controllers.push(*controller);
        }
        found
    }

    /// Marks a controller as waiting until the result is dropped.
    pub(super) fn wait(&self, controller: &'static str) -> Waiting {
        self.expect(controller);
        Waiting {
            controller,
            progress: self.clone(),
        }
    }
}

/// A controller that waits for its CRDs, until this is dropped.
pub(super) struct Waiting {
    controller: &'static str,
    progress: InstallProgress,
}

impl Waiting {
    pub(super) fn controller(&self) -> &'static str {
        self.controller
    }

    pub(super) fn is_blocked(&self) -> bool {
        matches!(self.progress.0.borrow().get(self.controller), Some(Some(_)))
    }

    /// Records what prevents the installation of a CRD. Returns whether this is another reason than
    /// before.
    pub(super) fn set(&self, definition: &str, obstacle: Option<Obstacle>) -> bool {
        let blocked = obstacle.map(|obstacle| Blocked {
            definition: definition.to_owned(),
            obstacle,
        });
        let reason = |blocked: &Option<Blocked>| blocked.as_ref().map(|blocked| blocked.obstacle.label());
        let after = reason(&blocked);
        let mut before = None;
        self.progress
            .0
            .send_modify(|waiting| before = waiting.insert(self.controller, blocked));
        before.is_none_or(|before| reason(&before) != after)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.progress.0.send_modify(|waiting| {
            waiting.remove(self.controller);
        });
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_crd_that_cannot_be_installed_names_all_controllers_that_wait() {
        let progress = InstallProgress::default();
        progress.expect("a");
        assert!(progress.is_installing() && progress.blocked().is_empty());
        let (a, b) = (progress.wait("a"), progress.wait("b"));
        assert!(a.set("foos", Some(Obstacle::Terminating)) && a.is_blocked());
        assert!(!a.set("foos", Some(Obstacle::Terminating)));
        assert!(progress.is_installing() && progress.settled().now_or_never().is_none());
        assert!(b.set("foos", Some(Obstacle::Terminating)));
        assert!(!progress.is_installing() && progress.settled().now_or_never().is_some());
        let expected = (Obstacle::Terminating, vec!["a", "b"]);
        assert_eq!(progress.blocked(), BTreeMap::from([("foos".to_owned(), expected)]));
        drop(b);
        assert!(a.set("foos", None) && progress.is_installing());
        drop(a);
        assert!(!progress.is_installing() && progress.blocked().is_empty());
    }
}
