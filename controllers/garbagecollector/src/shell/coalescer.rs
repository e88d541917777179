//! Coalesces reads: concurrent reads of one object share one request.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use portreeve_api::{Resource, Scope};
use portreeve_garbagecollector_graph::{Graph, Identity, ReadResult};
use tokio::time::Instant;

use super::{CollectorContext, key_of, requests};

/// How long an answer is reused. Thousands of dependents may ask for their owner at once, but a
/// deletion must not rely on an old answer.
const FRESH: Duration = Duration::from_millis(50);
/// The number of answers above which old ones are dropped.
const MANY: usize = 1_024;

type Slot = Arc<tokio::sync::Mutex<Option<(Instant, ReadResult)>>>;

/// The most recent answers, by object.
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
    /// Reads an object from the apiserver, or reuses an answer younger than [`FRESH`]. Records in
    /// the graph if the object is absent.
    pub(super) async fn read_coalesced(&self, identity: &Identity) -> ReadResult {
        let slot = self.coalescer.slot(identity);
        let mut answer = slot.lock().await;
        if let Some((at, fact)) = &*answer
            && at.elapsed() < FRESH
            && !self.is_outdated(fact)
        {
            // The graph may have dropped the proof since, while nothing referred to the owner.
            self.tell_absence(identity, fact);
            return fact.clone();
        }
        let fact = self.read_live(identity).await;
        *answer = Some((Instant::now(), fact.clone()));
        fact
    }

    /// Returns whether a watch has reported the object in a later version.
    fn is_outdated(&self, fact: &ReadResult) -> bool {
        matches!(fact, ReadResult::Found(seen) if self.graph.lock().is_newer_than(seen))
    }

    /// Records an absent object in the graph.
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

    /// Lets only one object read the resource, until that succeeds.
    fn close_gate(&self, resource: &Resource, reason: &str) {
        if self.read_gates.close(resource) {
            tracing::warn!(%resource, reason, "failed to read objects of the resource; one of them probes it");
        }
    }

    /// Reads an object from the apiserver now.
    pub(super) async fn read_live(&self, identity: &Identity) -> ReadResult {
        let Some(resource) = self.resource(identity) else {
            // That a kind is not served proves nothing about its objects: they may be in etcd, and
            // be served again.
            return ReadResult::Unknown;
        };
        if resource.scope == Scope::Namespaced && identity.namespace.is_none() {
            return ReadResult::Misplaced;
        }
        let key = key_of(&resource, identity);
        let known = self.graph.lock().observed_version(&identity.uid);
        let fact = match requests::get(&self.client, &resource, &key).await {
            Ok(Some(seen)) if seen.metadata.uid == identity.uid => ReadResult::Found(Box::new(seen)),
            // A response that is not an object of that name proves nothing.
            Ok(Some(seen)) if seen.metadata.uid.is_empty() || seen.metadata.name != identity.name => {
                ReadResult::Unknown
            }
            Ok(_) => ReadResult::Absent,
            Err(error) => {
                if error.concerns_resource() || error.is_transient() && !self.outage.is_outage() {
                    self.close_gate(&resource, &error.to_string());
                }
                tracing::debug!(%identity, reason = error.to_string(), "failed to read object");
                ReadResult::Unknown
            }
        };
        if matches!(fact, ReadResult::Found(_) | ReadResult::Absent) && self.read_gates.open(&resource) {
            tracing::info!(%resource, "resumed reading objects of the resource");
            self.retry_unknown();
        }
        if let (ReadResult::Found(seen), Some((monitor, known))) = (&fact, known)
            && Graph::has_decreased(known, &seen.metadata.resource_version)
        {
            self.versions_decreased(Some(monitor), &resource.to_string());
        }
        self.tell_absence(identity, &fact);
        fact
    }
}
