//! Deletes the content of a namespace.
//!
//! A deletion of a collection names its namespace and has no preconditions: it deletes what is in
//! the namespace of this name when the apiserver handles it. So it is sent only after a GET has
//! shown the namespace with the UID of the attempt and a deletionTimestamp, which nothing can
//! revoke. A namespace with this UID stays until it is finalized, and this controller finalizes it
//! only after each such deletion was answered, or
//! [`Settings::late`](super::Settings::late) after the last one that was not. The few objects of a
//! small namespace are deleted one by one instead, with preconditions.

use std::sync::Arc;

use futures::{StreamExt, stream};
use portreeve_api::Resource;
use portreeve_informer::{ServedResources, Verb};
use portreeve_workqueue::Work;
use tokio::time::Instant;

use super::{
    NamespaceContext,
    requests::RequestError,
    survey::{Listed, PARALLEL, Survey},
    throttling::Throttling,
};
use crate::content::{Content, ContentMetadata};

/// The stages in which resources are deleted. Each begins when nothing of the one before is left.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Stage {
    /// Pods, so that nothing runs without what it uses, as in kube-controller-manager.
    Pods,
    Others,
    /// What controllers need that remove finalizers from the others:
    /// kubernetes/kubernetes#115070.
    Access,
}

impl Stage {
    const ALL: [Self; 3] = [Self::Pods, Self::Others, Self::Access];

    fn of(resource: &Resource) -> Self {
        match (&*resource.group, &*resource.plural) {
            ("", "pods") => Self::Pods,
            ("", "secrets" | "serviceaccounts") | ("rbac.authorization.k8s.io", _) => Self::Access,
            _ => Self::Others,
        }
    }
}

/// Why deletions end early.
#[derive(Debug)]
pub(super) enum Interruption {
    /// Another namespace has the name, or none.
    Gone,
    /// The process stops, or no longer leads.
    Stopping,
    Failed(RequestError),
}

/// A namespace whose content is deleted.
pub(super) struct Deletion<'a> {
    pub(super) ctx: &'a NamespaceContext,
    pub(super) work: &'a Work<Arc<str>>,
    pub(super) served: &'a ServedResources,
    pub(super) uid: &'a str,
}

