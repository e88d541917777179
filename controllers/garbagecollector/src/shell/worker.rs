//! Workers: each takes one object after the other, asks what has to be asked, and does what it comes to.

use std::sync::Arc;

use portreeve_api::Resource;
use portreeve_client::Answer;
use portreeve_reconcile::Note;
use portreeve_workqueue::{Outcome, Work};

use super::{
    Core,
    journal::{Action, Decision},
    key_of,
    monitors::short,
    requests::{self, Failure},
};
use crate::{
    Attempt, Fact, Identity, Intent, Question, Rest, Step, Uid,
    seen::FOREGROUND,
    verdict::{Policy, Reason, Standing},
};

/// How often an object that changes under our hands is decided on again at once.
const CONFLICTS: u32 = 10;
/// How many steps an attempt may take: far more than references that an object can hold.
const STEPS: u32 = 10_000;

/// Works until the queue is closed.
pub(super) async fn run(core: Arc<Core>) {
    while let Some(work) = core.attempts.take().await {
        let outcome = core.attempt(&work).await;
        work.finish(outcome);
    }
}

/// How carrying out an intent ended.
enum End {
    Done,
    /// Look at the object again, and decide again.
    Again,
    Later(Failure),
    /// Not now: somebody has to allow it.
    Parked,
}

impl Core {
    /// One attempt at one object.
    async fn attempt(&self, work: &Work<Uid>) -> Outcome {
        let uid = *work.key();
        let mut attempt = Attempt::new(uid);
        let mut conflicts = 0;
        for _ in 0..STEPS {
            work.step();
            let step = self.graph.lock().step(&attempt);
            match step {
                Step::Ask(question) => {
                    let fact = if conflicts > 0 {
                        self.read(&question.identity).await
                    } else {
                        self.ask(&question.identity).await
                    };
                    attempt.tell(question, fact);
                }
                Step::Rest(rest) => return self.rest(uid, rest),
                Step::Do(intent) => match self.carry(&intent).await {
                    End::Parked => return Outcome::Forget,
                    End::Done => {
                        self.succeeded(uid, false);
                        // No watch will tell what has become of it.
                        let is_virtual = self.graph.lock().is_virtual(uid);
                        return if is_virtual { Outcome::Retry } else { Outcome::Forget };
                    }
                    End::Later(failure) => return self.later(uid, &intent, &failure),
                    End::Again if conflicts == CONFLICTS => return self.later(uid, &intent, &Failure::Conflict),
                    End::Again => {
                        conflicts += 1;
                        attempt = Attempt::new(uid);
                        let again = intent;
                        if !self.look_again(&mut attempt, &again).await {
                            return self.later(uid, &again, &Failure::Conflict);
                        }
                    }
                },
            }
        }
        Outcome::Retry
    }

    /// Reads the object that has changed. `false`: nobody can tell how it is.
    async fn look_again(&self, attempt: &mut Attempt, intent: &Intent) -> bool {
        let version = match intent {
            Intent::Delete { version, .. } => version.clone(),
            _ => Box::default(),
        };
        let item = intent.item().clone();
        match self.read(&item).await {
            Fact::Alive(seen) => {
                let question = Question {
                    identity: item,
                    is_item: true,
                };
                attempt.tell(question, Fact::Alive(seen));
                true
            }
            Fact::Absent => {
                self.vanished(&item, &version);
                true
            }
            Fact::Unknown | Fact::Misplaced => false,
        }
    }

    /// The apiserver says that the object is gone which was tried at in that version.
    fn vanished(&self, item: &Identity, version: &str) {
        self.change(|graph, effects| {
            if let Some(uid) = graph.uid(&item.uid) {
                graph.vanished(uid, version, effects);
            }
        });
    }

    fn rest(&self, uid: Uid, rest: Rest) -> Outcome {
        self.metrics.attempt("noop", rest_name(rest));
        match rest {
            Rest::Unknown | Rest::Kept(Reason::OwnerUnknown) => {
                self.failed((uid, false), "an owner cannot be asked for".to_owned(), true);
                Outcome::Retry
            }
            // It may be deleted before any watch has shown it: see kubernetes/kubernetes#56121.
            Rest::Unobserved => Outcome::Retry,
            Rest::Gone | Rest::Absent | Rest::Kept(_) => {
                self.succeeded(uid, false);
                Outcome::Forget
            }
        }
    }

    fn later(&self, uid: Uid, intent: &Intent, failure: &Failure) -> Outcome {
        let message = failure.to_string();
        tracing::debug!(item = %intent.item(), reason = message, "failed, trying again");
        if self.failed((uid, false), message.clone(), false) {
            self.note_down(intent, &format!("failed: {message}"));
        } else if matches!(failure, Failure::Other { .. }) {
            // Once is enough to say that, and why.
            return again(failure);
        }
        if matches!(failure, Failure::Other { answer, .. } if is_refused(*answer)) {
            tracing::warn!(item = %intent.item(), reason = message, "the apiserver refuses what the collector asks for");
            let note = Note::warning(
                "GarbageCollectionRefused",
                "Collect",
                format!("The apiserver refuses to let the garbage collector change this object: {message}"),
            );
            self.note(intent.item(), &note.once(message));
        }
        again(failure)
    }

