//! A model of the apiserver for the plans of a Foo. It rejects the writes that the real one
//! rejects.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use portreeve_reconcile::{Effect, Plan};
use serde_json::{Value, json};

use crate::decide::{Observed, decide};

/// One Foo, the Deployments of its namespace, and the effects that were executed.
#[derive(Clone, Debug)]
pub(super) struct Simulation {
    pub(super) foo: Value,
    deployments: BTreeMap<String, Value>,
    version: u32,
    done: Vec<String>,
}

/// The outcome of an effect.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Outcome {
    Done,
    /// A 409 or 404: observe and decide again.
    Rejected,
}

impl Simulation {
    pub(super) fn with_foo(mut foo: Value) -> Self {
        foo["metadata"]["resourceVersion"] = "1".into();
        Self {
            foo,
            deployments: BTreeMap::new(),
            version: 1,
            done: Vec::new(),
        }
    }

    /// Somebody else creates a Deployment.
    pub(super) fn add(&mut self, name: &str, mut body: Value) {
        body["metadata"]["namespace"] = "n".into();
        body["metadata"]["name"] = name.into();
        let spec = body.get("spec").cloned().unwrap_or_else(|| json!({}));
        body["spec"] = spec;
        self.insert(name, body);
    }

    /// Somebody else sets one field of a Deployment.
    pub(super) fn change(&mut self, name: &str, pointer: &str, value: Value) {
        let version = self.next_version();
        let deployment = self.deployments.get_mut(name).expect("the Deployment exists");
        let (parent, field) = pointer.rsplit_once('/').expect("a JSON pointer");
        let parent = deployment.pointer_mut(parent).expect("the field's parent exists");
        parent[field] = value;
        deployment["metadata"]["resourceVersion"] = version.into();
    }

    /// Somebody else deletes a Deployment.
    pub(super) fn remove(&mut self, name: &str) {
        assert!(self.deployments.remove(name).is_some(), "{name} must exist");
    }

    /// Somebody else changes the Foo's spec, or creates another Foo of the same name.
    pub(super) fn write_foo(&mut self, change: impl FnOnce(&mut Value)) {
        change(&mut self.foo);
        self.foo["metadata"]["resourceVersion"] = self.next_version().into();
    }

    /// Returns the Deployments by name.
    pub(super) fn deployments(&self) -> &BTreeMap<String, Value> {
        &self.deployments
    }

    /// Returns what a process with stale caches observes: the Foo and the Deployments of two
    /// earlier states.
    pub(super) fn observed_through(&self, foos: &Self, deployments: &Self) -> Self {
        Self {
            foo: foos.foo.clone(),
            deployments: deployments.deployments.clone(),
            version: self.version,
            done: Vec::new(),
        }
    }

    /// Returns the plan for the current state.
    pub(super) fn plan(&self) -> Plan {
        decide(&self.observed(), self.now())
    }

    /// Returns the plan after a write was rejected in the current state.
    pub(super) fn plan_after_rejection(&self, why: &str) -> Plan {
        crate::decide::refused(&self.observed(), why, self.now())
    }

    /// Returns the current time, which differs for each version.
    fn now(&self) -> Timestamp {
        Timestamp::from_second(i64::from(self.version) * 1_000).expect("in range")
    }

    fn observed(&self) -> Observed {
        let foo: Arc<crate::CachedFoo> = Arc::new(serde_json::from_value(self.foo.clone()).expect("a Foo"));
        let decode = |body: &Value| {
            let deployment: crate::CachedDeployment = serde_json::from_str(&body.to_string()).expect("a Deployment");
            Arc::new(deployment)
        };
        let name = &foo.spec.deployment_name;
        let others = self.deployments.iter().filter(|(other, _)| *other != name);
        let others = others.map(|(_, body)| decode(body));
        Observed {
            deployment: self.deployments.get(name).map(decode),
            outdated: others.filter(|other| other.is_controlled_by(&foo)).collect(),
            foo,
        }
    }

    /// Decides once and executes the plan.
    pub(super) fn step(&mut self) {
        for effect in self.plan().effects {
            assert_eq!(self.perform(&effect), Outcome::Done, "{effect}");
        }
    }

    /// Decides and executes plans until there is nothing to do. Returns the number of plans.
    pub(super) fn converge(&mut self) -> usize {
        for round in 0..10 {
            if self.plan().effects.is_empty() {
                return round;
            }
            self.step();
        }
        panic!("the plans do not converge: {}", self.plan());
    }

