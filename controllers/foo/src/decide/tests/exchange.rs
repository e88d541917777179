//! Random renames of several Foos, which may exchange their names, with stale caches, crashes, and
//! with or without a Deployment controller. The controller reconciles only the Foos that a watch
//! event affects. No Deployment is deleted before its replacement is available, unless another Foo
//! waits for its name. In the end every Foo controls the Deployment that it asks for.
//!
//! If one more Foo asks for the name of another one, no Foo loses its Deployment without a new one.

use std::collections::BTreeSet;

use portreeve_api::Metadata;
use portreeve_informer::Change;
use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Value, json};

use super::{
    random::{controller, is_available},
    simulation::{Outcome, Simulation, decode},
};
use crate::{decide::*, observe};

const FOOS: [&str; 4] = ["a", "b", "c", "d"];
const NAMES: [&str; 5] = ["v", "w", "x", "y", "z"];
/// The Foo that asks for the name of another one.
const RIVAL: &str = "rival";

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A Foo asks for another name.
    Rename(&'static str, &'static str),
    /// A Deployment controller makes a Deployment available, if it exists.
    MakeAvailable(&'static str),
    /// The caches receive this many more changes.
    UpdateCaches(usize, usize),
    /// A worker takes one of the queued Foos, and crashes after this many effects.
    Reconcile(usize, usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let foo = || select(FOOS.to_vec());
    let name = || select(NAMES.to_vec());
    let event = prop_oneof![
        3 => (foo(), name()).prop_map(|(foo, name)| Event::Rename(foo, name)),
        2 => name().prop_map(Event::MakeAvailable),
        6 => (0..4_usize, 0..4_usize).prop_map(|(foos, deployments)| Event::UpdateCaches(foos, deployments)),
        8 => (0..4_usize, prop_oneof![3 => Just(usize::MAX), 1 => 0..3_usize])
            .prop_map(|(pick, effects)| Event::Reconcile(pick, effects)),
    ];
    vec(event, 0..60)
}

/// Returns a Foo that asks for a Deployment.
fn foo(name: &str, deployment: &str) -> Value {
    json!({
        "metadata": {"name": name, "uid": format!("foo-{name}"), "generation": 1},
        "spec": {"deploymentName": deployment, "replicas": 2},
    })
}

/// The cluster, its state after each write, and the controller.
struct Cluster {
    simulation: Simulation,
    history: Vec<Simulation>,
    /// How many states of the history each cache has received.
    foos: usize,
    deployments: usize,
    queue: BTreeSet<String>,
}

impl Cluster {
    /// Returns Foos whose Deployments are available. The last name is free.
    fn new() -> Self {
        let foos: Vec<_> = FOOS.iter().zip(NAMES).map(|(name, wanted)| foo(name, wanted)).collect();
        let mut simulation = Simulation::with_foo(foos[0].clone());
        foos[1..].iter().for_each(|foo| simulation.add_foo(foo.clone()));
        let mut cluster = Self {
            history: vec![simulation.clone()],
            simulation,
            foos: 0,
            deployments: 0,
            queue: FOOS.iter().map(|foo| (*foo).to_owned()).collect(),
        };
        cluster.settle(true);
        cluster
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Rename(foo, name) => {
                self.simulation.set_spec(foo, "deploymentName", name.into());
                self.remember();
            }
            Event::MakeAvailable(name) => {
                if self.simulation.deployments().contains_key(name) {
                    self.simulation.make_available(name);
                    self.remember();
                }
            }
            Event::UpdateCaches(foos, deployments) => {
                (0..foos).for_each(|_| self.receive_foos());
                (0..deployments).for_each(|_| self.receive_deployments());
            }
            Event::Reconcile(pick, effects) => {
                let picked = self.queue.iter().cycle().nth(pick).cloned();
                if let Some(foo) = picked {
                    self.reconcile(&foo, effects);
                }
            }
        }
    }

    fn remember(&mut self) {
        self.history.push(self.simulation.clone());
    }

    /// Returns what the caches contain.
    fn caches(&self) -> Simulation {
        let (foos, deployments) = (&self.history[self.foos], &self.history[self.deployments]);
        self.simulation.observed_through(foos, deployments)
    }

    /// Delivers the next change of Foos, if there is one.
    fn receive_foos(&mut self) {
        let Some(next) = self.history.get(self.foos + 1) else {
            return;
        };
        let before = self.history[self.foos].foos();
        let changed = next.foos().iter().filter(|(name, foo)| before.get(*name) != Some(*foo));
        let deltas = changed.map(|(name, foo)| match before.get(name) {
            None => Change::Added(decode(foo)),
            Some(old) => Change::Updated {
                old: decode(old),
                new: decode(foo),
            },
        });
        let deltas: Vec<_> = deltas.collect();
        self.foos += 1;
        for change in deltas {
            let affected = observe::foos_for_foo(&self.caches(), &change);
            self.queue.extend(affected.iter().map(|key| key.name.to_string()));
        }
    }

    /// Delivers the next change of Deployments, if there is one.
    fn receive_deployments(&mut self) {
        let Some(next) = self.history.get(self.deployments + 1) else {
            return;
        };
        let (before, after) = (self.history[self.deployments].deployments(), next.deployments());
        let deleted = before.iter().filter(|(name, _)| !after.contains_key(*name));
        let written = after.iter().filter(|(name, body)| before.get(*name) != Some(*body));
        let changed: Vec<Value> = deleted
            .chain(written)
            .map(|(_, body)| body["metadata"].clone())
            .collect();
        self.deployments += 1;
        for metadata in changed {
            let metadata: Metadata = serde_json::from_value(metadata).unwrap();
            let affected = observe::foos_for_deployment(&self.caches(), &metadata);
            self.queue.extend(affected.iter().map(|key| key.name.to_string()));
        }
    }

    /// Decides on the caches and executes the first effects of the plan.
    fn reconcile(&mut self, foo: &str, effects: usize) {
        let caches = self.caches();
        let plan = caches.plan_for(foo);
        self.queue.remove(foo);
        for (done, effect) in plan.effects.iter().enumerate() {
            if let Effect::Delete { target, .. } = effect {
                assert_may_go(&caches, foo, &target.key.name);
            }
            if done == effects || self.simulation.perform(effect) == Outcome::Rejected {
                // The worker observes and decides again.
                self.queue.insert(foo.to_owned());
                return;
            }
            self.remember();
        }
    }

    /// Runs until no cache, no worker and no Deployment controller has anything to do.
    fn settle(&mut self, has_deployment_controller: bool) {
        for _ in 0..1_000 {
            while self.foos + 1 < self.history.len() || self.deployments + 1 < self.history.len() {
                self.receive_foos();
                self.receive_deployments();
            }
            let deployments = self.simulation.deployments().iter();
            let unavailable = deployments.filter(|(_, deployment)| !is_available(deployment));
            let unavailable = unavailable.map(|(name, _)| name.clone()).next();
            if let Some(name) = unavailable.filter(|_| has_deployment_controller) {
                self.simulation.make_available(&name);
                self.remember();
            } else if let Some(foo) = self.queue.first().cloned() {
                self.reconcile(&foo, usize::MAX);
            } else {
                return;
            }
        }
        panic!("the plans do not converge: {:?}", self.simulation);
    }

    /// Asserts that each of the Foos that had a Deployment at first has one.
    fn assert_nobody_is_left_without_a_deployment(&self) {
        let deployments = self.simulation.deployments();
        let owners: BTreeSet<_> = deployments.values().filter_map(controller).collect();
        for name in FOOS {
            let uid = &self.simulation.foos()[name]["metadata"]["uid"];
            assert!(owners.contains(uid.as_str().unwrap()), "{name}: {:?}", self.simulation);
        }
    }

    /// Asserts that every Foo controls the Deployment that it asks for, and that no other
    /// Deployment remains without a condition.
    fn assert_settled(&self, has_deployment_controller: bool) {
        let simulation = &self.simulation;
        let mut remaining: BTreeSet<_> = simulation.deployments().keys().map(String::as_str).collect();
        let mut renaming = BTreeSet::new();
        for (name, foo) in simulation.foos() {
            assert_eq!(simulation.plan_for(name), Plan::nothing(), "{name}: {simulation:?}");
            let wanted = foo["spec"]["deploymentName"].as_str().unwrap();
            let uid = foo["metadata"]["uid"].as_str();
            assert_eq!(
                controller(&simulation.deployments()[wanted]),
                uid,
                "{name}: {simulation:?}"
            );
            remaining.remove(wanted);
            let conditions = foo["status"]["conditions"].as_array().unwrap();
            let holds = |type_: &str| {
                let mut conditions = conditions.iter();
                conditions.any(|condition| condition["type"] == type_ && condition["status"] == "True")
            };
            assert!(holds("Ready") && !holds("Conflict"), "{name}: {simulation:?}");
            if holds("Renaming") {
                renaming.insert(uid);
            }
        }
        let deployments = simulation.deployments();
        let owners: BTreeSet<_> = remaining.iter().map(|name| controller(&deployments[*name])).collect();
        assert_eq!(owners, renaming, "{simulation:?}");
        assert!(!has_deployment_controller || remaining.is_empty(), "{simulation:?}");
    }
}

