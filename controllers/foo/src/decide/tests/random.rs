//! Random histories of a Foo and of changes that others make to Deployments, with stale caches and
//! a process that crashes between any two effects. The controller never touches objects that are
//! not the Foo's, and no write succeeds twice. Once nobody interferes, the cluster converges to
//! what the Foo asks for.

use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Value, json};

use super::{
    foo,
    simulation::{Outcome, Simulation},
};
use crate::decide::*;

const NAMES: [&str; 3] = ["web", "api", "old"];

/// A change that somebody else makes to a Deployment, if it exists.
#[derive(Clone, Copy, Debug)]
enum ForeignChange {
    Scale(i64),
    Unlabel,
    Orphan,
    /// Another owner becomes the controller.
    Give,
    /// The Foo becomes the controller.
    Adopt,
    Available(i64),
    /// A Deployment controller makes all Pods available.
    MakeAvailable,
    Terminate,
    Remove,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The Foo asks for this number of replicas.
    Rescale(i64),
    /// The Foo asks for another name.
    Rename(&'static str),
    /// The Foo is deleted, and waits for a finalizer.
    Terminate,
    /// The Foo is deleted, and somebody creates another one of the same name.
    Recreate,
    /// Somebody else creates a Deployment.
    Occupy(&'static str),
    ChangeForeign(&'static str, ForeignChange),
    /// Garbage collection removes the Deployments of earlier Foos.
    Collect,
    /// The caches receive this many more changes.
    UpdateCaches(usize, usize),
    /// The process reconciles, and crashes after this many effects.
    Reconcile(usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let name = || select(NAMES.to_vec());
    let foreign_change = prop_oneof![
        (0..4_i64).prop_map(ForeignChange::Scale),
        Just(ForeignChange::Unlabel),
        Just(ForeignChange::Orphan),
        Just(ForeignChange::Give),
        Just(ForeignChange::Adopt),
        (0..4_i64).prop_map(ForeignChange::Available),
        Just(ForeignChange::MakeAvailable),
        Just(ForeignChange::Terminate),
        Just(ForeignChange::Remove),
    ];
    let event = prop_oneof![
        2 => (0..4_i64).prop_map(Event::Rescale),
        2 => name().prop_map(Event::Rename),
        1 => Just(Event::Terminate),
        1 => Just(Event::Recreate),
        1 => name().prop_map(Event::Occupy),
        5 => (name(), foreign_change).prop_map(|(name, foreign_change)| Event::ChangeForeign(name, foreign_change)),
        1 => Just(Event::Collect),
        8 => (0..4_usize, 0..4_usize).prop_map(|(foos, deployments)| Event::UpdateCaches(foos, deployments)),
        10 => prop_oneof![3 => Just(usize::MAX), 1 => 0..3_usize].prop_map(Event::Reconcile),
    ];
    vec(event, 0..50)
}

/// The simulation, its state after each change, and how many of these states each cache has
/// received.
struct CheckedSimulation {
    simulation: Simulation,
    history: Vec<Simulation>,
    foos: usize,
    deployments: usize,
    /// The number of Foos of this name so far.
    generations: usize,
}

impl CheckedSimulation {
    fn new() -> Self {
        let simulation = foo();
        Self {
            history: vec![simulation.clone()],
            simulation,
            foos: 0,
            deployments: 0,
            generations: 1,
        }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Rescale(replicas) => self.simulation.set_spec("a", "replicas", replicas.into()),
            Event::Rename(name) => self.simulation.set_spec("a", "deploymentName", name.into()),
            Event::Terminate => self.simulation.write_foo("a", |foo| {
                foo["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z".into();
            }),
            Event::Recreate => self.recreate(),
            Event::Occupy(name) => {
                if !self.simulation.deployments().contains_key(name) {
                    self.simulation.add(name, json!({}));
                }
            }
            Event::ChangeForeign(name, foreign_change) => self.change_foreign(name, foreign_change),
            Event::Collect => self.collect(),
            Event::UpdateCaches(foos, deployments) => {
                let last = self.history.len() - 1;
                self.foos = self.foos.saturating_add(foos).min(last);
                self.deployments = self.deployments.saturating_add(deployments).min(last);
            }
            Event::Reconcile(effects) => _ = self.reconcile(effects),
        }
        self.remember();
    }

    fn remember(&mut self) {
        self.history.push(self.simulation.clone());
    }

    fn recreate(&mut self) {
        self.generations += 1;
        let uid = format!("foo-{}", self.generations);
        self.simulation.write_foo("a", |foo| {
            *foo = json!({
                "metadata": {"namespace": "n", "name": "a", "uid": uid, "generation": 1},
                "spec": foo["spec"],
            });
        });
    }

    fn change_foreign(&mut self, name: &str, foreign_change: ForeignChange) {
        if !self.simulation.deployments().contains_key(name) {
            return;
        }
        let owner = |uid: &Value| json!([{"apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "name": "a", "uid": uid, "controller": true}]);
        let (pointer, value) = match foreign_change {
            ForeignChange::Scale(replicas) => ("/spec/replicas", replicas.into()),
            ForeignChange::Unlabel => ("/metadata/labels", json!({})),
            ForeignChange::Orphan => ("/metadata/ownerReferences", json!([])),
            ForeignChange::Give => ("/metadata/ownerReferences", owner(&"another".into())),
            ForeignChange::Adopt => (
                "/metadata/ownerReferences",
                owner(&self.simulation.foo()["metadata"]["uid"]),
            ),
            ForeignChange::Available(replicas) => ("/status", json!({"availableReplicas": replicas})),
            ForeignChange::Terminate => ("/metadata/deletionTimestamp", "2026-01-02T03:04:05Z".into()),
            ForeignChange::MakeAvailable => return self.simulation.make_available(name),
            ForeignChange::Remove => return self.simulation.remove(name),
        };
        self.simulation.change(name, pointer, value);
    }

    fn collect(&mut self) {
        let uid = &self.simulation.foo()["metadata"]["uid"];
        let is_garbage =
            |deployment: &Value| controller(deployment).is_some_and(|owner| owner.starts_with("foo-") && owner != uid);
        let deployments = self.simulation.deployments().iter();
        let garbage: Vec<String> = deployments
            .filter(|(_, deployment)| is_garbage(deployment))
            .map(|(name, _)| name.clone())
            .collect();
        for name in garbage {
            self.simulation.remove(&name);
        }
    }

    /// Decides on the caches and executes the first effects of the plan. Returns whether the
    /// plan had effects.
    fn reconcile(&mut self, effects: usize) -> bool {
        let (foos, deployments) = (&self.history[self.foos], &self.history[self.deployments]);
        let plan = self.simulation.observed_through(foos, deployments).plan();
        for effect in plan.effects.iter().take(effects) {
            let before = self.simulation.clone();
            if self.simulation.perform(effect) == Outcome::Rejected {
                break;
            }
            self.remember();
            assert_foreign_untouched(&before, effect);
            // Events and reads change nothing, however often they happen.
            if !matches!(effect, Effect::Event(..) | Effect::RequirePresent { .. }) {
                let after = self.simulation.snapshot();
                assert_eq!(
                    self.simulation.perform(effect),
                    Outcome::Rejected,
                    "{effect} succeeded twice"
                );
                assert_eq!(self.simulation.snapshot(), after);
            }
        }
        !plan.effects.is_empty()
    }

    /// Lets the process converge, with caches that are up to date and without interference.
    fn converge(&mut self) {
        let names: Vec<String> = self.simulation.deployments().keys().cloned().collect();
        for name in names {
            if !self.simulation.deployments()[&name]["metadata"]["deletionTimestamp"].is_null() {
                self.simulation.remove(&name);
            }
        }
        self.collect();
        for _ in 0..8 {
            // The first call records the current state, and the second one delivers it to the
            // caches.
            self.apply(Event::UpdateCaches(usize::MAX, usize::MAX));
            self.apply(Event::UpdateCaches(usize::MAX, usize::MAX));
            if !self.reconcile(usize::MAX) {
                return;
            }
        }
        panic!("the plans do not converge: {}", self.simulation.plan());
    }
}

/// Returns the UID of the Deployment's controller.
pub(super) fn controller(deployment: &Value) -> Option<&str> {
    let owners = deployment["metadata"]["ownerReferences"].as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == true)?;
    owner["uid"].as_str()
}

/// Returns whether a Deployment controller has made all Pods of the current spec available.
pub(super) fn is_available(deployment: &Value) -> bool {
    let number = |pointer: &str| deployment.pointer(pointer).and_then(Value::as_i64).unwrap_or_default();
    number("/status/observedGeneration") >= number("/metadata/generation")
        && number("/status/availableReplicas") >= number("/spec/replicas")
}

/// Asserts that a changed or deleted Deployment was controlled by a Foo of this name.
fn assert_foreign_untouched(before: &Simulation, effect: &Effect) {
    let name = match effect {
        Effect::Apply { object, .. } => &object.key.name,
        Effect::Delete { target, .. } => &target.key.name,
        _ => return,
    };
    let owner = controller(&before.deployments()[&**name]);
    assert!(
        owner.is_some_and(|owner| owner.starts_with("foo-")),
        "{effect}, but its controller is {owner:?}"
    );
}

/// Asserts that the Deployment and the status match the spec, or that the status says why not.
fn assert_matches_spec(simulation: &Simulation) {
    let (metadata, spec, status) = (
        &simulation.foo()["metadata"],
        &simulation.foo()["spec"],
        &simulation.foo()["status"],
    );
    if !metadata["deletionTimestamp"].is_null() {
        return;
    }
    let name = spec["deploymentName"].as_str().unwrap();
    let is_own = |deployment: &Value| controller(deployment) == metadata["uid"].as_str();
    let deployment = &simulation.deployments()[name];
    let truth = |type_: &str| {
        let mut conditions = status["conditions"].as_array().unwrap().iter();
        let found = conditions.find(|condition| condition["type"] == type_)?;
        found["status"].as_str()
    };
    assert_eq!(status["observedGeneration"], metadata["generation"]);
    let others = simulation.deployments().iter().filter(|(other, _)| *other != name);
    let outdated: Vec<_> = others.filter(|(_, other)| is_own(other)).collect();
    assert_eq!(
        truth("Renaming") == Some("True"),
        !outdated.is_empty(),
        "{simulation:?}"
    );
    if !is_own(deployment) {
        assert_eq!(
            (truth("Ready"), truth("Conflict")),
            (Some("False"), Some("True")),
            "{simulation:?}"
        );
        return;
    }
    assert_eq!(
        (truth("Ready"), truth("Conflict")),
        (Some("True"), Some("False")),
        "{simulation:?}"
    );
    assert_eq!(deployment["spec"]["replicas"], spec["replicas"]);
    assert_eq!(deployment["metadata"]["labels"]["controller"], metadata["name"]);
    let available = deployment["status"]["availableReplicas"].as_i64().unwrap_or_default();
    assert_eq!(status["availableReplicas"], available);
    assert!(outdated.is_empty() || !is_available(deployment), "{outdated:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn foo_converges_once_nobody_interferes(events in events()) {
        let mut checked = CheckedSimulation::new();
        for event in &events {
            checked.apply(*event);
        }
        checked.converge();
        assert_matches_spec(&checked.simulation);
        prop_assert_eq!(checked.simulation.plan(), Plan::nothing());
        // A Deployment controller starts.
        let deployments: Vec<_> = checked.simulation.deployments().keys().cloned().collect();
        for name in deployments {
            checked.simulation.make_available(&name);
        }
        checked.converge();
        assert_matches_spec(&checked.simulation);
    }
}
