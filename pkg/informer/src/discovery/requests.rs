//! The discovery requests: one aggregated document if the apiserver supports it, otherwise one
//! document per version.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use portreeve_client::{ApiErrorKind, error_chain, is_unavailable, refusal, retry_after};
use tokio::task::JoinSet;

use super::{
    document::{self, Document},
    served::{DiscoveredResource, Groups},
};
use crate::{WatchFailure, explain::JsonError};

const ACCEPT_AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
const ACCEPT_JSON: &str = "application/json";
/// The number of concurrent requests for versions. A version that does not respond must not delay
/// the others.
const CONCURRENT_REQUESTS: usize = 8;

/// The failure of a request, which fails the whole attempt.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("discovery request to {path} failed")]
    Request {
        path: String,
        #[source]
        source: kube::Error,
    },
    #[error("failed to read the discovery response of {path}")]
    Read {
        path: String,
        #[source]
        source: kube::Error,
    },
    #[error("failed to decode the discovery response of {path}")]
    Decode {
        path: String,
        #[source]
        source: JsonError,
    },
    #[error("discovery response of {0} lists no resources")]
    Empty(&'static str),
}

impl Error {
    fn cause(&self) -> Option<&kube::Error> {
        match self {
            Self::Request { source, .. } | Self::Read { source, .. } => Some(source),
            Self::Decode { .. } | Self::Empty(_) => None,
        }
    }

    fn kind(&self) -> ApiErrorKind {
        self.cause().map_or(ApiErrorKind::Transient, ApiErrorKind::of)
    }

    pub(super) fn failure(&self) -> WatchFailure {
        WatchFailure {
            kind: self.kind(),
            message: error_chain(self),
        }
    }

    /// Returns whether the apiserver was unavailable.
    pub(super) fn is_unavailable(&self) -> bool {
        self.cause().is_some_and(is_unavailable)
    }

    /// Returns how long the apiserver asks the client to wait, by `Retry-After`, or zero.
    pub(super) fn retry_after(&self) -> Duration {
        self.cause().and_then(retry_after).unwrap_or_default()
    }
}

/// Requests discovery documents and caches the last responses by their ETags.
pub(super) struct DiscoveryClient {
    client: Client,
    roots: [Root; 2],
}

struct Root {
    path: &'static str,
    tag: Option<HeaderValue>,
    groups: Groups,
}

impl DiscoveryClient {
    pub(super) fn new(client: Client) -> Self {
        let root = |path| Root {
            path,
            tag: None,
            groups: Groups::new(),
        };
        Self {
            client,
            roots: [root("/api"), root("/apis")],
        }
    }

    /// Requests all discovery documents. A failure keeps the previous responses.
    pub(super) async fn fetch(&mut self) -> Result<(), Error> {
        let [core, others] = &mut self.roots;
        let (core, others) = tokio::join!(core.fetch(&self.client), others.fetch(&self.client));
        core.and(others)?;
        let is_nonempty = self.groups().into_iter().any(has_resources);
        if is_nonempty {
            Ok(())
        } else {
            Err(Error::Empty("the apiserver"))
        }
    }

    /// Returns the last responses.
    pub(super) fn groups(&self) -> [&Groups; 2] {
        self.roots.each_ref().map(|root| &root.groups)
    }
}

impl Root {
    async fn fetch(&mut self, client: &Client) -> Result<(), Error> {
        let (tag, mut groups) = match get(client, self.path, ACCEPT_AGGREGATED, self.tag.as_ref()).await {
            Ok(None) => return Ok(()),
            Ok(Some((tag, bytes))) => (tag, self.read(client, &bytes).await?),
            // Some apiservers serve no core group, and some serve only the core group.
            Err(error) if error.kind() == ApiErrorKind::NotFound => (None, Groups::new()),
            Err(error) => return Err(error),
        };
        if has_resources(&self.groups) && !has_resources(&groups) {
            return Err(Error::Empty(self.path));
        }
        share_unchanged(&self.groups, &mut groups);
        (self.tag, self.groups) = (tag, groups);
        Ok(())
    }

    async fn read(&self, client: &Client, bytes: &[u8]) -> Result<Groups, Error> {
        let document = document::root(bytes).map_err(|source| Error::Decode {
            path: self.path.to_owned(),
            source,
        })?;
        match document {
            Document::Whole(groups) => Ok(groups),
            Document::Versions(groups) => Ok(fetch_versions(client, self.path, groups).await),
        }
    }
}

