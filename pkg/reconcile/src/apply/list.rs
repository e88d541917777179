//! [`Effect::List`]: a list in pages, of which the reconciler sees each object.
//!
//! A plan relies on what the list does not contain, so only a list counts as an answer. That the
//! resource is not served must follow from discovery, because a 404 may also come from a proxy.

use http::Request;
use portreeve_api::Resource;
use portreeve_client::{ApiErrorKind, ListPage};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Applied, Applier, EffectError, Observe, Progress, StaleCacheError, classify_error, failed};
use crate::{Effect, RequestState, request};

/// The discovery document of a group version.
#[derive(Deserialize)]
struct ServedResources {
    kind: String,
    resources: Vec<ServedResource>,
}

#[derive(Deserialize)]
struct ServedResource {
    name: String,
}

impl Applier {
    /// Lists page by page, from the request for the first one on. Returns `None` if the plan
    /// continues.
    pub(super) async fn list(
        &self,
        effect: &Effect,
        first: Request<Vec<u8>>,
        observe: &Observe<'_>,
    ) -> Option<Applied> {
        let Effect::List { resource, .. } = effect else {
            return None;
        };
        let mut request = first;
        loop {
            let page = match self.client.request::<ListPage<Box<RawValue>>>(request).await {
                Ok(page) => page,
                Err(error) if ApiErrorKind::of(&error) == ApiErrorKind::NotFound => {
                    return self.require_unserved(effect, resource, error).await;
                }
                Err(error) => return classify_error(effect, error),
            };
            let (items, next) = match page.into_items() {
                Ok(page) => page,
                Err(error) => return Some(failed(effect, error)),
            };
            for object in &items {
                if observe(Progress::Request(effect, RequestState::Listed(object))) {
                    return Some(Applied::Stale(EffectError::of(effect, StaleCacheError::Unseen)));
                }
            }
            observe(Progress::Ended);
            request = match request::page(effect, Some(next?)) {
                Ok(request) => request,
                Err(source) => return Some(Applied::Refused(EffectError::of(effect, source))),
            };
        }
    }

    /// Continues the plan after a 404 only if discovery shows that the resource is not served.
    async fn require_unserved(&self, effect: &Effect, resource: &Resource, error: kube::Error) -> Option<Applied> {
        let request = match request::served(resource) {
            Ok(request) => request,
            Err(source) => return Some(Applied::Refused(EffectError::of(effect, source))),
        };
        match self.client.request::<ServedResources>(request).await {
            Ok(served) => {
                let is_served = served.resources.iter().any(|served| *served.name == *resource.plural);
                if served.kind == "APIResourceList" && !is_served {
                    return None;
                }
                classify_error(effect, error)
            }
            Err(error) => classify_error(effect, error),
        }
    }
}