/// Asserts that the Foo's new Deployment is available or that another Foo asks for the old name,
/// as far as the caches show.
fn assert_may_go(caches: &Simulation, foo: &str, old: &str) {
    let asking = |(name, other): (&String, &Value)| name != foo && other["spec"]["deploymentName"] == old;
    let (foo, is_asked_for) = (&caches.foos()[foo], caches.foos().iter().any(asking));
    let new = &caches.deployments()[foo["spec"]["deploymentName"].as_str().unwrap()];
    let is_own = controller(new) == foo["metadata"]["uid"].as_str();
    assert!(is_asked_for || is_own && is_available(new), "{old}: {caches:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn foos_that_exchange_names_get_them(
        events in events(),
        names in Just(NAMES.to_vec()).prop_shuffle(),
        has_deployment_controller in any::<bool>(),
    ) {
        let mut cluster = Cluster::new();
        for event in &events {
            cluster.apply(*event);
        }
        for (foo, name) in FOOS.into_iter().zip(names) {
            cluster.apply(Event::Rename(foo, name));
        }
        cluster.settle(has_deployment_controller);
        cluster.assert_settled(has_deployment_controller);
    }

    #[test]
    fn no_foo_loses_its_deployment_to_one_that_asks_for_its_name(
        events in events(),
        names in Just(NAMES.to_vec()).prop_shuffle(),
        contested in select(NAMES[..FOOS.len()].to_vec()),
        has_deployment_controller in any::<bool>(),
    ) {
        let mut cluster = Cluster::new();
        cluster.simulation.add_foo(foo(RIVAL, contested));
        cluster.remember();
        cluster.settle(true);
        for (foo, name) in FOOS.into_iter().zip(names) {
            cluster.apply(Event::Rename(foo, name));
        }
        // Nobody can protect a Foo from a rival that the cache does not show yet.
        cluster.apply(Event::UpdateCaches(FOOS.len(), 0));
        for event in events.iter().filter(|event| !matches!(event, Event::Rename(..))) {
            cluster.apply(*event);
        }
        cluster.settle(has_deployment_controller);
        cluster.assert_nobody_is_left_without_a_deployment();
        cluster.apply(Event::Rename(RIVAL, "elsewhere"));
        cluster.settle(has_deployment_controller);
        cluster.assert_settled(has_deployment_controller);
    }
}
