//! One attempt to finish the deletion of a namespace.
//!
//! It lists everything, says in the conditions what it has found, deletes what nobody has deleted
//! yet, lists again, and finalizes the namespace if nothing is left. The conditions are written
//! before anything is deleted, so that they tell a new leader of which namespaces a deletion may
//! still be on its way.

use std::{sync::Arc, time::Duration};

use portreeve_api::Resource;
use portreeve_client::error_chain;
use portreeve_informer::{ServedResources, Verb};
use portreeve_reconcile::{Applied, Effect, Plan, Target};
use portreeve_workqueue::{Outcome, Work};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    NamespaceContext,
    deletion::{Deletion, Interruption},
    other_manager::Holder,
    requests::{FINALIZER, NAMESPACES, Namespace, RequestError},
    survey::Survey,
    throttling::Throttling,
    tracked::{Progress, Tracked},
};
use crate::findings::{Findings, has_conditions};

/// The namespaces that this controller never touches. The apiserver lets only kube-node-lease of
/// them be deleted, which then stays.
const PROTECTED: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];
/// From this age of the deletion on, conditions name objects. Until then their messages are exactly
/// those of kube-controller-manager, which Kubernetes' tests compare.
const DETAILS_AFTER: Duration = Duration::from_mins(1);
/// When deletions have taken longer than this, everything is listed once more before the namespace
/// is finalized. Each list is a request for each resource, the greatest cost of a small namespace.
const RELIST_AFTER: Duration = Duration::from_secs(2);
/// How often discovery is read until it succeeds.
const DISCOVERY_TRIES: u32 = 5;
/// How often the conditions are written at once if the namespace changes meanwhile.
const CONFLICTS: u32 = 10;

/// How an attempt ends.
pub(super) enum End {
    /// There is nothing to do any more.
    Done,
    /// The namespace has changed meanwhile.
    Again,
    /// The namespace is empty, and kept until then.
    Held(Instant),
    /// kube-controller-manager does the work.
    Yielded(Holder),
    /// Objects are left, or may be, of the resources that were served when it began. The next
    /// attempt is not before this delay.
    Remaining(Findings, Duration, Arc<ServedResources>),
    Failed(RequestError),
}

impl From<RequestError> for End {
    fn from(error: RequestError) -> Self {
        Self::Failed(error)
    }
}

impl From<Interruption> for End {
    fn from(interruption: Interruption) -> Self {
        match interruption {
            Interruption::Gone | Interruption::Stopping => Self::Again,
            Interruption::Failed(error) => Self::Failed(error),
        }
    }
}

impl NamespaceContext {
    /// Attempts to finish the deletion of a namespace.
    pub(super) async fn attempt(&self, work: &Work<Arc<str>>) -> Outcome {
        let name = work.key();
        let Some(tracked) = self.tracked.get(name) else {
            self.watches.wait_for(name, &[]);
            return Outcome::Forget;
        };
        let due = self.due(&tracked);
        if Instant::now() < due {
            return Outcome::At(due);
        }
        let end = self.advance(work, &tracked).await.unwrap_or_else(|end| end);
        let outcome = self.conclude(name, &tracked.uid, end);
        self.report_stuck(name);
        outcome
    }

    /// Returns when the grace of a namespace is over.
    pub(super) fn due(&self, tracked: &Tracked) -> Instant {
        tracked.since + self.settings.grace
    }

    async fn advance(&self, work: &Work<Arc<str>>, tracked: &Tracked) -> Result<End, End> {
        let name = work.key();
        let uid = &*tracked.uid;
        let namespace = self.requests.namespace(name).await?;
        let Some(namespace) = namespace.filter(|namespace| *namespace.metadata.uid == *uid) else {
            return Ok(End::Done);
        };
        let is_protected = PROTECTED.contains(&&**name);
        if is_protected || !namespace.needs_us() {
            let state = if is_protected {
                Progress::Protected
            } else {
                Progress::Finalized
            };
            self.tracked.update(name, uid, |tracked| tracked.state = state);
            return Ok(End::Done);
        }
        let is_inherited = has_conditions(namespace.conditions());
        self.tracked.update(name, uid, |tracked| {
            tracked.is_inherited.get_or_insert(is_inherited);
        });
        let served = self.read_discovery().await?;
        self.yield_to_other(&served).await?;
        let mut survey = Survey::new(&served, self.due(tracked));
        self.list_into(&mut survey, &served, work, None).await;
        let listed = Instant::now();
        if !self.settings.observe {
            if survey.needs_deletions(&served) {
                self.write_conditions(name, &survey.findings, tracked, Some(namespace))
                    .await?;
                let deletion = Deletion {
                    ctx: self,
                    work,
                    served: &served,
                    uid,
                };
                deletion.run(&mut survey).await?;
                if survey.findings.is_empty() && listed.elapsed() > RELIST_AFTER {
                    // What was being created when the first lists were sent may exist now. A list
                    // of all namespaces shows it if it began this long after them.
                    survey.due = listed + RELIST_AFTER;
                    self.list_into(&mut survey, &served, work, None).await;
                    if survey.findings.count() > 0 {
                        return Ok(End::Again);
                    }
                }
            }
            self.watch_remaining(work, &mut survey, &served).await;
        }
        self.check_hidden(&mut survey, work).await?;
        if survey.findings.is_empty() {
            return self.finalize(name, uid).await;
        }
        self.write_conditions(name, &survey.findings, tracked, None).await?;
        Ok(End::Remaining(survey.findings, survey.delay, served))
    }

