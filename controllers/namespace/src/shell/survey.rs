//! What an attempt reads: the content of a namespace, and what may be hidden from it.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures::{StreamExt, future::join_all, stream};
use portreeve_api::{CRDS, Resource, Scope};
use portreeve_informer::{ServedResources, Verb};
use portreeve_workqueue::Work;
use serde::{Deserialize, de::IgnoredAny};
use tokio::time::Instant;

use super::{
    NamespaceContext,
    requests::{RequestError, Requests},
    shared_read::SharedRead,
};
use crate::{
    content::{Content, ContentMetadata},
    findings::{Findings, Name},
};

const API_SERVICES: Resource = Resource::cluster("apiregistration.k8s.io", "v1", "APIService", "apiservices");
/// The number of resources of a namespace that are listed or deleted at once. Lists of all
/// namespaces do not count: all attempts together send each once.
pub(super) const PARALLEL: usize = 8;

/// The names of the objects of a resource.
pub(super) type Names = Result<Arc<[String]>, RequestError>;

/// What is known of one resource in a namespace.
#[derive(Debug)]
pub(super) enum Listed {
    Content(Content),
    /// The apiserver answered 404: the resource may have gone.
    NotServed,
    /// The resource has no verb `list`. It counts as empty, as in kube-controller-manager.
    Unlistable,
    Failed(RequestError),
}

/// The content of a namespace, as an attempt learns it.
pub(super) struct Survey {
    /// The resources with namespaced objects that can be deleted.
    pub(super) resources: Vec<Resource>,
    pub(super) findings: Findings,
    /// The resources for which the apiserver answered 404.
    pub(super) not_served: HashSet<Resource>,
    /// The longest delay that the apiserver asked for.
    pub(super) delay: Duration,
    /// A list of all namespaces counts if it began after this.
    pub(super) due: Instant,
}

impl Survey {
    /// Creates a survey that has read nothing yet.
    pub(super) fn new(served: &ServedResources, due: Instant) -> Self {
        let all = served.preferred(&[Verb::Delete]);
        let resources = all.filter(|resource| resource.scope == Scope::Namespaced && !served.is_failed(resource));
        let hidden = served.may_hide_namespaced(Verb::Delete);
        Self {
            resources: resources.cloned().collect(),
            findings: Findings {
                hidden: hidden
                    .map(|version| format!("{version}: it cannot be discovered"))
                    .collect(),
                ..Findings::default()
            },
            not_served: HashSet::new(),
            delay: Duration::ZERO,
            due,
        }
    }

    /// Adds what is served now and was not when the survey began. Returns the new resources, which
    /// are not listed yet.
    pub(super) fn extend(&mut self, served: &ServedResources) -> Vec<Resource> {
        let mut now = Self::new(served, self.due);
        now.resources.retain(|resource| !self.resources.contains(resource));
        self.resources.extend_from_slice(&now.resources);
        self.findings.hidden.append(&mut now.findings.hidden);
        now.resources
    }

    /// Records the state of a resource, which replaces what was known of it.
    pub(super) fn record(&mut self, resource: &Resource, listed: Listed) {
        let name = Name::of(resource);
        self.findings.content.remove(&name);
        self.findings.failures.remove(&name);
        self.not_served.remove(resource);
        match listed {
            Listed::Content(content) if content.is_empty() => {}
            Listed::Content(content) => drop(self.findings.content.insert(name, content)),
            Listed::NotServed => drop(self.not_served.insert(resource.clone())),
            Listed::Unlistable => {}
            Listed::Failed(error) => self.fail_with(resource, &error),
        }
    }

    /// Records that a request failed.
    pub(super) fn fail_with(&mut self, resource: &Resource, error: &RequestError) {
        self.delay = self.delay.max(error.requested_delay());
        self.fail(resource, error.to_string());
    }

    /// Returns whether something is left, or may be, of a resource.
    pub(super) fn has_left(&self, resource: &Resource) -> bool {
        self.content(resource).is_some() || self.findings.failures.contains_key(&Name::of(resource))
    }

    /// Returns whether a list has shown that nothing is left of a resource.
    pub(super) fn is_gone(&self, resource: &Resource) -> bool {
        !self.has_left(resource) && !self.not_served.contains(resource)
    }

    /// Returns whether anything needs a deletion.
    pub(super) fn needs_deletions(&self, served: &ServedResources) -> bool {
        self.resources
            .iter()
            .any(|resource| self.needs_deletion(served, resource))
    }

