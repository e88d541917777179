//! What the apiserver is asked: each object once at a time, whoever wants to know.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use portreeve_api::Scope;
use tokio::time::Instant;

use super::{Core, key_of, requests};
use crate::{Fact, Identity};

/// How long an answer stands. Thousands of dependents ask for their owner at once; who deletes by the answer must not go by an old one.
const FRESH: Duration = Duration::from_millis(50);
/// How long an answer may take. What cannot be told soon is asked again later: one slow API must not keep every worker.
const SOON: Duration = Duration::from_secs(5);
/// How many answers are kept before old ones are thrown away.
const MANY: usize = 1_024;

type Slot = Arc<tokio::sync::Mutex<Option<(Instant, Fact)>>>;

/// The answers of the last moment.
#[derive(Default)]
pub(super) struct Ledger(Mutex<HashMap<Identity, Slot>>);

impl Ledger {
    fn slot(&self, identity: &Identity) -> Slot {
        let mut slots = self.0.lock();
        if slots.len() >= MANY {
            slots.retain(|_, slot| {
                let is_used = Arc::strong_count(slot) > 1;
                is_used
                    || slot
                        .try_lock()
                        .is_ok_and(|slot| slot.as_ref().is_some_and(|(at, _)| at.elapsed() < FRESH))
            });
        }
        Arc::clone(slots.entry(identity.clone()).or_default())
    }
}

impl Core {
    /// What the apiserver says of an object, now or a moment ago. The graph is told of what is absent.
    pub(super) async fn ask(&self, identity: &Identity) -> Fact {
        let slot = self.ledger.slot(identity);
        let mut answer = slot.lock().await;
        if let Some((at, fact)) = &*answer
            && at.elapsed() < FRESH
            && !self.is_outdated(fact)
        {
            // Whoever was told before may have forgotten it: nothing referred to the owner any more.
            self.tell_absence(identity, fact);
            return fact.clone();
        }
        let fact = self.read(identity).await;
        *answer = Some((Instant::now(), fact.clone()));
        fact
    }

    /// Whether a watch has shown the object since.
    fn is_outdated(&self, fact: &Fact) -> bool {
        matches!(fact, Fact::Alive(seen) if self.graph.lock().is_newer_than(seen))
    }

    /// Tells the graph of what is absent.
    fn tell_absence(&self, identity: &Identity, fact: &Fact) {
        if *fact != Fact::Absent {
            return;
        }
        let mut absent = identity.clone();
        if self
            .resource(identity)
            .is_some_and(|resource| resource.scope == Scope::Cluster)
        {
            absent.namespace = None;
        }
        self.change(|graph, effects| graph.absent(&absent, effects));
    }

    /// What the apiserver says of an object now.
    pub(super) async fn read(&self, identity: &Identity) -> Fact {
        let Some(resource) = self.resource(identity) else {
            return Fact::Unknown;
        };
        if resource.scope == Scope::Namespaced && identity.namespace.is_none() {
            return Fact::Misplaced;
        }
        let key = key_of(&resource, identity);
        let answer = tokio::time::timeout(SOON, requests::get(&self.client, &resource, &key)).await;
        let fact = match answer {
            Ok(Ok(Some(seen))) if seen.metadata.uid == identity.uid => Fact::Alive(Box::new(seen)),
            // What is no object of that name is nothing to go by.
            Ok(Ok(Some(seen))) if seen.metadata.uid.is_empty() || seen.metadata.name != identity.name => Fact::Unknown,
            Ok(Ok(_)) => Fact::Absent,
            Ok(Err(error)) => {
                tracing::debug!(%identity, reason = error.to_string(), "failed to ask for an object");
                Fact::Unknown
            }
            Err(_) => {
                tracing::debug!(%identity, "the apiserver took too long to tell of an object");
                Fact::Unknown
            }
        };
        self.tell_absence(identity, &fact);
        fact
    }
}
