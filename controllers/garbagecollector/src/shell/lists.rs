//! The lists that a scan for dependents sends.

use std::collections::{HashMap, HashSet};

use futures::{StreamExt, stream};
use portreeve_api::{Resource, Scope};
use portreeve_garbagecollector_graph::PartialObject;
use tokio::time::Instant;

use super::{
    CollectorContext,
    requests::{self, RequestError},
};

/// The number of resources that are listed at once.
const LISTS: usize = 10;

impl CollectorContext {
    /// Returns the resources whose objects may depend on an owner in this namespace.
    pub(super) fn resources_to_list(&self, namespace: Option<&str>) -> Result<HashSet<Resource>, RequestError> {
        let states = self.watched.borrow();
        if states.is_empty() {
            // Discovery has not answered yet, so the dependents may be of any resource.
            return Err(RequestError::other("the collector does not watch any resource yet"));
        }
        let resources = states.iter().map(|state| &state.resource);
        let listed = resources.filter(|resource| may_contain_dependents(resource, namespace));
        Ok(listed.cloned().collect())
    }

    /// Lists a resource in one namespace, or in all, and passes each page to `take`. Calls
    /// `report_progress` after each page. Does not list a resource that has failed long and
    /// recently, but returns its failure.
    pub(super) async fn list_resource(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        report_progress: &(dyn Fn() + Sync),
        mut take: impl FnMut(Vec<PartialObject>),
    ) -> Result<(), RequestError> {
        if let Some(failure) = self.list_failures.recent(resource, Instant::now()) {
            return Err(failure);
        }
        let page = |items| {
            report_progress();
            take(items);
        };
        let listed = requests::list_all(&self.client, resource, namespace, page).await;
        // A page that fails takes time too.
        report_progress();
        self.report_list(resource, listed.map_err(|failure| failure.in_list_of(resource)))
    }
}

/// Returns whether objects of the resource may depend on an owner in this namespace.
pub(super) fn may_contain_dependents(resource: &Resource, namespace: Option<&str>) -> bool {
    namespace.is_none() || resource.scope == Scope::Namespaced
}

/// Awaits the lists of resources, several at once, and adds the complete ones to `complete`.
/// Returns the others with their failures.
pub(super) async fn await_lists<T>(
    lists: impl Iterator<Item = impl Future<Output = (Resource, Result<T, RequestError>)>>,
    complete: &mut HashMap<Resource, T>,
) -> HashMap<Resource, RequestError> {
    let mut lists = stream::iter(lists).buffer_unordered(LISTS);
    let mut unlisted = HashMap::new();
    while let Some((resource, list)) = lists.next().await {
        match list {
            Ok(list) => drop(complete.insert(resource, list)),
            Err(failure) => drop(unlisted.insert(resource, failure)),
        }
    }
    unlisted
}