    /// Records that the content of a resource could not be read or deleted.
    pub(super) fn fail(&mut self, resource: &Resource, why: String) {
        self.findings.failures.insert(Name::of(resource), why);
    }

    pub(super) fn content(&self, resource: &Resource) -> Option<&Content> {
        self.findings.content.get(&Name::of(resource))
    }

    /// Returns whether a resource has objects that need a deletion, as far as that is known.
    pub(super) fn needs_deletion(&self, served: &ServedResources, resource: &Resource) -> bool {
        match self.content(resource) {
            Some(content) => content.live > 0,
            None => !served.supports(resource, Verb::List) && served.supports(resource, Verb::DeleteCollection),
        }
    }

    /// Returns the resources of which objects are left.
    pub(super) fn remaining(&self) -> Vec<Resource> {
        let remaining = self
            .resources
            .iter()
            .filter(|resource| self.content(resource).is_some());
        remaining.cloned().collect()
    }
}

impl NamespaceContext {
    /// Lists these resources in the namespace of the attempt.
    pub(super) async fn list_all(
        &self,
        served: &ServedResources,
        work: &Work<Arc<str>>,
        resources: &[Resource],
        due: Instant,
    ) -> Vec<(Resource, Listed)> {
        let unused = self.unused_of(served, work, resources, due).await;
        let used: Vec<_> = resources
            .iter()
            .filter(|resource| !unused.contains(resource))
            .map(|resource| async {
                let listed = self.list(served, work, resource).await;
                (resource.clone(), listed)
            })
            .collect();
        let mut listed: Vec<_> = stream::iter(used).buffer_unordered(PARALLEL).collect().await;
        let empty = |resource: &Resource| (resource.clone(), Listed::Content(Content::default()));
        listed.extend(unused.into_iter().map(empty));
        listed
    }

    /// Returns those of the resources that no namespace has an object of. Only attempts at the same
    /// time ask, because only they can share the answers, of which they wait for all at once.
    async fn unused_of<'a>(
        &self,
        served: &ServedResources,
        work: &Work<Arc<str>>,
        resources: &'a [Resource],
        due: Instant,
    ) -> Vec<&'a Resource> {
        if !self.tracked.has_several() {
            return Vec::new();
        }
        let listable = resources
            .iter()
            .filter(|resource| served.supports(resource, Verb::List));
        let checked = listable.map(|resource| async move {
            let is_unused = self.unused.contains(resource, due, &self.requests).await;
            work.report_progress();
            is_unused.then_some(resource)
        });
        join_all(checked).await.into_iter().flatten().collect()
    }

    pub(super) async fn list(&self, served: &ServedResources, work: &Work<Arc<str>>, resource: &Resource) -> Listed {
        if !served.supports(resource, Verb::List) {
            return Listed::Unlistable;
        }
        let mut content = Content::default();
        let all = each_page(&self.requests, resource, Some(work.key()), |page| {
            work.report_progress();
            for object in page {
                content.add(object);
            }
        });
        match all.await {
            Ok(()) => Listed::Content(content),
            Err(error) if error.is_not_found() => Listed::NotServed,
            Err(error) if error.is_unsupported() => Listed::Unlistable,
            Err(error) => Listed::Failed(error),
        }
    }

    /// Returns what serves namespaced objects, or may do so, and is not in discovery: definitions
    /// and aggregated API services.
    ///
    /// Discovery may lag behind both, and a namespace may be deleted without a grace period. So
    /// they are compared with it before a namespace is finalized.
    pub(super) async fn undiscovered(&self, served: &ServedResources) -> Result<Vec<String>, RequestError> {
        let known: HashSet<_> = served.preferred(&[]).map(Resource::crd_name).collect();
        let is_known = |name: &str| known.contains(name);
        let (definitions, services) = tokio::try_join!(
            self.names(served, CRDS, &self.definitions),
            self.names(served, API_SERVICES, &self.services),
        )?;
        let mut hidden = self.hidden_by::<Definition>(&CRDS, &definitions, is_known).await?;
        let is_known = |name: &str| served.knows_service(name);
        hidden.extend(self.hidden_by::<ApiService>(&API_SERVICES, &services, is_known).await?);
        Ok(hidden)
    }

    /// Returns the names of the objects of a cluster-scoped resource.
    async fn names(&self, served: &ServedResources, resource: Resource, read: &SharedRead<Names>) -> Names {
        if !served.supports(&resource, Verb::List) {
            return Ok(Arc::default());
        }
        let list = async {
            let mut names = Vec::new();
            each_page(&self.requests, &resource, None, |page| {
                names.extend(page.into_iter().map(|object| object.name));
            })
            .await?;
            Ok(names.into())
        };
        read.get(list).await
    }

    /// Returns the objects of a resource that may hide namespaced objects, of those whose names are
    /// not known.
    async fn hidden_by<T: Hiding>(
        &self,
        resource: &Resource,
        names: &[String],
        is_known: impl Fn(&str) -> bool,
    ) -> Result<Vec<String>, RequestError> {
        let unknown = names.iter().filter(|name| !is_known(name));
        let mut hidden = Vec::new();
        for name in unknown {
            let object: Option<T> = self.requests.find(resource, name).await?;
            if object.is_some_and(|object| object.may_hide_namespaced()) {
                hidden.push(format!("{name}: discovery does not show it yet"));
            }
        }
        Ok(hidden)
    }
}

