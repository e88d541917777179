//! Simulates the apiserver's objects, a leader that can be replaced at any step by one with another
//! clock, and clients that must trust the served certificate throughout.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use serde_json::Value;

use super::super::*;
use crate::{
    publish::{self, ObservedBundle},
    waits::Memory,
};

pub(super) const MINUTE: SignedDuration = SignedDuration::from_mins(1);
pub(super) const HOUR: SignedDuration = SignedDuration::from_hours(1);
pub(super) const DAY: SignedDuration = SignedDuration::from_hours(24);
const START: &str = "2026-01-01T00:00:00Z";

/// A bundle: its location, and the name of the webhook.
type BundleName = (usize, String);

/// The leader, with what it remembers.
#[derive(Default)]
struct Leader {
    /// How far its clock is ahead.
    offset: SignedDuration,
    memory: Memory,
}

/// The cluster, and the invariants of its clients.
pub(super) struct Cluster {
    /// The true time.
    pub(super) now: Timestamp,
    started: (Timestamp, Instant),
    /// The content of the Secret, if it exists.
    pub(super) secret: Option<BTreeMap<String, String>>,
    secret_version: u64,
    /// The objects that publish CAs. `Null` if one does not exist.
    pub(super) objects: Vec<(BundleLocation, Value)>,
    /// The locations that the leader may not write.
    pub(super) forbidden: BTreeSet<usize>,
    pub(super) settings: Settings,
    leader: Leader,
    /// The certificates that replicas have served, the current one last.
    served: Vec<Certificate>,
    /// Since when each bundle contains each CA, without an interruption.
    published: BTreeMap<(BundleName, String), Timestamp>,
    /// The certificates that each bundle trusts.
    trusted: BTreeSet<(BundleName, String)>,
    /// The reasons and messages of events.
    pub(super) events: Vec<String>,
    /// The number of CAs that the leaders have created.
    pub(super) authorities: usize,
}

impl Cluster {
    /// Returns an empty Secret and objects without bundles.
    pub(super) fn new() -> Self {
        let now = START.parse().unwrap();
        let definition = json!({ "spec": { "conversion": {
            "strategy": "Webhook",
            "webhook": { "clientConfig": { "service": {} } },
        } } });
        let webhooks = json!({ "webhooks": [
            { "name": "a", "clientConfig": { "service": {} } },
            { "name": "b", "clientConfig": { "service": {} } },
        ] });
        let located = |text: &str| BundleLocation::parse(text).unwrap();
        Self {
            now,
            started: (now, Instant::now()),
            secret: Some(BTreeMap::new()),
            secret_version: 2,
            objects: vec![
                (
                    BundleLocation::config_map(ObjectKey::namespaced("system", "ca")),
                    json!({}),
                ),
                (located("validatingwebhookconfigurations/hooks"), webhooks),
                (located("customresourcedefinitions/foos"), definition),
            ],
            forbidden: BTreeSet::new(),
            settings: Settings {
                names: BTreeSet::from(["portreeve.system.svc".to_owned()]),
                grace_period: MINUTE,
                authority_lifetime: DAY * 365,
                certificate_lifetime: DAY * 30,
            },
            leader: Leader::default(),
            served: Vec::new(),
            published: BTreeMap::new(),
            trusted: BTreeSet::new(),
            events: Vec::new(),
            authorities: 0,
        }
    }

    /// Returns a cluster in which the first certificate is served.
    pub(super) fn issued() -> Self {
        let mut cluster = Self::new();
        cluster.settle();
        cluster
    }

    /// Replaces the leader by one whose clock is ahead by this much.
    pub(super) fn replace_leader(&mut self, offset: SignedDuration) {
        self.leader = Leader {
            offset,
            memory: Memory::default(),
        };
    }

    /// Returns the time by the leader's clock.
    pub(super) fn leader_time(&self) -> Timestamp {
        self.now + self.leader.offset
    }

    pub(super) fn cached_secret(&self) -> Option<Arc<CachedSecret>> {
        let metadata = json!({
            "namespace": "system", "name": "serving", "uid": "uid",
            "resourceVersion": self.secret_version.to_string(),
        });
        let secret = json!({ "metadata": metadata, "data": self.secret.as_ref()? });
        Some(Arc::new(serde_json::from_value(secret).unwrap()))
    }

    fn cached_bundle(&self, index: usize) -> Option<Arc<CachedBundle>> {
        let mut object = self.objects[index].1.clone();
        if object.is_null() {
            return None;
        }
        object["metadata"] = json!({ "uid": "uid", "resourceVersion": "7" });
        Some(Arc::new(serde_json::from_value(object).unwrap()))
    }