    /// Ends the attempt while a kube-controller-manager works.
    async fn yield_to_other(&self, served: &ServedResources) -> Result<(), End> {
        if self.settings.observe || !self.settings.yields {
            return Ok(());
        }
        let holder = self.other_manager.holder(&self.requests, served).await?;
        holder.map_or(Ok(()), |holder| Err(End::Yielded(holder)))
    }

    /// Returns the resources that are served now.
    async fn read_discovery(&self) -> Result<Arc<ServedResources>, RequestError> {
        let failed = |why: String| RequestError::other(format!("failed to discover the resources: {why}"));
        let mut tries = 1;
        while let Err(failure) = self.discovery.read_now().await {
            // Discovery waits after a failure, for as long as the apiserver asks it to.
            if tries == DISCOVERY_TRIES {
                return Err(failed(failure.message));
            }
            tries += 1;
        }
        let served = self.served.borrow().clone();
        served.ok_or_else(|| failed("there are none yet".to_owned()))
    }

    /// Lists these resources, or all, into the survey.
    async fn list_into(
        &self,
        survey: &mut Survey,
        served: &ServedResources,
        work: &Work<Arc<str>>,
        resources: Option<&[Resource]>,
    ) {
        let resources = resources.unwrap_or(&survey.resources);
        for (resource, listed) in self.list_all(served, work, resources, survey.due).await {
            survey.record(&resource, listed);
        }
    }

    /// Watches what remains, and then lists it once more: an object that left before the watch
    /// began would not be noticed.
    async fn watch_remaining(&self, work: &Work<Arc<str>>, survey: &mut Survey, served: &ServedResources) {
        let remaining = survey.remaining();
        let watchable = |resource: &&Resource| served.supports(resource, Verb::Watch);
        let watched: Vec<_> = remaining.iter().filter(watchable).cloned().collect();
        self.watches.wait_for(work.key(), &watched);
        let failures = survey.findings.failures.clone();
        self.list_into(survey, served, work, Some(&watched)).await;
        // The list does not prove that the deletion works now.
        for (name, why) in failures {
            survey.findings.failures.entry(name).or_insert(why);
        }
        if watched.iter().any(|resource| survey.is_gone(resource)) {
            // The next stage may begin.
            self.queue
                .add(Arc::clone(work.key()), portreeve_workqueue::Lane::Urgent);
        }
    }

    /// Adds what a namespace that seems empty may hide: resources that discovery has found since
    /// the survey began, those that answered 404 although they are served, and definitions that
    /// discovery does not show yet.
    async fn check_hidden(&self, survey: &mut Survey, work: &Work<Arc<str>>) -> Result<(), End> {
        let served = self.served.borrow().clone().unwrap_or_default();
        if survey.findings.is_empty() {
            let new = survey.extend(&served);
            self.list_into(survey, &served, work, Some(&new)).await;
            if survey.findings.count() > 0 {
                return Err(End::Again);
            }
        }
        if !survey.not_served.is_empty() {
            let served = self.read_discovery().await?;
            for resource in survey.not_served.clone() {
                // Another version may serve the same objects.
                let is_same = |other: &Resource| other.group == resource.group && other.plural == resource.plural;
                if served.preferred(&[]).any(is_same) || served.is_failed(&resource) {
                    let why = "the apiserver answered 404, but discovery shows the resource".to_owned();
                    survey.fail(&resource, why);
                }
            }
        }
        if survey.findings.is_empty() {
            survey.findings.hidden = self.undiscovered(&served).await?;
        }
        Ok(())
    }

