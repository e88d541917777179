//! A model of the apiserver for the plans of Foos. It rejects the writes that the real one rejects.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use portreeve_api::{Metadata, ObjectKey};
use portreeve_reconcile::{Effect, Object, Plan};
use serde_json::{Value, json};

use crate::{
    CachedDeployment, CachedFoo,
    admitted::Admitted,
    decide::decide,
    observe::{self, Caches, Observed},
};

/// The Foos and Deployments of a namespace, and the effects that were executed.
#[derive(Clone, Debug, Default)]
pub(super) struct Simulation {
    foos: BTreeMap<String, Value>,
    deployments: BTreeMap<String, Value>,
    version: u32,
    done: Vec<String>,
    /// The fields that a policy sets in every Deployment that is written, by JSON pointers.
    policy: Vec<(&'static str, Value)>,
    /// What the process remembers of its Foos' Deployments.
    admitted: BTreeMap<String, Admitted>,
}

/// The outcome of an effect.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Outcome {
    Done,
    /// A 409 or 404: observe and decide again.
    Rejected,
}

impl Simulation {
    /// Returns a simulation with a Foo `a`.
    pub(super) fn with_foo(foo: Value) -> Self {
        let mut simulation = Self::default();
        simulation.add_foo(foo);
        simulation
    }

    /// Somebody creates a Foo.
    pub(super) fn add_foo(&mut self, mut foo: Value) {
        foo["metadata"]["namespace"] = "n".into();
        foo["metadata"]["resourceVersion"] = self.next_version().into();
        let name = foo["metadata"]["name"].as_str().expect("a name").to_owned();
        self.foos.insert(name, foo);
    }

    /// Returns the Foo `a`.
    pub(super) fn foo(&self) -> &Value {
        &self.foos["a"]
    }

    /// Returns the Foo `a`, to change it without a new version.
    pub(super) fn foo_mut(&mut self) -> &mut Value {
        self.foos.get_mut("a").expect("the Foo exists")
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
        let spec = deployment["spec"].clone();
        let parent = deployment.pointer_mut(parent).expect("the field's parent exists");
        parent[field] = value;
        finish_write(deployment, &spec, &version);
    }

    /// Somebody else deletes a Deployment.
    pub(super) fn remove(&mut self, name: &str) {
        assert!(self.deployments.remove(name).is_some(), "{name} must exist");
    }

    /// A Deployment controller makes all Pods of a Deployment available.
    pub(super) fn make_available(&mut self, name: &str) {
        let deployment = &self.deployments[name];
        let status = json!({
            "availableReplicas": deployment["spec"]["replicas"].as_i64().unwrap_or(1),
            "observedGeneration": deployment["metadata"]["generation"],
        });
        self.change(name, "/status", status);
    }

    /// From now on, a policy sets this field in every Deployment that is written.
    pub(super) fn set_policy(&mut self, pointer: &'static str, value: Value) {
        self.policy.push((pointer, value));
    }

    /// The policies are deleted.
    pub(super) fn remove_policies(&mut self) {
        self.policy.clear();
    }

    /// Another process takes over.
    pub(super) fn restart(&mut self) {
        self.admitted.clear();
    }

    /// Somebody changes the spec of a Foo, or creates another Foo of the same name.
    pub(super) fn write_foo(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        let version = self.next_version();
        let foo = self.foos.get_mut(name).expect("the Foo exists");
        change(foo);
        foo["metadata"]["resourceVersion"] = version.into();
    }

    /// Somebody changes a field of a Foo's spec.
    pub(super) fn set_spec(&mut self, foo: &str, field: &str, value: Value) {
        self.write_foo(foo, |foo| {
            let generation = foo["metadata"]["generation"].as_i64().expect("the field is set");
            foo["metadata"]["generation"] = (generation + 1).into();
            foo["spec"][field] = value;
        });
    }

    /// Returns the Foos by name.
    pub(super) fn foos(&self) -> &BTreeMap<String, Value> {
        &self.foos
    }

    /// Returns the Deployments by name.
    pub(super) fn deployments(&self) -> &BTreeMap<String, Value> {
        &self.deployments
    }

    /// Returns what a process with stale caches observes: the Foos and the Deployments of two
    /// earlier states.
    pub(super) fn observed_through(&self, foos: &Self, deployments: &Self) -> Self {
        Self {
            foos: foos.foos.clone(),
            deployments: deployments.deployments.clone(),
            version: self.version,
            admitted: self.admitted.clone(),
            ..Self::default()
        }
    }

    /// Returns the plan of the Foo `a` for the current state.
    pub(super) fn plan(&self) -> Plan {
        self.plan_for("a")
    }

    /// Returns the plan of a Foo for the current state.
    pub(super) fn plan_for(&self, foo: &str) -> Plan {
        decide(&self.observe(foo), self.now())
    }

    /// Returns the plan of the Foo `a` after its first effect was rejected in the current state.
    pub(super) fn plan_after_rejection(&self, why: &str) -> Plan {
        crate::decide::refused(&self.observe("a"), &self.plan().effects[0], why, self.now())
    }

    /// Returns the current time, which differs for each version.
    fn now(&self) -> Timestamp {
        Timestamp::from_second(i64::from(self.version) * 1_000).expect("in range")
    }