    /// Returns what the leader observes about the Secret.
    pub(super) fn observed(&mut self) -> Observed {
        let (start, instant) = self.started;
        let elapsed = self.now.duration_since(start).unsigned_abs();
        let secret = self.cached_secret();
        let locations = self.objects.iter().map(|(location, _)| location.clone()).enumerate();
        let bundles: Vec<_> = locations
            .map(|(index, location)| (location, self.cached_bundle(index)))
            .collect();
        let state = secret_state(secret.as_deref(), &bundles);
        Observed {
            key: ObjectKey::namespaced("system", "serving"),
            secret,
            bundles,
            settings: self.cached_settings(),
            waits: self.leader.memory.update(state, instant + elapsed),
            fresh: FreshKeys::generate(),
            server_offset: Some(-self.leader.offset),
        }
    }

    fn cached_settings(&self) -> Arc<Settings> {
        Arc::new(Settings {
            names: self.settings.names.clone(),
            ..self.settings
        })
    }

    /// Returns the number of keys in the queue: the Secret, and each object that publishes CAs.
    pub(super) fn keys(&self) -> usize {
        1 + self.objects.len()
    }

    /// Decides about one key.
    pub(super) fn plan(&mut self, key: usize) -> Plan {
        if key == 0 {
            return decide(&self.observed(), self.leader_time());
        }
        let observed = ObservedBundle {
            location: self.objects[key - 1].0.clone(),
            cached: self.cached_bundle(key - 1),
            secret: self.cached_secret(),
            settings: self.cached_settings(),
        };
        publish::decide(&observed, self.leader_time())
    }

    /// Applies a plan, and checks the invariants. Returns whether an object was written.
    pub(super) fn apply(&mut self, plan: &Plan) -> bool {
        let mut is_changed = false;
        for effect in &plan.effects {
            match effect {
                Effect::Event(_, content) => {
                    self.authorities += usize::from(content.reason == "CreatedCA");
                    self.events.push(format!("{}: {}", content.reason, content.message));
                }
                Effect::Apply { object, version, .. } if object.resource == SECRETS => {
                    let expected = self.secret.as_ref().map(|_| self.secret_version.to_string());
                    assert_eq!(**version, expected.unwrap_or_else(|| ABSENT.to_owned()));
                    self.secret = Some(serde_json::from_value(object.body["data"].clone()).unwrap());
                    self.secret_version += 1;
                    is_changed = true;
                    self.serve();
                }
                Effect::Apply { object, .. } => {
                    let found = self.objects.iter().position(|(location, _)| location.key == object.key);
                    let index = found.unwrap();
                    if self.forbidden.contains(&index) {
                        break;
                    }
                    merge(&mut self.objects[index].1, &object.body);
                    is_changed = true;
                }
                effect => panic!("{effect}"),
            }
            self.check();
        }
        is_changed
    }

    /// Decides and writes until nothing changes. Returns when the next decision is due, if it is.
    pub(super) fn settle(&mut self) -> Option<Timestamp> {
        for _ in 0..10 {
            let mut is_changed = false;
            let mut next = None;
            for key in 0..self.keys() {
                let plan = self.plan(key);
                is_changed |= self.apply(&plan);
                if let Next::At(time) = plan.next {
                    assert!(time > self.leader_time(), "{plan} at {}", self.leader_time());
                    next = Some(next.map_or(time, |next: Timestamp| next.min(time)));
                }
            }
            if !is_changed {
                return next.map(|next| next - self.leader.offset);
            }
        }
        panic!("the decisions never end: {:?}", self.plan(0).to_string());
    }

    /// Settles, and lets time pass until the next decision is due.
    pub(super) fn run_to_next(&mut self) {
        self.now = self.settle().unwrap();
        self.check();
        self.settle();
    }

    /// Lets the replicas serve what is in the Secret. They keep the previous certificate if it
    /// cannot be used.
    fn serve(&mut self) {
        let secret = self.cached_secret().unwrap();
        let Some(certificate) = Certificate::read_all(&secret.text(CERTIFICATE)).pop() else {
            return;
        };
        let is_usable = has_key(&certificate, &secret.text(CERTIFICATE_KEY)) && certificate.is_valid(self.now);
        let last = self.served.last();
        if !is_usable || last.is_some_and(|last| last.pem == certificate.pem) {
            return;
        }
        self.served.push(certificate);
    }

    /// Ensures that all clients had the CA of the certificate that is served for the grace period.
    pub(super) fn ensure_grace_period(&mut self) {
        self.check();
        let stored = self.stored();
        let signer = stored.iter().find(|authority| self.served().is_signed_by(authority));
        let signer = signer.unwrap();
        for name in self.bundles().into_keys() {
            let since = self.published[&(name.clone(), signer.pem.clone())];
            let waited = self.now.duration_since(since);
            assert!(waited >= self.settings.grace_period, "{name:?} trusts it for {waited}");
        }
    }

