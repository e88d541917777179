//! What an attempt reads: the content of a namespace, and what may be hidden from it.

use std::collections::HashSet;

use futures::{StreamExt, stream};
use portreeve_api::{CRDS, Resource, Scope};
use portreeve_informer::{ServedResources, Verb};
use serde::Deserialize;

use super::{
    NamespaceContext,
    requests::{RequestError, Requests},
};
use crate::{
    content::{Content, ContentMetadata},
    findings::{Findings, Name},
};

/// The number of resources of a namespace that are read or deleted at once.
pub(super) const PARALLEL: usize = 8;

/// What is known of one resource in a namespace.
#[derive(Debug)]
pub(super) enum Listed {
    Content(Content),
    /// The apiserver answered 404: the resource may have gone.
    NotServed,
    /// The resource has no verb `list`.
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
}

impl Survey {
    /// Creates a survey that has read nothing yet.
    pub(super) fn new(served: &ServedResources) -> Self {
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
        }
    }

    /// Records the state of a resource, which replaces what was known of it.
    pub(super) fn record(&mut self, resource: &Resource, listed: Listed) {
        let name = Name::of(resource);
        self.findings.content.remove(&name);
        self.findings.failures.remove(&name);
        match listed {
            Listed::Content(content) if content.is_empty() => {}
            Listed::Content(content) => drop(self.findings.content.insert(name, content)),
            Listed::NotServed => drop(self.not_served.insert(resource.clone())),
            Listed::Unlistable => {}
            Listed::Failed(error) => self.fail(resource, error.to_string()),
        }
    }

    /// Records that the content of a resource could not be read or deleted.
    pub(super) fn fail(&mut self, resource: &Resource, why: String) {
        self.findings.failures.insert(Name::of(resource), why);
    }

    pub(super) fn content(&self, resource: &Resource) -> Option<&Content> {
        self.findings.content.get(&Name::of(resource))
    }

    /// Returns whether a resource has objects that nobody has deleted, as far as that is known.
    pub(super) fn needs_deletion(&self, served: &ServedResources, resource: &Resource) -> bool {
        match self.content(resource) {
            Some(content) => content.live > 0,
            None => !served.supports(resource, Verb::List),
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
    /// Lists these resources.
    pub(super) async fn list_all(
        &self,
        served: &ServedResources,
        namespace: &str,
        resources: &[Resource],
    ) -> Vec<(Resource, Listed)> {
        let lists: Vec<_> = resources
            .iter()
            .map(|resource| async {
                let listed = self.list(served, namespace, resource).await;
                (resource.clone(), listed)
            })
            .collect();
        stream::iter(lists).buffer_unordered(PARALLEL).collect().await
    }

    pub(super) async fn list(&self, served: &ServedResources, namespace: &str, resource: &Resource) -> Listed {
        if !served.supports(resource, Verb::List) {
            return Listed::Unlistable;
        }
        let mut content = Content::default();
        let all = each_page(&self.requests, resource, Some(namespace), |page| {
            for object in page {
                content.add(object);
            }
        });
        match all.await {
            Ok(()) => Listed::Content(content),
            Err(error) if error.is_not_found() => Listed::NotServed,
            Err(error) => Listed::Failed(error),
        }
    }

    /// Returns the names of definitions whose objects discovery does not show yet.
    ///
    /// Discovery may lag behind a new definition, and a namespace may be deleted without a grace
    /// period. So every definition is compared with it before a namespace is finalized.
    pub(super) async fn undiscovered(&self, served: &ServedResources) -> Result<Vec<String>, RequestError> {
        if !served.supports(&CRDS, Verb::List) {
            return Ok(Vec::new());
        }
        let known: HashSet<_> = served.preferred(&[]).map(Resource::crd_name).collect();
        let mut unknown = Vec::new();
        each_page(&self.requests, &CRDS, None, |page| {
            let names = page.into_iter().map(|definition| definition.name);
            unknown.extend(names.filter(|name| !known.contains(name)));
        })
        .await?;
        let mut hidden = Vec::new();
        for name in unknown {
            let definition: Option<Definition> = self.requests.find(&CRDS, &name).await?;
            if definition.is_some_and(|definition| definition.serves_namespaced()) {
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

impl Definition {
    fn serves_namespaced(&self) -> bool {
        let mut conditions = self.status.conditions.iter().flatten();
        let is_established = conditions.any(|condition| condition.type_ == "Established" && condition.status == "True");
        is_established && self.spec.scope == "Namespaced" && self.spec.versions.iter().any(|version| version.served)
    }
}
