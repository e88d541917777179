//! A collector without its shell: it runs the graph step by step against the model of an apiserver.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::simulation::{ObjectLocation, Outcome, Simulation, WatchEvent, split};
use crate::{
    Attempt, AttemptStep, FollowUps, Graph, Identity, Intent, InvalidReason, Monitor, NoopReason, Orphaning,
    PartialObject, ReadRequest, ReadResult, ReferencePositions, Uid,
};

/// A running attempt. A request may have been answered without the attempt having recorded the
/// answer yet.
pub(super) struct RunningAttempt {
    uid: Uid,
    attempt: Attempt,
    answer: Option<(ReadRequest, ReadResult)>,
}

/// A collector without its shell.
#[derive(Default)]
pub(super) struct Collector {
    pub(super) graph: Graph,
    monitors: BTreeMap<String, (Monitor, usize)>,
    pub(super) attempts: VecDeque<Uid>,
    pub(super) orphans: VecDeque<Uid>,
    /// Objects to attempt again later.
    pub(super) later: BTreeSet<Uid>,
    pub(super) under_way: Vec<RunningAttempt>,
    pub(super) invalid: Vec<String>,
}

impl Collector {
    pub(super) fn follow(&mut self, follow_ups: FollowUps) {
        for uid in follow_ups.attempt {
            if !self.attempts.contains(&uid) {
                self.attempts.push_back(uid);
            }
        }
        for uid in follow_ups.orphan {
            if !self.orphans.contains(&uid) {
                self.orphans.push_back(uid);
            }
        }
        // The shell sends no event for these either, because different coordinates may denote the
        // same object.
        let invalid = follow_ups
            .invalid
            .iter()
            .filter(|invalid| invalid.reason != InvalidReason::Coordinates);
        self.invalid
            .extend(invalid.map(|invalid| format!("{} of {}", invalid.owner, invalid.dependent.name)));
    }

    /// Watches the kind if it does not yet, and lists it.
    pub(super) fn list(&mut self, simulation: &Simulation, kind: &str) {
        if !simulation.is_served(kind) {
            return;
        }
        let (api_version, short) = split(kind);
        let (monitor, seen) = self
            .monitors
            .entry(kind.to_owned())
            .or_insert_with(|| (self.graph.add_monitor(api_version, short), 0));
        *seen = simulation.logs[kind].len();
        let monitor = *monitor;
        let mut follow_ups = FollowUps::default();
        self.graph.begin_list(monitor);
        for ((of, ..), object) in &simulation.objects {
            if of == kind {
                let seen = PartialObject {
                    metadata: object.meta.clone(),
                };
                self.graph.observe(monitor, &seen, &mut follow_ups);
            }
        }
        self.graph
            .complete_list(monitor, Some(&simulation.version.max(1).to_string()), &mut follow_ups);
        self.follow(follow_ups);
    }

    /// Shows the collector the current state of an object, ahead of its watch.
    pub(super) fn observe(&mut self, simulation: &Simulation, place: &ObjectLocation) {
        let seen = PartialObject {
            metadata: simulation.objects[place].meta.clone(),
        };
        let monitor = self.monitors[&place.0].0;
        let mut follow_ups = FollowUps::default();
        self.graph.observe(monitor, &seen, &mut follow_ups);
        self.follow(follow_ups);
    }

    /// Shows the collector the deletion of an object.
    pub(super) fn observe_deleted(&mut self, kind: &str, seen: &PartialObject) {
        let monitor = self.monitors[kind].0;
        let mut follow_ups = FollowUps::default();
        self.graph.deleted(monitor, seen, &mut follow_ups);
        self.follow(follow_ups);
    }

    /// Returns the UIDs of the objects to process.
    pub(super) fn queue(&self) -> Vec<String> {
        let attempts = self.attempts.iter().chain(&self.later);
        attempts
            .map(|uid| self.graph.text(*uid))
            .filter(|uid| !uid.is_empty())
            .collect()
    }

    /// Stops watching a kind that is no longer served.
    pub(super) fn stop_watching(&mut self, kind: &str) {
        if let Some((monitor, _)) = self.monitors.remove(kind) {
            let mut follow_ups = FollowUps::default();
            self.graph.doubt_owners(monitor, &mut follow_ups);
            self.graph.remove_monitor(monitor, &mut follow_ups);
            self.follow(follow_ups);
        }
    }

    /// Makes a kind unreadable, until it is listed again.
    pub(super) fn lose(&mut self, kind: &str) {
        if let Some((monitor, _)) = self.monitors.get(kind) {
            let mut follow_ups = FollowUps::default();
            self.graph.disconnect(*monitor);
            self.graph.invalidate_monitor(*monitor, &mut follow_ups);
            self.follow(follow_ups);
        }
    }

    /// Ends all running attempts, because their requests fail. They are made again later.
    pub(super) fn interrupt_requests(&mut self) {
        let under_way = std::mem::take(&mut self.under_way);
        self.later.extend(under_way.into_iter().map(|running| running.uid));
    }