    pub(super) fn perform(&mut self, effect: &Effect) -> Outcome {
        let outcome = match effect {
            Effect::Create(object) => {
                if self.deployments.contains_key(&*object.key.name) {
                    return Outcome::Rejected;
                }
                self.insert(&object.key.name, object.body.clone());
                Outcome::Done
            }
            Effect::Apply { object, uid, version } => {
                let name = &*object.key.name;
                if !self.is_current(name, uid, version) {
                    return Outcome::Rejected;
                }
                let version = self.next_version();
                let deployment = self.deployments.get_mut(name).expect("it is current");
                merge(deployment, &object.body);
                deployment["metadata"]["resourceVersion"] = version.into();
                Outcome::Done
            }
            Effect::Delete { target, .. } => {
                if !self.is_current(&target.key.name, &target.uid, &target.version) {
                    return Outcome::Rejected;
                }
                self.deployments.remove(&*target.key.name);
                Outcome::Done
            }
            Effect::PatchStatus { target, status } => {
                if (Arc::clone(&target.uid), Arc::clone(&target.version)) != self.foo_identity() {
                    return Outcome::Rejected;
                }
                self.foo["status"] = status.clone();
                self.foo["metadata"]["resourceVersion"] = self.next_version().into();
                Outcome::Done
            }
            // A read changes nothing and is not part of the history.
            Effect::RequirePresent { uid, .. } => {
                let is_going = self.foo["metadata"].get("deletionTimestamp").is_some();
                return if *uid == self.foo_identity().0 && !is_going {
                    Outcome::Done
                } else {
                    Outcome::Rejected
                };
            }
            Effect::Event(..) => Outcome::Done,
            Effect::RequireAbsent { .. } | Effect::Count { .. } | Effect::ObserveLatency { .. } => {
                panic!("no Foo needs {effect}")
            }
        };
        self.done.push(effect.to_string());
        outcome
    }

    pub(super) fn clear_history(&mut self) {
        self.done.clear();
    }

    /// Returns how often each effect was executed.
    pub(super) fn history(&self) -> BTreeMap<String, usize> {
        let mut history = BTreeMap::new();
        for done in &self.done {
            *history.entry(done.clone()).or_default() += 1;
        }
        history
    }

    /// Returns the reasons of the events, in order.
    pub(super) fn events(&self) -> Vec<&str> {
        let events = self.done.iter().filter_map(|done| done.strip_prefix("event "));
        events.filter_map(|event| event.split(' ').next()).collect()
    }

    /// Returns all objects without the fields that differ between runs: UIDs, versions and times.
    pub(super) fn snapshot(&self) -> Value {
        let mut picture = json!({"foo": self.foo, "deployments": self.deployments});
        forget_identities(&mut picture);
        picture
    }

    /// Returns the UID and version of a Deployment.
    pub(super) fn identity(&self, name: &str) -> (Arc<str>, Arc<str>) {
        identity(&self.deployments[name])
    }

    /// Returns the UID and version of the Foo.
    pub(super) fn foo_identity(&self) -> (Arc<str>, Arc<str>) {
        identity(&self.foo)
    }

    fn is_current(&self, name: &str, uid: &str, version: &str) -> bool {
        let current = self.deployments.get(name).map(identity);
        current.is_some_and(|(its_uid, its_version)| (&*its_uid, &*its_version) == (uid, version))
    }

    fn insert(&mut self, name: &str, mut body: Value) {
        let version = self.next_version();
        body["metadata"]["uid"] = format!("deployment-{version}").into();
        body["metadata"]["resourceVersion"] = version.into();
        self.deployments.insert(name.to_owned(), body);
    }

    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }
}

fn identity(object: &Value) -> (Arc<str>, Arc<str>) {
    let text = |field: &str| Arc::from(object["metadata"][field].as_str().expect("the field is set"));
    (text("uid"), text("resourceVersion"))
}

/// Merges as server-side apply does: objects by field, lists by the name or UID of their elements.
fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (field, value) in from {
                merge(into.entry(field.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(from)) => {
            let key = |element: &Value| element.get("uid").or_else(|| element.get("name")).cloned();
            for value in from {
                match into.iter_mut().find(|element| key(element) == key(value)) {
                    Some(element) => merge(element, value),
                    None => into.push(value.clone()),
                }
            }
        }
        (into, from) => *into = from.clone(),
    }
}

fn forget_identities(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for field in ["uid", "resourceVersion", "lastTransitionTime"] {
                fields.remove(field);
            }
            fields.values_mut().for_each(forget_identities);
        }
        Value::Array(elements) => elements.iter_mut().for_each(forget_identities),
        _ => {}
    }
}