    pub(super) fn observe(&self, foo: &str) -> Observed {
        observe::observe(self, &ObjectKey::namespaced("n", foo), self.admitted.get(foo).cloned())
            .expect("the Foo exists")
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
                let body = self.admit(object.body.clone());
                self.insert(&object.key.name, body);
                self.remember(object);
                Outcome::Done
            }
            Effect::Apply { object, uid, version } => {
                let name = &*object.key.name;
                if !self.is_current(name, uid, version) {
                    return Outcome::Rejected;
                }
                let before = self.deployments[name].clone();
                let mut deployment = before.clone();
                merge(&mut deployment, &object.body);
                let mut deployment = self.admit(deployment);
                // A write that changes nothing keeps the version.
                if deployment != before {
                    finish_write(&mut deployment, &before["spec"], &self.next_version());
                }
                self.deployments.insert(name.to_owned(), deployment);
                self.remember(object);
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
                let name = &*target.key.name;
                if (Arc::clone(&target.uid), Arc::clone(&target.version)) != identity(&self.foos[name]) {
                    return Outcome::Rejected;
                }
                self.write_foo(name, |foo| foo["status"] = status.clone());
                Outcome::Done
            }
            // A read changes nothing and is not part of the history.
            Effect::RequirePresent { key, uid, .. } => {
                let foo = &self.foos[&*key.name];
                let is_going = foo["metadata"].get("deletionTimestamp").is_some();
                return if *uid == identity(foo).0 && !is_going {
                    Outcome::Done
                } else {
                    Outcome::Rejected
                };
            }
            Effect::Event(..) => Outcome::Done,
            _ => panic!("no Foo needs {effect}"),
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
        let mut picture = json!({"foos": self.foos, "deployments": self.deployments});
        forget_identities(&mut picture);
        picture
    }

    /// Returns the UID and version of a Deployment.
    pub(super) fn identity(&self, name: &str) -> (Arc<str>, Arc<str>) {
        identity(&self.deployments[name])
    }

    /// Returns the UID and version of the Foo `a`.
    pub(super) fn foo_identity(&self) -> (Arc<str>, Arc<str>) {
        identity(self.foo())
    }

    fn is_current(&self, name: &str, uid: &str, version: &str) -> bool {
        let current = self.deployments.get(name).map(identity);
        current.is_some_and(|(its_uid, its_version)| (&*its_uid, &*its_version) == (uid, version))
    }

    /// Applies the policies to a Deployment that is written.
    fn admit(&self, mut deployment: Value) -> Value {
        for (pointer, value) in &self.policy {
            *deployment.pointer_mut(pointer).expect("the controller sets the field") = value.clone();
        }
        deployment
    }

    /// The process remembers the result of its write.
    fn remember(&mut self, written: &Object) {
        let result = &self.deployments[&*written.key.name];
        let owner = &written.body["metadata"]["ownerReferences"][0]["name"];
        let foo = owner.as_str().expect("a Foo owns it").to_owned();
        match Admitted::of(written, &result.to_string()) {
            Some(admitted) => self.admitted.insert(foo, admitted),
            None => self.admitted.remove(&foo),
        };
    }

    fn insert(&mut self, name: &str, mut body: Value) {
        let version = self.next_version();
        body["metadata"]["uid"] = format!("deployment-{version}").into();
        body["metadata"]["resourceVersion"] = version.into();
        body["metadata"]["generation"] = 1.into();
        self.deployments.insert(name.to_owned(), body);
    }

    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }
}

/// The caches are up to date.
impl Caches for Simulation {
    fn foo(&self, key: &ObjectKey) -> Option<Arc<CachedFoo>> {
        self.foos.get(&*key.name).map(decode)
    }

    fn foos_asking_for(&self, deployment: &ObjectKey) -> Vec<Arc<CachedFoo>> {
        let asking = |foo: &&Value| foo["spec"]["deploymentName"] == *deployment.name;
        self.foos.values().filter(asking).map(decode).collect()
    }

    fn deployment(&self, key: &ObjectKey) -> Option<Arc<CachedDeployment>> {
        self.deployments.get(&*key.name).map(decode)
    }

    fn deployments_controlled_by(&self, foo: &Metadata) -> Vec<Arc<CachedDeployment>> {
        let deployments = self.deployments.values().map(decode::<CachedDeployment>);
        let controller = |metadata: &Metadata| metadata.controller().map(|owner| owner.uid.clone());
        deployments
            .filter(|deployment| controller(&deployment.metadata).as_deref() == Some(&*foo.uid))
            .collect()
    }
}

pub(super) fn decode<T: serde::de::DeserializeOwned>(object: &Value) -> Arc<T> {
    Arc::new(serde_json::from_str(&object.to_string()).expect("it can be decoded"))
}

/// Sets the version of a Deployment, and its generation if its spec has changed.
fn finish_write(deployment: &mut Value, spec: &Value, version: &str) {
    if deployment["spec"] != *spec {
        let generation = deployment["metadata"]["generation"].as_i64().unwrap_or_default();
        deployment["metadata"]["generation"] = (generation + 1).into();
    }
    deployment["metadata"]["resourceVersion"] = version.into();
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