    /// Ends the watch on a kind, and resumes it at its last version.
    pub(super) fn interrupt(&mut self, kind: &str) {
        if let Some((monitor, _)) = self.monitors.get(kind) {
            self.graph.disconnect(*monitor);
            self.graph.resume(*monitor);
            self.graph.confirm_versions(*monitor);
        }
    }

    /// Ends the watch on a kind.
    pub(super) fn disconnect(&mut self, kind: &str) {
        if let Some((monitor, _)) = self.monitors.get(kind) {
            self.graph.disconnect(*monitor);
        }
    }

    /// Delivers up to `count` events of a kind. Returns whether there were any.
    pub(super) fn deliver_events(&mut self, simulation: &Simulation, kind: &str, count: usize) -> bool {
        let Some((monitor, seen)) = self.monitors.get_mut(kind) else {
            return false;
        };
        let log = &simulation.logs[kind];
        let told: Vec<_> = log[*seen..].iter().take(count).cloned().collect();
        *seen += told.len();
        let monitor = *monitor;
        let heard = !told.is_empty();
        let mut follow_ups = FollowUps::default();
        for told in told {
            match told {
                WatchEvent::Applied(seen) => self.graph.observe(monitor, &seen, &mut follow_ups),
                WatchEvent::Deleted(seen) => self.graph.deleted(monitor, &seen, &mut follow_ups),
            }
        }
        self.follow(follow_ups);
        heard
    }

    /// Starts the next attempt. Returns whether there was one.
    pub(super) fn begin(&mut self) -> bool {
        let Some(uid) = self.attempts.pop_front() else {
            return false;
        };
        self.later.remove(&uid);
        self.under_way.push(RunningAttempt {
            uid,
            attempt: Attempt::new(uid),
            answer: None,
        });
        true
    }

    /// Makes one step of a running attempt: records an answer, then sends a request or carries out
    /// an intent.
    pub(super) fn step(&mut self, simulation: &mut Simulation, number: usize) {
        if self.under_way.is_empty() {
            return;
        }
        let number = number % self.under_way.len();
        let mut under = self.under_way.swap_remove(number);
        if let Some((request, fact)) = under.answer.take() {
            if fact == ReadResult::Absent {
                let mut absent = request.identity.clone();
                if let Some((_, namespace, _)) = simulation.place(&absent) {
                    absent.namespace = namespace;
                }
                let mut follow_ups = FollowUps::default();
                self.graph.mark_absent(&absent, &mut follow_ups);
                self.follow(follow_ups);
            }
            under.attempt.record(request, fact);
        }
        match self.graph.step(&under.attempt) {
            AttemptStep::Read(request) => {
                let identity = &request.identity;
                let namespace = identity.namespace.as_deref().unwrap_or("-");
                simulation.requests.push(format!(
                    "get {}/{} {namespace}/{}",
                    identity.api_version, identity.kind, identity.name
                ));
                under.answer = Some((request.clone(), simulation.get(&request.identity)));
                self.under_way.push(under);
            }
            AttemptStep::Noop(rest) => {
                if matches!(
                    rest,
                    NoopReason::Unknown
                        | NoopReason::Unobserved
                        | NoopReason::Kept(crate::verdict::KeepReason::OwnerUnknown)
                ) {
                    self.later.insert(under.uid);
                }
            }
            AttemptStep::Apply(intent) => self.carry(simulation, under.uid, intent),
        }
    }

    /// Makes all steps of the running attempts.
    pub(super) fn finish_attempts(&mut self, simulation: &mut Simulation) {
        while !self.under_way.is_empty() {
            self.step(simulation, 0);
        }
    }

    /// Makes all attempts that wait, one after the other.
    pub(super) fn attempt_all(&mut self, simulation: &mut Simulation) {
        while self.begin() {
            self.finish_attempts(simulation);
        }
    }

    fn vanish(&mut self, uid: Uid, tried: &str) {
        let mut follow_ups = FollowUps::default();
        self.graph.mark_gone(uid, tried, &mut follow_ups);
        self.follow(follow_ups);
    }

    fn carry(&mut self, simulation: &mut Simulation, uid: Uid, intent: Intent) {
        let item = intent.item().clone();
        let name = format!(
            "{}/{} {}/{}",
            item.api_version,
            item.kind,
            item.namespace.as_deref().unwrap_or("-"),
            item.name
        );
        let (outcome, tried) = send(simulation, &name, intent);
        if outcome == Outcome::Gone {
            self.vanish(uid, &tried);
        }
        match outcome {
            // No watch will report what has become of a virtual node.
            Outcome::Done | Outcome::Gone if self.graph.is_virtual(uid) => drop(self.later.insert(uid)),
            Outcome::Done | Outcome::Gone => {}
            // Like the shell, read the object again at once, and make another attempt with the live
            // object.
            Outcome::Conflict => match simulation.get(&item) {
                ReadResult::Found(seen) => {
                    let request = ReadRequest {
                        identity: item,
                        is_item: true,
                    };
                    self.under_way.push(RunningAttempt {
                        uid,
                        attempt: Attempt::new(uid),
                        answer: Some((request, ReadResult::Found(seen))),
                    });
                }
                ReadResult::Absent => {
                    self.vanish(uid, &tried);
                    self.later.insert(uid);
                }
                ReadResult::Unknown | ReadResult::Misplaced => drop(self.later.insert(uid)),
            },
            Outcome::Failed => drop(self.later.insert(uid)),
        }
    }

