//! What the apiserver is asked: each object once at a time, whoever wants to know.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use portreeve_api::Scope;
use tokio::time::Instant;

use super::{CollectorContext, key_of, requests};
use crate::{Identity, ReadResult};

/// How long an answer stands. Thousands of dependents ask for their owner at once; who deletes by the answer must not go by an old one.
const FRESH: Duration = Duration::from_millis(50);
/// How long an answer may take. What cannot be told soon is asked again later: one slow API must not keep every worker.
const SOON: Duration = Duration::from_secs(5);
/// How many answers are kept before old ones are thrown away.
const MANY: usize = 1_024;

type Slot = Arc<tokio::sync::Mutex<Option<(Instant, ReadResult)>>>;

/// The answers of the last moment.
#[derive(Default)]
pub(super) struct RequestCoalescer(Mutex<HashMap<Identity, Slot>>);

impl RequestCoalescer {
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

impl CollectorContext {
    /// What the apiserver says of an object, now or a moment ago. The graph is told of what is absent.
    pub(super) async fn read_coalesced(&self, identity: &Identity) -> ReadResult {
        let slot = self.coalescer.slot(identity);
        let mut answer = slot.lock().await;
        if let Some((at, fact)) = &*answer
            && at.elapsed() < FRESH
            && !self.is_outdated(fact)
        {
            // Whoever was told before may have forgotten it: nothing referred to the owner any more.
            self.tell_absence(identity, fact);
            return fact.clone();
        }
        let fact = self.read_live(identity).await;
        *answer = Some((Instant::now(), fact.clone()));
        fact
    }

    /// Whether a watch has shown the object since.
    fn is_outdated(&self, fact: &ReadResult) -> bool {
        matches!(fact, ReadResult::Found(seen) if self.graph.lock().is_newer_than(seen))
    }

    /// Tells the graph of what is absent.
    fn tell_absence(&self, identity: &Identity, fact: &ReadResult) {
        if *fact != ReadResult::Absent {
            return;
        }
        let mut absent = identity.clone();
        if self
            .resource(identity)
            .is_some_and(|resource| resource.scope == Scope::Cluster)
        {
            absent.namespace = None;
        }
        self.change(|graph, follow_ups| graph.mark_absent(&absent, follow_ups));
    }

    /// What the apiserver says of an object now.
    pub(super) async fn read_live(&self, identity: &Identity) -> ReadResult {
        let Some(resource) = self.resource(identity) else {
            return ReadResult::Unknown;
        };
        if resource.scope == Scope::Namespaced && identity.namespace.is_none() {
            return ReadResult::Misplaced;
        }
        let key = key_of(&resource, identity);
        let answer = tokio::time::timeout(SOON, requests::get(&self.client, &resource, &key)).await;
        let fact = match answer {
            Ok(Ok(Some(seen))) if seen.metadata.uid == identity.uid => ReadResult::Found(Box::new(seen)),
            // What is no object of that name is nothing to go by.
            Ok(Ok(Some(seen))) if seen.metadata.uid.is_empty() || seen.metadata.name != identity.name => {
                ReadResult::Unknown
            }
            Ok(Ok(_)) => ReadResult::Absent,
            Ok(Err(error)) => {
                tracing::debug!(%identity, reason = error.to_string(), "failed to ask for an object");
                ReadResult::Unknown
            }
            Err(_) => {
                tracing::debug!(%identity, "the apiserver took too long to tell of an object");
                ReadResult::Unknown
            }
        };
        self.tell_absence(identity, &fact);
        fact
    }
}
