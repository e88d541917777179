//! Finds out whether the controllers have anything left to do, for `portreeve testenv`.
//!
//! A pass reads what each controller has to do, compares each watch with a fresh list, and reads
//! again what each controller has to do. It is clean if nothing is left and no item was taken from
//! a queue in between: then every queue was idle during the lists, and the controllers had observed
//! everything in them. Two clean passes in a row, without an item taken since the first began, are
//! settled.
//!
//! Retries count as left. Items that wait for a time, and objects that keep finalizers, do not:
//! only time or somebody else ends their wait.

use std::{collections::HashSet, sync::Arc, time::Duration};

use http::Request;
use kube::Client;
use parking_lot::RwLock;
use portreeve_api::{CRDS, Resource};
use portreeve_client::{ApiErrorKind, error_chain};
use portreeve_informer::{Comparison, Factory, Report, TerminatingObject};
use portreeve_reconcile::Activity;
use serde_json::Value;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout_at},
};

use crate::health::ManagerState;

/// The pauses between two passes that are not clean. Each is twice the last one.
const MIN_PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_millis(160);

/// Finds out whether the controllers have anything left to do. Cheap to clone.
#[derive(Clone)]
pub struct Settling {
    state: Arc<RwLock<ManagerState>>,
    informers: Factory,
    client: Client,
    /// The last comparison of the caches with the apiserver. Callers take turns, so that the
    /// requests of one pass at a time are in progress.
    comparison: Arc<Mutex<Comparison>>,
}

/// What the controllers have to do, and what they wait for.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Outstanding {
    /// What is left to do; empty once the controllers have settled.
    pub left: Vec<String>,
    /// What waits for a time, or for somebody to remove a finalizer.
    pub waiting: Vec<String>,
}

/// The result of one pass.
struct Pass {
    /// The number of items that had been taken before the pass, and after it.
    taken: (u64, u64),
    found: Outstanding,
}

impl Pass {
    fn is_clean(&self) -> bool {
        self.found.left.is_empty() && self.taken.0 == self.taken.1
    }
}

impl Settling {
    pub(crate) fn new(state: &Arc<RwLock<ManagerState>>, informers: Factory, client: Client) -> Self {
        Self {
            state: Arc::clone(state),
            informers,
            client,
            comparison: Arc::default(),
        }
    }

    /// Returns whether the workers of every controller run and every cache is synced. Resources
    /// that are not served are not waited for.
    pub fn is_ready(&self) -> bool {
        if !self.state.read().started {
            return false;
        }
        let mut reports = self.informers.reports().into_iter();
        reports.all(|report| report.synced || is_absent(&report)) && self.stopped().is_empty()
    }

    /// Waits until the controllers have settled, but at most for `limit`. Returns what was found
    /// last.
    pub async fn wait(&self, limit: Duration) -> Outstanding {
        let deadline = Instant::now() + limit;
        let mut found = Outstanding {
            left: vec![format!("no check was complete within {limit:?}")],
            waiting: Vec::new(),
        };
        let settled = timeout_at(deadline, self.settle(&mut found)).await;
        settled.unwrap_or(found)
    }

    /// Waits until the controllers have settled. Stores the result of each pass in `found`.
    async fn settle(&self, found: &mut Outstanding) -> Outstanding {
        let mut pause = MIN_PAUSE;
        // The number of items taken when the last pass began, if that pass was clean.
        let mut clean = None;
        loop {
            let mut pass = {
                let mut comparison = self.comparison.lock().await;
                self.pass(&mut comparison).await
            };
            let is_clean = pass.is_clean();
            if is_clean && clean == Some(pass.taken.1) {
                return pass.found;
            }
            clean = is_clean.then_some(pass.taken.0);
            if pass.found.left.is_empty() {
                let reason = if is_clean {
                    "nothing was left in the last check, and the next one was not complete"
                } else {
                    "controllers processed items during the last check"
                };
                pass.found.left.push(reason.to_owned());
            }
            *found = pass.found;
            if !is_clean {
                sleep(pause).await;
                pause = (pause * 2).min(MAX_PAUSE);
            }
        }
    }

    async fn pass(&self, comparison: &mut Comparison) -> Pass {
        let before = self.activities();
        self.informers.compare(comparison).await;
        let undiscovered = self.undiscovered(&before, &comparison.definitions).await;
        let after = self.activities();
        let mut left = self.stopped();
        left.extend(items(&after, |activity| &activity.left));
        // Work may have ended, and what follows from it may not have begun.
        left.extend(items(&before, |activity| &activity.left));
        left.sort();
        left.dedup();
        let lags = comparison.lags.iter();
        left.extend(lags.map(|(watch, lag)| format!("{watch}: {lag}")));
        left.extend(undiscovered);
        let mut waiting: Vec<_> = items(&after, |activity| &activity.waiting).collect();
        waiting.sort();
        waiting.extend(comparison.terminating.iter().map(describe));
        Pass {
            taken: (taken(&before), taken(&after)),
            found: Outstanding { left, waiting },
        }
    }