/// Requests the document of each version. If a request fails, the resources of its version are
/// unknown; the other versions are not affected.
async fn fetch_versions(client: &Client, root: &'static str, groups: Vec<(Box<str>, Vec<Box<str>>)>) -> Groups {
    let versions: Vec<_> = groups.iter().flat_map(|(_, versions)| versions).collect();
    let mut resources = HashMap::new();
    for chunk in versions.chunks(CONCURRENT_REQUESTS) {
        let requests = chunk.iter().map(|version| {
            let (client, version) = (client.clone(), (*version).clone());
            async move {
                let response = fetch_version(&client, root, &version).await;
                let response = response.inspect_err(|error| {
                    tracing::debug!(version, reason = error_chain(error), "failed to discover group version");
                });
                (version, response.ok())
            }
        });
        resources.extend(requests.collect::<JoinSet<_>>().join_all().await);
    }
    let groups = groups.into_iter().map(|(group, versions)| {
        let versions = versions.into_iter().map(|version| {
            let resources = resources.remove(&version).flatten();
            (version, resources)
        });
        (group, versions.collect())
    });
    groups.collect()
}

async fn fetch_version(client: &Client, root: &str, api_version: &str) -> Result<Arc<[DiscoveredResource]>, Error> {
    let path = format!("{root}/{api_version}");
    let response = get(client, &path, ACCEPT_JSON, None).await?;
    let (_, bytes) = response.unwrap_or_default();
    document::version(api_version, &bytes).map_err(|source| Error::Decode { path, source })
}

/// Sends a GET request. Returns the ETag and the body of the response, or `None` if the document
/// still has the ETag `tag`.
async fn get(
    client: &Client,
    path: &str,
    accept: &'static str,
    tag: Option<&HeaderValue>,
) -> Result<Option<(Option<HeaderValue>, Bytes)>, Error> {
    let request_error = |source| Error::Request {
        path: path.to_owned(),
        source,
    };
    let mut request = Request::get(path).header(header::ACCEPT, accept);
    if let Some(tag) = tag {
        request = request.header(header::IF_NONE_MATCH, tag);
    }
    let request = request.body(Body::empty()).map_err(kube::Error::HttpError);
    let response = client
        .send(request.map_err(request_error)?)
        .await
        .map_err(request_error)?;
    if response.status() == StatusCode::NOT_MODIFIED && tag.is_some() {
        return Ok(None);
    }
    if !response.status().is_success() {
        return Err(request_error(refusal(response).await));
    }
    let tag = response.headers().get(header::ETAG).cloned();
    let body = response.into_body().collect().await.map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })?;
    Ok(Some((tag, body.to_bytes())))
}

/// Replaces unchanged versions in `now` by those in `before`, so that both share the memory
/// of unchanged resource lists.
fn share_unchanged(before: &Groups, now: &mut Groups) {
    for (group, versions) in now {
        let before = before.get(group).into_iter().flatten();
        let before: HashMap<_, _> = before.map(|(version, resources)| (version, resources)).collect();
        for (version, resources) in versions {
            if let Some(same) = before.get(version).filter(|before| **before == resources) {
                resources.clone_from(same);
            }
        }
    }
}

fn has_resources(groups: &Groups) -> bool {
    let mut versions = groups.values().flatten();
    versions.any(|(_, resources)| resources.as_ref().is_some_and(|resources| !resources.is_empty()))
}

#[cfg(test)]
mod tests {
    use portreeve_api::CRDS;

    use super::{super::served::Verbs, *};

    fn resources(verbs: Verbs) -> Arc<[DiscoveredResource]> {
        let resource = CRDS;
        Arc::from([DiscoveredResource { resource, verbs }])
    }

    #[test]
    fn unchanged_versions_share_their_memory() {
        let listed = Verbs::named(["list"]);
        let groups = |same, other| {
            Groups::from([(
                "g".into(),
                vec![("g/v2".into(), Some(same)), ("g/v1".into(), Some(other))],
            )])
        };
        let before = groups(resources(listed), resources(listed));
        let expected = groups(resources(listed), resources(Verbs::default()));
        let mut now = groups(resources(listed), resources(Verbs::default()));
        share_unchanged(&before, &mut now);
        assert_eq!(now, expected);
        let is_shared = |index: usize| match (&before["g"][index].1, &now["g"][index].1) {
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            _ => false,
        };
        assert!(is_shared(0) && !is_shared(1));
    }
}
