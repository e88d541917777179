//! The apiserver's side of the simulation: it carries out or rejects effects.

use std::sync::Arc;

use portreeve_reconcile::{Effect, EventSeverity, Object, Propagation, RequestState, Target};
use serde_json::{Value, json, value::to_raw_value};

use super::{Outcome, RecordedEvent, Simulation, identity, merge, slot_of};
use crate::decide::tests::samples::Sample;

impl<K: Sample> Simulation<K> {
    /// Carries out an effect, or rejects it. The process observes the states of its request.
    pub(super) fn perform(&mut self, effect: &Effect) -> Outcome {
        if let Effect::Create(_) = effect {
            self.observe_request(effect, RequestState::Sending);
        }
        let outcome = self.answer(effect);
        let is_outdated = match (effect, &outcome) {
            (Effect::Create(job), Outcome::Done) => self.observe_job(effect, &job.key.name),
            (Effect::Create(_), Outcome::Unanswered) => self.observe_request(effect, RequestState::Unanswered),
            (Effect::Create(_), Outcome::Rejected(..) | Outcome::Over) => {
                self.observe_request(effect, RequestState::Rejected)
            }
            (Effect::Delete { .. }, Outcome::Done) => self.observe_request(effect, RequestState::Deleted),
            (Effect::Create(_), Outcome::Stale) | (Effect::Delete { .. }, _) => {
                self.observe_request(effect, RequestState::Changed)
            }
            (Effect::Read { key, .. }, Outcome::Done) => self.observe_job(effect, &key.name),
            _ => false,
        };
        match effect {
            Effect::Read { .. } if is_outdated => Outcome::Stale,
            _ => outcome,
        }
    }

    fn observe_job(&mut self, effect: &Effect, name: &str) -> bool {
        let job = self.jobs.get(name).map(|job| to_raw_value(&**job).expect("it is JSON"));
        self.observe_request(effect, job.as_deref().map_or(RequestState::Absent, RequestState::Found))
    }

    fn answer(&mut self, effect: &Effect) -> Outcome {
        let text = match effect.status_target() {
            Some(_) => "write status".to_owned(),
            None => effect.to_string(),
        };
        if let Some((_, why)) = self.rejections.iter().find(|(verb, _)| text.starts_with(verb)) {
            return Outcome::Rejected(Box::new(effect.clone()), why);
        }
        match effect {
            Effect::Create(_) if self.is_namespace_terminating => Outcome::Over,
            Effect::Create(object) => self.create(object),
            Effect::PatchStatus { target, status } => self.write_status(target, status),
            Effect::Replace { target, changes, .. } => self.write_status(target, &changes["status"]),
            Effect::Delete { target, propagation } => self.delete(target, *propagation),
            Effect::RequireAbsent {
                key, uid, controller, ..
            } => match self.jobs.get(&*key.name).map(|job| &job["metadata"]) {
                Some(job) if job["uid"] == **uid && job["ownerReferences"][0]["uid"] == **controller => Outcome::Stale,
                _ => Outcome::Done,
            },
            Effect::Read { .. } => Outcome::Done,
            Effect::Event(target, note) => {
                assert_eq!(target.resource, K::RESOURCE, "all events refer to the schedule");
                let subject = note.report_once.clone();
                if subject.is_none_or(|subject| self.process.reported.insert((note.reason, subject))) {
                    self.record.events.push(RecordedEvent {
                        reason: note.reason,
                        message: note.message.clone(),
                        is_warning: note.type_ == EventSeverity::Warning,
                        is_deduplicated: note.report_once.is_some(),
                    });
                }
                Outcome::Done
            }
            Effect::Count { by, .. } => {
                self.record.missed += by;
                Outcome::Done
            }
            Effect::ObserveLatency { since, .. } => {
                assert!(*since <= self.clock, "no run starts early");
                Outcome::Done
            }
            Effect::Apply { .. } | Effect::RequirePresent { .. } | Effect::List { .. } => {
                panic!("no schedule needs {effect}")
            }
        }
    }

    fn create(&mut self, object: &Object) -> Outcome {
        let name = &*object.key.name;
        assert!(name.len() <= 63, "{name} is the value of a label");
        assert_eq!(object.body["metadata"]["name"], *name);
        if self.jobs.contains_key(name) {
            return Outcome::Stale;
        }
        *self.record.created.entry(name.to_owned()).or_default() += 1;
        self.record.writes += 1;
        self.record.last_schedule = self.record.last_schedule.max(slot_of(&object.body));
        self.insert(name, object.body.clone());
        if std::mem::take(&mut self.loses_answer) {
            return Outcome::Unanswered;
        }
        Outcome::Done
    }

    fn write_status(&mut self, target: &Target, status: &Value) -> Outcome {
        assert_eq!(target.resource, K::RESOURCE);
        if (&target.uid, &target.version) != (&identity(&self.object).0, &identity(&self.object).1) {
            return Outcome::Stale;
        }
        let mut status = status.clone();
        if (self.is_earlier_version || self.is_earlier_definition)
            && let Some(fields) = status.as_object_mut()
        {
            fields.remove("jobNameFormat");
        }
        let mut patched = self.object.clone();
        merge(&mut patched, &json!({"status": status}));
        self.record.writes += 1;
        // A patch without changes creates no new version. A controller that repeats it is still
        // noticed by its number of writes.
        if patched != self.object {
            self.touch(|object| *object = patched);
        }
        Outcome::Done
    }

    fn delete(&mut self, target: &Target, propagation: Propagation) -> Outcome {
        let name = &*target.key.name;
        assert_eq!(propagation, Propagation::Background);
        match self.jobs.get(name).map(|job| identity(job)) {
            // A missing object counts as deleted.
            None => Outcome::Done,
            Some(now) if now == (Arc::clone(&target.uid), Arc::clone(&target.version)) => {
                self.record.deleted.push(name.to_owned());
                self.record.writes += 1;
                self.remove_job(name);
                Outcome::Done
            }
            Some(_) => Outcome::Stale,
        }
    }
}