    /// Does what was decided.
    async fn carry(&self, intent: &Intent) -> End {
        let (action, item) = (Action::of(intent), intent.item());
        let Some(resource) = self.resource(item) else {
            return End::Later(Failure::Other {
                message: format!("{} of {} is not served", item.kind, item.api_version),
                answer: Answer::NotFound,
                after: None,
            });
        };
        if self.settings.ignored.contains(&short(&resource)) {
            return End::Done;
        }
        if self.settings.observe {
            let because = because(intent);
            tracing::info!(%item, action = action.word(), because, "observed: nothing is written");
            self.note_down(intent, "observed: nothing was written");
            self.metrics.attempt(action.metric(), "observed");
            return End::Done;
        }
        if matches!(intent, Intent::Delete { .. }) && !self.breaker.admit(self) {
            self.breaker.park(self, item);
            return End::Parked;
        }
        let sent = self.send(intent, &resource).await;
        if matches!(intent, Intent::Delete { .. }) && sent.as_ref().is_err_and(Failure::is_refusal) {
            self.breaker.give_back();
        }
        let result = match &sent {
            Ok(()) => "success",
            Err(Failure::Gone) => "gone",
            Err(Failure::Conflict) => "conflict",
            Err(Failure::Other { .. }) => "error",
        };
        self.metrics.attempt(action.metric(), result);
        match sent {
            Ok(()) => {
                tracing::info!(%item, action = action.word(), because = because(intent), "done");
                self.note_down(intent, "done");
                End::Done
            }
            Err(Failure::Gone) => {
                if let Intent::Delete { version, .. } = intent {
                    self.vanished(item, version);
                }
                End::Done
            }
            Err(Failure::Conflict) => End::Again,
            Err(failure) => End::Later(failure),
        }
    }

    fn note_down(&self, intent: &Intent, result: &str) {
        self.journal.write(Decision {
            at: self.clock.now(),
            action: Action::of(intent),
            item: intent.item().clone(),
            owners: owners(intent),
            result: result.to_owned(),
        });
    }

    async fn send(&self, intent: &Intent, resource: &Resource) -> Result<(), Failure> {
        let item = intent.item();
        let key = key_of(resource, item);
        match intent {
            Intent::Delete {
                version,
                policy,
                unblock,
                ..
            } => self.delete(resource, item, version, *policy, unblock).await,
            Intent::Release { references, .. } => {
                let patch = requests::releasing(&item.uid, references);
                requests::patch(&self.client, resource, &key, &patch).await.map(drop)
            }
            Intent::Finish { .. } => requests::finish(&self.client, resource, &key, &item.uid, FOREGROUND).await,
        }
    }

    async fn delete(
        &self,
        resource: &Resource,
        item: &Identity,
        version: &str,
        policy: Policy,
        unblock: &[(usize, Box<str>)],
    ) -> Result<(), Failure> {
        let key = key_of(resource, item);
        let mut version = version.to_owned();
        if !unblock.is_empty() {
            let patch = requests::unblocking(&item.uid, &version, unblock);
            let seen = requests::patch(&self.client, resource, &key, &patch).await;
            self.metrics
                .attempt("unblock", if seen.is_ok() { "success" } else { "error" });
            version = seen?.metadata.resource_version.into();
        }
        requests::delete(&self.client, resource, &key, (&item.uid, &version), policy).await
    }
}

fn is_refused(answer: Answer) -> bool {
    matches!(answer, Answer::Forbidden | Answer::Invalid)
}

/// When to try again what has failed.
fn again(failure: &Failure) -> Outcome {
    match failure {
        Failure::Other { after: Some(after), .. } => Outcome::RetryAfter(*after),
        _ => Outcome::Retry,
    }
}

fn owners(intent: &Intent) -> Vec<(Identity, Standing)> {
    match intent {
        Intent::Delete { owners, .. } | Intent::Release { owners, .. } => owners.clone(),
        Intent::Finish { .. } => Vec::new(),
    }
}

/// The owners that it was decided by, for the log.
fn because(intent: &Intent) -> String {
    if matches!(intent, Intent::Finish { .. }) {
        return "no dependent blocks it any more".to_owned();
    }
    let owners = owners(intent);
    let owners = owners
        .iter()
        .map(|(owner, standing)| format!("{owner} is {}", standing.word()));
    owners.collect::<Vec<_>>().join(", ")
}

fn rest_name(rest: Rest) -> &'static str {
    match rest {
        Rest::Gone => "gone",
        Rest::Absent => "absent",
        Rest::Unknown => "unknown",
        Rest::Unobserved => "unobserved",
        Rest::Kept(Reason::BeingDeleted) => "being_deleted",
        Rest::Kept(Reason::WaitsForDependents) => "waits_for_dependents",
        Rest::Kept(Reason::NoOwner) => "no_owner",
        Rest::Kept(Reason::Owned) => "owned",
        Rest::Kept(Reason::OwnerUnknown) => "owner_unknown",
        Rest::Kept(Reason::OwnerMisplaced) => "owner_misplaced",
    }
}