    /// Returns what each controller has to do.
    fn activities(&self) -> Vec<(&'static str, Activity)> {
        // The checkers take locks of the controllers, so the lock on the state is released before.
        let checkers = self.state.read().activity_checkers.clone();
        let activities = checkers.iter().map(|one| (one.controller, (one.check)()));
        activities.collect()
    }

    /// Returns the controllers whose workers do not run yet. If a resource is not served, they may
    /// wait for it for ever, so they do not count.
    fn stopped(&self) -> Vec<String> {
        if !self.state.read().started {
            return vec!["the controllers are being built".to_owned()];
        }
        let activities = self.activities().into_iter();
        let stopped = activities.filter(|(_, activity)| !activity.is_running);
        let stopped: Vec<_> = stopped
            .map(|(controller, _)| format!("{controller}: its workers have not started"))
            .collect();
        if self.informers.reports().iter().any(is_absent) {
            Vec::new()
        } else {
            stopped
        }
    }

    /// Returns the CustomResourceDefinitions whose resources are served, but are not known to a
    /// controller that follows discovery.
    async fn undiscovered(&self, activities: &[(&'static str, Activity)], definitions: &[Arc<str>]) -> Vec<String> {
        let mut undiscovered = Vec::new();
        for (controller, activity) in activities {
            let Some(served) = &activity.served else { continue };
            let known: HashSet<_> = served.preferred(&[]).map(Resource::crd_name).collect();
            for name in definitions.iter().filter(|name| !known.contains(&***name)) {
                match self.definition(name).await {
                    Ok(definition) => undiscovered.extend(
                        definition
                            .filter(is_served)
                            .map(|_| format!("{controller}: discovery does not show {name} yet")),
                    ),
                    Err(error) => {
                        let reason = error_chain(&error);
                        undiscovered.push(format!("{controller}: failed to read the definition {name}: {reason}"));
                    }
                }
            }
        }
        undiscovered
    }

    /// Returns the CustomResourceDefinition, if it exists.
    async fn definition(&self, name: &str) -> Result<Option<Value>, kube::Error> {
        let path = format!("{}/{name}", CRDS.collection_path(None));
        let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
        match self.client.request(request).await {
            Err(error) if ApiErrorKind::of(&error) == ApiErrorKind::NotFound => Ok(None),
            definition => definition.map(Some),
        }
    }
}

/// Returns these items of all controllers, each with the name of its controller.
fn items<'a>(
    activities: &'a [(&'static str, Activity)],
    of: fn(&Activity) -> &Vec<String>,
) -> impl Iterator<Item = String> + 'a {
    activities
        .iter()
        .flat_map(move |(controller, activity)| of(activity).iter().map(move |item| format!("{controller}: {item}")))
}

fn taken(activities: &[(&'static str, Activity)]) -> u64 {
    activities.iter().map(|(_, activity)| activity.taken).sum()
}

fn describe(object: &TerminatingObject) -> String {
    let TerminatingObject {
        resource,
        key,
        finalizers,
    } = object;
    format!(
        "{resource} {key} is being deleted and has the finalizers {}",
        finalizers.join(", ")
    )
}

/// Returns whether the apiserver serves the resource of a CustomResourceDefinition, or is about to.
fn is_served(definition: &Value) -> bool {
    let has =
        |items: &Value, accepts: fn(&Value) -> bool| items.as_array().is_some_and(|items| items.iter().any(accepts));
    has(&definition["status"]["conditions"], |condition| {
        condition["type"] == "Established" && condition["status"] == "True"
    }) && has(&definition["spec"]["versions"], |version| version["served"] == true)
}

/// Returns whether a cache waits for a resource that is not served.
fn is_absent(report: &Report) -> bool {
    let failure = report.failure.as_ref();
    !report.synced && failure.is_some_and(|failure| failure.kind == ApiErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_definition_is_served_once_it_is_established_and_has_a_served_version() {
        let definition = |established: &str, served: bool| {
            json!({
                "spec": {"versions": [{"name": "v1", "served": false}, {"name": "v2", "served": served}]},
                "status": {"conditions": [
                    {"type": "NamesAccepted", "status": "True"},
                    {"type": "Established", "status": established},
                ]},
            })
        };
        assert!(is_served(&definition("True", true)));
        assert!(!is_served(&definition("False", true)));
        assert!(!is_served(&definition("True", false)));
        assert!(!is_served(&json!({"spec": {}})), "it is new");
    }
}