    /// Finalizes a namespace that is empty, unless a deletion may still be on its way.
    async fn finalize(&self, name: &Arc<str>, uid: &str) -> Result<End, End> {
        if self.settings.observe {
            tracing::info!(namespace = %name, "skipped the finalization of an empty namespace in observe mode");
            return Ok(End::Held(Instant::now() + self.settings.stuck_after));
        }
        let tracked = self
            .tracked
            .get(name)
            .filter(|tracked| *tracked.uid == *uid)
            .ok_or(End::Done)?;
        let inherited = tracked
            .is_inherited
            .unwrap_or(true)
            .then(|| self.term_began() + self.settings.late());
        let of_other = self.other_manager.last_held().filter(|held| tracked.since <= *held);
        let of_other = of_other.map(|held| held + self.settings.late());
        let until = inherited.max(tracked.unanswered_until).max(of_other);
        if let Some(until) = until.filter(|until| Instant::now() < *until) {
            return Ok(End::Held(until));
        }
        let served = self.served.borrow().clone().unwrap_or_default();
        self.yield_to_other(&served).await?;
        let namespace = self.requests.namespace(name).await?;
        let Some(namespace) = namespace.filter(|now| *now.metadata.uid == *uid && now.needs_us()) else {
            return Ok(End::Again);
        };
        let others: Vec<_> = namespace
            .finalizers()
            .iter()
            .filter(|finalizer| **finalizer != FINALIZER)
            .collect();
        let changes = json!({"spec": {"finalizers": others}});
        self.replace(&namespace, "finalize", changes).await?;
        tracing::info!(namespace = %name, "finalized an empty namespace");
        self.tracked
            .update(name, uid, |tracked| tracked.state = Progress::Finalized);
        Ok(End::Done)
    }

    /// Writes the conditions to the current version of the namespace, which may be `known`. Others
    /// may change it at any time, and must not keep its content from being deleted.
    async fn write_conditions(
        &self,
        name: &str,
        findings: &Findings,
        tracked: &Tracked,
        mut known: Option<Namespace>,
    ) -> Result<(), End> {
        for _ in 1..CONFLICTS {
            match self
                .try_to_write_conditions(name, findings, tracked, known.take())
                .await
            {
                Err(End::Again) => {}
                written => return written,
            }
        }
        self.try_to_write_conditions(name, findings, tracked, None).await
    }

    async fn try_to_write_conditions(
        &self,
        name: &str,
        findings: &Findings,
        tracked: &Tracked,
        known: Option<Namespace>,
    ) -> Result<(), End> {
        let namespace = match known {
            Some(namespace) => Some(namespace),
            None => self.requests.namespace(name).await?,
        };
        let Some(namespace) = namespace.filter(|namespace| *namespace.metadata.uid == *tracked.uid) else {
            return Err(End::Done);
        };
        if self.settings.observe {
            return Ok(());
        }
        let details = tracked.since.elapsed() >= self.details_after();
        let conditions = findings.conditions(namespace.conditions(), details, self.clock.now());
        if conditions.is_none() && namespace.is_in_terminating_phase() {
            return Ok(());
        }
        let mut status = json!({"phase": "Terminating"});
        if let Some(conditions) = conditions {
            status["conditions"] = Value::Array(conditions);
        }
        self.replace(&namespace, "status", json!({ "status": status })).await
    }

    pub(super) fn details_after(&self) -> Duration {
        DETAILS_AFTER.min(self.settings.stuck_after)
    }

    /// Replaces a subresource of this version of the namespace.
    async fn replace(&self, namespace: &Namespace, subresource: &'static str, changes: Value) -> Result<(), End> {
        let plan = Plan::of(vec![Effect::Replace {
            target: Target::of(&NAMESPACES, &namespace.metadata),
            subresource: Some(subresource),
            changes,
        }]);
        let mut throttling = Throttling::default();
        loop {
            match self.applier.run(&plan).await {
                Applied::Done => return Ok(()),
                Applied::Stale(_) => return Err(End::Again),
                Applied::Failed { after, .. }
                    if throttling.waits(Some(after).filter(|after| !after.is_zero())).await => {}
                Applied::Failed { error, .. } | Applied::Refused(error) => {
                    return Err(End::Failed(RequestError::other(error_chain(&error))));
                }
            }
        }
    }
}