impl Deletion<'_> {
    fn namespace(&self) -> &str {
        self.work.key()
    }

    /// Deletes what the survey has found, stage by stage, and records what is left.
    pub(super) async fn run(&self, survey: &mut Survey) -> Result<(), Interruption> {
        for stage in Stage::ALL {
            let of_stage = |resource: &&Resource| Stage::of(resource) == stage;
            let resources: Vec<_> = survey.resources.iter().filter(of_stage).cloned().collect();
            let needed = resources
                .iter()
                .filter(|resource| survey.needs_deletion(self.served, resource));
            let deletions: Vec<_> = needed
                .map(|resource| async {
                    let known = survey.content(resource).and_then(Content::all);
                    (resource.clone(), self.empty(resource, known).await)
                })
                .collect();
            // Each runs to its end: a deletion that was sent must be known to be answered.
            let deleted: Vec<_> = stream::iter(deletions).buffer_unordered(PARALLEL).collect().await;
            for (resource, result) in deleted {
                let (listed, failure) = result?;
                survey.record(&resource, listed);
                if let Some(failure) = failure {
                    survey.fail_with(&resource, &failure);
                } else if let Some(failure) = unexpected(survey.content(&resource)) {
                    survey.fail(&resource, failure);
                }
            }
            if resources.iter().any(|resource| survey.has_left(resource)) {
                break;
            }
        }
        Ok(())
    }

    /// Deletes the objects of a resource, of which all may be known. Returns what is left, and why
    /// the deletion failed.
    async fn empty(
        &self,
        resource: &Resource,
        known: Option<&[ContentMetadata]>,
    ) -> Result<(Listed, Option<RequestError>), Interruption> {
        tracing::info!(namespace = self.namespace(), %resource, "deleting the content of a namespace");
        if let Some(known) = known {
            self.confirm().await?;
            let sent = self.delete_objects(resource, known).await;
            let listed = self.ctx.list(self.served, self.work, resource).await;
            let is_done = !matches!(&listed, Listed::Content(content) if content.live > 0);
            // Objects that have changed meanwhile are deleted as the others are.
            if is_done || sent.is_err() {
                return Ok((listed, sent.err()));
            }
        }
        let sent = if self.served.supports(resource, Verb::DeleteCollection) {
            match self.delete_collection(resource).await? {
                Err(error) if error.is_unsupported() => self.delete_each(resource).await?,
                sent => sent,
            }
        } else {
            self.delete_each(resource).await?
        };
        self.work.report_progress();
        let listed = self.ctx.list(self.served, self.work, resource).await;
        self.work.report_progress();
        Ok(match sent {
            // Whether the resource has gone, the caller asks discovery.
            Err(error) if error.is_not_found() => (Listed::NotServed, None),
            Err(error) => (listed, Some(error)),
            Ok(()) => (listed, None),
        })
    }

    /// Returns an error unless the namespace is still the one of the attempt, and being deleted.
    async fn confirm(&self) -> Result<(), Interruption> {
        if self.ctx.queue.is_closed() {
            return Err(Interruption::Stopping);
        }
        let namespace = self.ctx.requests.namespace(self.namespace()).await;
        match namespace.map_err(Interruption::Failed)? {
            Some(namespace) if *namespace.metadata.uid == *self.uid && namespace.needs_us() => Ok(()),
            _ => Err(Interruption::Gone),
        }
    }

    /// Deletes all objects of a resource with one request, which is repeated while it is throttled.
    async fn delete_collection(&self, resource: &Resource) -> Result<Result<(), RequestError>, Interruption> {
        let mut throttling = Throttling::default();
        loop {
            self.confirm().await?;
            let sent = self.ctx.requests.delete_collection(resource, self.namespace()).await;
            let Err(error) = &sent else { return Ok(sent) };
            if error.may_go_on() {
                let until = Instant::now() + self.ctx.settings.late();
                self.ctx.tracked.update(self.namespace(), self.uid, |tracked| {
                    tracked.unanswered_until = Some(until);
                });
            }
            if !throttling.waits(error.throttled()).await {
                return Ok(sent);
            }
            self.work.report_progress();
        }
    }

    /// Deletes these objects, each in the version that a list has shown. An object that cannot be
    /// deleted does not keep the others. Returns the first failure.
    async fn delete_objects(&self, resource: &Resource, objects: &[ContentMetadata]) -> Result<(), RequestError> {
        let mut first = Ok(());
        for object in objects.iter().filter(|object| object.needs_deletion()) {
            let deleted = self.ctx.requests.delete(resource, self.namespace(), object).await;
            first = first.and(deleted);
            self.work.report_progress();
        }
        first
    }

    /// Deletes all objects of a resource, page by page. Returns the first failure.
    async fn delete_each(&self, resource: &Resource) -> Result<Result<(), RequestError>, Interruption> {
        let mut next = None;
        let mut first = Ok(());
        loop {
            let page = self
                .ctx
                .requests
                .page(resource, Some(self.namespace()), next.as_deref())
                .await;
            let (objects, following) = match page {
                Ok(page) => page,
                Err(error) => return Ok(first.and(Err(error))),
            };
            self.confirm().await?;
            first = first.and(self.delete_objects(resource, &objects).await);
            if following.is_none() {
                return Ok(first);
            }
            next = following;
        }
    }
}

/// Returns why objects should not be left after a successful deletion: nobody holds them.
fn unexpected(content: Option<&Content>) -> Option<String> {
    let undeleted = content?.undeleted;
    (undeleted > 0).then(|| format!("unexpected items still remain: {undeleted} are not deleted"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_go_first_and_access_goes_last() {
        let stage =
            |group: &'static str, plural: &'static str| Stage::of(&Resource::namespaced(group, "v1", "Kind", plural));
        assert_eq!(stage("", "pods"), Stage::Pods);
        assert_eq!(stage("metrics.k8s.io", "pods"), Stage::Others);
        assert_eq!(stage("", "configmaps"), Stage::Others);
        for plural in ["roles", "rolebindings"] {
            assert_eq!(stage("rbac.authorization.k8s.io", plural), Stage::Access);
        }
        assert_eq!(stage("", "secrets"), Stage::Access);
        assert_eq!(stage("example.com", "secrets"), Stage::Others);
    }
}