/// Passes each page of a list to `page`.
pub(super) async fn each_page(
    requests: &Requests,
    resource: &Resource,
    namespace: Option<&str>,
    mut page: impl FnMut(Vec<ContentMetadata>),
) -> Result<(), RequestError> {
    let mut next = None;
    loop {
        let (items, following) = requests.page(resource, namespace, next.as_deref()).await?;
        page(items);
        if following.is_none() {
            return Ok(());
        }
        next = following;
    }
}

/// An object whose resources discovery may not show yet.
trait Hiding: for<'de> Deserialize<'de> {
    /// Returns whether namespaced objects may be served.
    fn may_hide_namespaced(&self) -> bool;
}

/// The part of an APIService that says who serves it.
#[derive(Deserialize)]
struct ApiService {
    spec: ApiServiceSpec,
}

#[derive(Deserialize)]
struct ApiServiceSpec {
    service: Option<IgnoredAny>,
}

impl Hiding for ApiService {
    /// The apiserver itself also has API services of definitions that are not established.
    fn may_hide_namespaced(&self) -> bool {
        self.spec.service.is_some()
    }
}

/// The part of a CustomResourceDefinition that says whether objects of it are served.
#[derive(Deserialize)]
struct Definition {
    spec: DefinitionSpec,
    #[serde(default)]
    status: DefinitionStatus,
}

#[derive(Deserialize)]
struct DefinitionSpec {
    scope: String,
    versions: Vec<DefinitionVersion>,
}

#[derive(Deserialize)]
struct DefinitionVersion {
    served: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DefinitionStatus {
    conditions: Option<Vec<DefinitionCondition>>,
}

#[derive(Deserialize)]
struct DefinitionCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
}

impl Hiding for Definition {
    fn may_hide_namespaced(&self) -> bool {
        let mut conditions = self.status.conditions.iter().flatten();
        let is_established = conditions.any(|condition| condition.type_ == "Established" && condition.status == "True");
        is_established && self.spec.scope == "Namespaced" && self.spec.versions.iter().any(|version| version.served)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn definition(scope: &str, served: bool, established: &str) -> Definition {
        serde_json::from_value(json!({
            "spec": {"scope": scope, "versions": [{"name": "v1", "served": served}]},
            "status": {"conditions": [{"type": "Established", "status": established}]},
        }))
        .unwrap()
    }

    #[test]
    fn only_established_definitions_of_served_namespaced_kinds_hide_objects() {
        assert!(definition("Namespaced", true, "True").may_hide_namespaced());
        assert!(!definition("Cluster", true, "True").may_hide_namespaced());
        assert!(!definition("Namespaced", false, "True").may_hide_namespaced());
        assert!(!definition("Namespaced", true, "False").may_hide_namespaced());
        let new = json!({"spec": {"scope": "Namespaced", "versions": [{"served": true}]}});
        assert!(!serde_json::from_value::<Definition>(new).unwrap().may_hide_namespaced());
    }

    #[test]
    fn only_aggregated_api_services_hide_objects() {
        let service = |spec| serde_json::from_value::<ApiService>(json!({ "spec": spec })).unwrap();
        assert!(service(json!({"service": {"name": "a"}})).may_hide_namespaced());
        assert!(!service(json!({"service": null})).may_hide_namespaced());
        assert!(!service(json!({})).may_hide_namespaced());
    }
}