    /// Returns the bundles of all objects.
    pub(super) fn bundles(&self) -> BTreeMap<BundleName, String> {
        let mut all = BTreeMap::new();
        for (index, (location, object)) in self.objects.iter().enumerate() {
            let Some(cached) = self.cached_bundle(index) else {
                continue;
            };
            for (position, bundle) in location.bundles(&cached).into_iter().enumerate() {
                let name = object["webhooks"][position]["name"].as_str().unwrap_or_default();
                all.insert((index, name.to_owned()), bundle);
            }
        }
        all
    }

    /// Checks that clients trust the certificate that is served, and that the CA of each that was
    /// served stays until it has expired. A bundle that is empty was not written by the leader.
    pub(super) fn check(&mut self) {
        let bundles = self.bundles();
        let (mut published, mut trusted) = (BTreeMap::new(), BTreeSet::new());
        for (name, bundle) in bundles.iter().filter(|(_, bundle)| !bundle.is_empty()) {
            let authorities = Certificate::read_all(bundle);
            assert!(!authorities.is_empty() && authorities.len() <= MAX_AUTHORITIES);
            for authority in &authorities {
                let id = (name.clone(), authority.pem.clone());
                let since = self.published.get(&id).copied().unwrap_or(self.now);
                published.insert(id, since);
            }
            for certificate in self.served.iter().filter(|served| self.now < served.not_after) {
                let is_trusted = authorities.iter().any(|authority| certificate.is_signed_by(authority));
                let id = (name.clone(), certificate.pem.clone());
                let is_lost = !is_trusted && self.trusted.contains(&id);
                assert!(!is_lost, "{name:?} lost the CA before {}", certificate.not_after);
                trusted.extend(is_trusted.then_some(id));
            }
        }
        if let Some(current) = self.served.last().filter(|current| self.now < current.not_after) {
            for (name, bundle) in &bundles {
                let is_trusted = trusted.contains(&(name.clone(), current.pem.clone()));
                let is_exempt = bundle.is_empty() || self.forbidden.contains(&name.0);
                assert!(
                    is_trusted || is_exempt,
                    "{name:?} does not trust the certificate at {}",
                    self.now
                );
            }
        }
        (self.published, self.trusted) = (published, trusted);
    }

    /// Returns the certificate that is served.
    pub(super) fn served(&self) -> &Certificate {
        self.served.last().unwrap()
    }

    pub(super) fn text(&self, key: &str) -> String {
        self.cached_secret().map(|secret| secret.text(key)).unwrap_or_default()
    }

    pub(super) fn set(&mut self, key: &str, text: &str) {
        let secret = self.secret.as_mut().unwrap();
        secret.insert(key.to_owned(), BASE64.encode(text.as_bytes()));
    }

    /// Returns the CAs in the Secret.
    pub(super) fn stored(&self) -> Vec<Certificate> {
        Certificate::read_all(&self.text(AUTHORITIES))
    }

    /// Empties the bundles of an object, as another writer might.
    pub(super) fn wipe(&mut self, index: usize) {
        if self.objects[index].1.is_null() {
            return;
        }
        let names: Vec<_> = self
            .bundles()
            .into_keys()
            .filter(|(location, _)| *location == index)
            .collect();
        merge_all(&mut self.objects[index].1, "");
        self.trusted.retain(|(name, _)| !names.contains(name));
        self.published.retain(|(name, _), _| !names.contains(name));
    }
}

/// Merges the body of an apply, which must contain nothing but bundles.
fn merge(object: &mut Value, body: &Value) {
    let config = |value: &Value| value["clientConfig"]["caBundle"].as_str().unwrap().to_owned();
    if let Some(webhooks) = body["webhooks"].as_array() {
        for webhook in webhooks {
            let stored = object["webhooks"].as_array_mut().unwrap().iter_mut();
            let mut stored = stored.filter(|stored| stored["name"] == webhook["name"]);
            let stored = stored.next().expect("the webhook was removed");
            stored["clientConfig"]["caBundle"] = config(webhook).into();
        }
    } else if body["spec"].is_object() {
        let conversion = &mut object["spec"]["conversion"];
        assert_eq!(conversion["strategy"], "Webhook");
        let bundle = config(&body["spec"]["conversion"]["webhook"]);
        conversion["webhook"]["clientConfig"]["caBundle"] = bundle.into();
    } else {
        object["data"][AUTHORITIES] = body["data"][AUTHORITIES].clone();
    }
}

/// Sets all bundles of an object.
fn merge_all(object: &mut Value, bundle: &str) {
    if let Some(webhooks) = object["webhooks"].as_array_mut() {
        for webhook in webhooks {
            webhook["clientConfig"]["caBundle"] = bundle.into();
        }
    } else if object["spec"].is_object() {
        object["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"] = bundle.into();
    } else {
        object["data"] = json!({ AUTHORITIES: bundle });
    }
}
