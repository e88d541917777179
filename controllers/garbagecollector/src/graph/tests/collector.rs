//! A collector around the graph, without its shell: it acts on the model of an apiserver, step by step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::world::{Outcome, Place, Told, World, split};
use crate::{
    Attempt, Effects, Fact, Graph, Identity, Intent, Invalidity, Monitor, Orphaning, Places, Question, Rest, Seen,
    Step, Uid,
};

/// An attempt under way: a question may have been answered, and the answer not been told yet.
pub(super) struct Under {
    uid: Uid,
    attempt: Attempt,
    answer: Option<(Question, Fact)>,
}

/// The collector without its shell.
#[derive(Default)]
pub(super) struct Collector {
    pub(super) graph: Graph,
    monitors: BTreeMap<String, (Monitor, usize)>,
    pub(super) attempts: VecDeque<Uid>,
    pub(super) orphans: VecDeque<Uid>,
    /// To be tried again later.
    pub(super) later: BTreeSet<Uid>,
    pub(super) under_way: Vec<Under>,
    pub(super) invalid: Vec<String>,
}

impl Collector {
    pub(super) fn follow(&mut self, effects: Effects) {
        for uid in effects.attempt {
            if !self.attempts.contains(&uid) {
                self.attempts.push_back(uid);
            }
        }
        for uid in effects.orphan {
            if !self.orphans.contains(&uid) {
                self.orphans.push_back(uid);
            }
        }
        // As the shell does: coordinates that differ may mean the same.
        let invalid = effects
            .invalid
            .iter()
            .filter(|invalid| invalid.reason != Invalidity::Coordinates);
        self.invalid
            .extend(invalid.map(|invalid| format!("{} of {}", invalid.owner, invalid.dependent.name)));
    }

    /// Watches the kind if it does not yet, and lists it.
    pub(super) fn list(&mut self, world: &World, kind: &str) {
        if !world.is_served(kind) {
            return;
        }
        let (api_version, short) = split(kind);
        let (monitor, seen) = self
            .monitors
            .entry(kind.to_owned())
            .or_insert_with(|| (self.graph.add_monitor(api_version, short), 0));
        *seen = world.logs[kind].len();
        let monitor = *monitor;
        let mut effects = Effects::default();
        self.graph.relisting(monitor);
        for ((of, ..), object) in &world.objects {
            if of == kind {
                let seen = Seen {
                    metadata: object.meta.clone(),
                };
                self.graph.observe(monitor, &seen, &mut effects);
            }
        }
        self.graph
            .complete(monitor, Some(&world.version.max(1).to_string()), &mut effects);
        self.follow(effects);
    }

    /// Sees the object as it is now, whatever its watch has told so far.
    pub(super) fn see(&mut self, world: &World, place: &Place) {
        let seen = Seen {
            metadata: world.objects[place].meta.clone(),
        };
        let monitor = self.monitors[&place.0].0;
        let mut effects = Effects::default();
        self.graph.observe(monitor, &seen, &mut effects);
        self.follow(effects);
    }

    /// Sees the end of an object.
    pub(super) fn see_end(&mut self, kind: &str, seen: &Seen) {
        let monitor = self.monitors[kind].0;
        let mut effects = Effects::default();
        self.graph.deleted(monitor, seen, &mut effects);
        self.follow(effects);
    }

    /// What is to be attempted, by UID.
    pub(super) fn queue(&self) -> Vec<String> {
        let attempts = self.attempts.iter().chain(&self.later);
        attempts
            .map(|uid| self.graph.text(*uid))
            .filter(|uid| !uid.is_empty())
            .collect()
    }

    /// Stops watching a kind.
    pub(super) fn leave(&mut self, kind: &str) {
        if let Some((monitor, _)) = self.monitors.remove(kind) {
            let mut effects = Effects::default();
            self.graph.remove_monitor(monitor, &mut effects);
            self.follow(effects);
        }
    }

    /// Hears so many more events of a kind. Returns whether there were any.
    pub(super) fn hear(&mut self, world: &World, kind: &str, count: usize) -> bool {
        let Some((monitor, seen)) = self.monitors.get_mut(kind) else {
            return false;
        };
        let log = &world.logs[kind];
        let told: Vec<_> = log[*seen..].iter().take(count).cloned().collect();
        *seen += told.len();
        let monitor = *monitor;
        let heard = !told.is_empty();
        let mut effects = Effects::default();
        for told in told {
            match told {
                Told::Applied(seen) => self.graph.observe(monitor, &seen, &mut effects),
                Told::Deleted(seen) => self.graph.deleted(monitor, &seen, &mut effects),
            }
        }
        self.follow(effects);
        heard
    }

    /// Begins the next attempt. Returns whether there was one.
    pub(super) fn begin(&mut self) -> bool {
        let Some(uid) = self.attempts.pop_front() else {
            return false;
        };
        self.later.remove(&uid);
        self.under_way.push(Under {
            uid,
            attempt: Attempt::new(uid),
            answer: None,
        });
        true
    }