    /// Orphans the dependents of the next owner: those in the graph, then those that a scan finds.
    /// Then lets the owner go.
    pub(super) fn orphan(&mut self, simulation: &mut Simulation) -> bool {
        let Some(uid) = self.orphans.pop_front() else {
            return false;
        };
        let Some(Orphaning { owner, dependents }) = self.graph.orphaning(uid) else {
            return true;
        };
        for (item, references) in dependents {
            if simulation.edit(&item, None, &references) == Outcome::Failed {
                self.orphans.push_back(uid);
                return false;
            }
        }
        if !simulation.unserved.is_empty() {
            self.orphans.push_back(uid);
            return false;
        }
        let strays: Vec<ObjectLocation> = simulation
            .objects
            .iter()
            .filter(|(_, object)| !object.meta.references_to(&owner.uid).is_empty())
            .map(|(place, _)| place.clone())
            .collect();
        let is_let_go = strays
            .iter()
            .all(|place| simulation.remove_references_to(place, &owner.uid) == Outcome::Done);
        if !is_let_go || simulation.finish(&owner, true) == Outcome::Failed {
            self.orphans.push_back(uid);
            return false;
        }
        true
    }

    /// Delivers all events and makes all attempts, until nothing is left to do or the collector has
    /// crashed.
    pub(super) fn run_until_idle(&mut self, simulation: &mut Simulation) -> Result<(), String> {
        for _ in 0..10_000 {
            if simulation.has_collector_crashed() {
                return Ok(());
            }
            let kinds: Vec<_> = self.monitors.keys().cloned().collect();
            let mut busy = false;
            for kind in kinds {
                busy |= self.deliver_events(simulation, &kind, usize::MAX);
            }
            busy |= self.orphan(simulation);
            busy |= self.begin();
            while !self.under_way.is_empty() {
                self.step(simulation, 0);
                busy = true;
            }
            if !busy {
                // Retry the postponed objects once nothing else moves.
                let later = std::mem::take(&mut self.later);
                let before = simulation.version;
                for uid in &later {
                    self.attempts.push_back(*uid);
                }
                self.attempt_all(simulation);
                if simulation.version == before && self.attempts.is_empty() {
                    return Ok(());
                }
            }
        }
        Err(format!(
            "the collector does not become idle: {:?}",
            simulation.requests.iter().rev().take(20).collect::<Vec<_>>()
        ))
    }
}

/// Carries out an intent. Returns the outcome, and the version in which an object was deleted.
fn send(simulation: &mut Simulation, name: &str, intent: Intent) -> (Outcome, Box<str>) {
    let item = intent.item().clone();
    match intent {
        Intent::Delete {
            mut version,
            policy,
            unblock,
            ..
        } => {
            simulation.requests.push(format!("delete {name} {policy:?}"));
            let mut outcome = unblocked(simulation, &item, &mut version, &unblock);
            if outcome == Outcome::Done {
                outcome = simulation.collect(&item, &version, policy);
            }
            (outcome, version)
        }
        Intent::BreakCycle {
            mut version,
            references,
            ..
        } => {
            simulation.requests.push(format!("unblock {name}"));
            let outcome = unblocked(simulation, &item, &mut version, &references);
            (outcome, Box::default())
        }
        Intent::RemoveReferences { references, .. } => {
            simulation.requests.push(format!("release {name}"));
            (simulation.edit(&item, None, &references), Box::default())
        }
        Intent::RemoveFinalizer { .. } => {
            simulation.requests.push(format!("finish {name}"));
            (simulation.finish(&item, false), Box::default())
        }
    }
}

/// Unsets `blockOwnerDeletion` in these references, and replaces `version` by the one that the
/// patch creates.
fn unblocked(
    simulation: &mut Simulation,
    item: &Identity,
    version: &mut Box<str>,
    references: &ReferencePositions,
) -> Outcome {
    if references.is_empty() {
        return Outcome::Done;
    }
    let outcome = simulation.edit(item, Some(version), references);
    let now = simulation.place(item).and_then(|place| simulation.objects.get(&place));
    if let Some(object) = now.filter(|_| outcome == Outcome::Done) {
        version.clone_from(&object.meta.resource_version);
    }
    outcome
}