    /// One step of an attempt under way: an answer is told, or a question asked, or something done.
    pub(super) fn step(&mut self, world: &mut World, number: usize) {
        if self.under_way.is_empty() {
            return;
        }
        let number = number % self.under_way.len();
        let mut under = self.under_way.swap_remove(number);
        if let Some((question, fact)) = under.answer.take() {
            if fact == Fact::Absent {
                let mut absent = question.identity.clone();
                if let Some((_, namespace, _)) = world.place(&absent) {
                    absent.namespace = namespace;
                }
                let mut effects = Effects::default();
                self.graph.absent(&absent, &mut effects);
                self.follow(effects);
            }
            under.attempt.tell(question, fact);
        }
        match self.graph.step(&under.attempt) {
            Step::Ask(question) => {
                let identity = &question.identity;
                let namespace = identity.namespace.as_deref().unwrap_or("-");
                world.asked.push(format!(
                    "get {}/{} {namespace}/{}",
                    identity.api_version, identity.kind, identity.name
                ));
                under.answer = Some((question.clone(), world.get(&question.identity)));
                self.under_way.push(under);
            }
            Step::Rest(rest) => {
                if matches!(
                    rest,
                    Rest::Unknown | Rest::Unobserved | Rest::Kept(crate::verdict::Reason::OwnerUnknown)
                ) {
                    self.later.insert(under.uid);
                }
            }
            Step::Do(intent) => self.carry(world, under.uid, intent),
        }
    }

    fn vanish(&mut self, uid: Uid, tried: &str) {
        let mut effects = Effects::default();
        self.graph.vanished(uid, tried, &mut effects);
        self.follow(effects);
    }

    fn carry(&mut self, world: &mut World, uid: Uid, intent: Intent) {
        let item = intent.item().clone();
        let name = format!(
            "{}/{} {}/{}",
            item.api_version,
            item.kind,
            item.namespace.as_deref().unwrap_or("-"),
            item.name
        );
        let (outcome, tried) = match intent {
            Intent::Delete {
                mut version,
                policy,
                unblock,
                ..
            } => {
                world.asked.push(format!("delete {name} {policy:?}"));
                let mut outcome = unblocked(world, &item, &mut version, &unblock);
                if outcome == Outcome::Done {
                    outcome = world.collect(&item, &version, policy);
                }
                (outcome, version)
            }
            Intent::Release { references, .. } => {
                world.asked.push(format!("release {name}"));
                (world.edit(&item, None, &references), Box::default())
            }
            Intent::Finish { .. } => {
                world.asked.push(format!("finish {name}"));
                (world.finish(&item, false), Box::default())
            }
        };
        if outcome == Outcome::Gone {
            self.vanish(uid, &tried);
        }
        match outcome {
            // No watch will tell what has become of what none has shown.
            Outcome::Done | Outcome::Gone if self.graph.is_virtual(uid) => drop(self.later.insert(uid)),
            Outcome::Done | Outcome::Gone => {}
            // The shell reads the object again at once; that is one more attempt with a live object.
            Outcome::Conflict => match world.get(&item) {
                Fact::Alive(seen) => {
                    let question = Question {
                        identity: item,
                        is_item: true,
                    };
                    self.under_way.push(Under {
                        uid,
                        attempt: Attempt::new(uid),
                        answer: Some((question, Fact::Alive(seen))),
                    });
                }
                Fact::Absent => {
                    self.vanish(uid, &tried);
                    self.later.insert(uid);
                }
                Fact::Unknown | Fact::Misplaced => drop(self.later.insert(uid)),
            },
            Outcome::Failed => drop(self.later.insert(uid)),
        }
    }

    /// Orphans the dependents of the next owner: those that are known, those that a census finds, and then the owner may go.
    pub(super) fn orphan(&mut self, world: &mut World) -> bool {
        let Some(uid) = self.orphans.pop_front() else {
            return false;
        };
        let Some(Orphaning { owner, dependents }) = self.graph.orphaning(uid) else {
            return true;
        };
        for (item, references) in dependents {
            if world.edit(&item, None, &references) == Outcome::Failed {
                self.orphans.push_back(uid);
                return false;
            }
        }
        if !world.unserved.is_empty() {
            self.orphans.push_back(uid);
            return false;
        }
        let strays: Vec<Place> = world
            .objects
            .iter()
            .filter(|(_, object)| !object.meta.references_to(&owner.uid).is_empty())
            .map(|(place, _)| place.clone())
            .collect();
        let is_let_go = strays
            .iter()
            .all(|place| world.let_go(place, &owner.uid) == Outcome::Done);
        if !is_let_go || world.finish(&owner, true) == Outcome::Failed {
            self.orphans.push_back(uid);
            return false;
        }
        true
    }

    /// Goes on until nothing is left to do, with everything heard, or until it is dead.
    pub(super) fn settle(&mut self, world: &mut World) -> Result<(), String> {
        for _ in 0..10_000 {
            if world.is_collector_dead() {
                return Ok(());
            }
            let kinds: Vec<_> = self.monitors.keys().cloned().collect();
            let mut busy = false;
            for kind in kinds {
                busy |= self.hear(world, &kind, usize::MAX);
            }
            busy |= self.orphan(world);
            busy |= self.begin();
            while !self.under_way.is_empty() {
                self.step(world, 0);
                busy = true;
            }
            if !busy {
                // What was put off is looked at again once nothing else moves.
                let later = std::mem::take(&mut self.later);
                let before = world.version;
                for uid in &later {
                    self.attempts.push_back(*uid);
                }
                while self.begin() {
                    while !self.under_way.is_empty() {
                        self.step(world, 0);
                    }
                }
                if world.version == before && self.attempts.is_empty() {
                    return Ok(());
                }
            }
        }
        Err(format!(
            "it does not come to rest: {:?}",
            world.asked.iter().rev().take(20).collect::<Vec<_>>()
        ))
    }
}

/// Lets these references no longer block their owners, in the version that is replaced by the one that comes of it.
fn unblocked(world: &mut World, item: &Identity, version: &mut Box<str>, references: &Places) -> Outcome {
    if references.is_empty() {
        return Outcome::Done;
    }
    let outcome = world.edit(item, Some(version), references);
    let now = world.place(item).and_then(|place| world.objects.get(&place));
    if let Some(object) = now.filter(|_| outcome == Outcome::Done) {
        version.clone_from(&object.meta.resource_version);
    }
    outcome
}
