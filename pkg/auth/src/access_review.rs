//! Authorizes users for paths by `SubjectAccessReviews`, with a cache.

use std::{num::NonZeroUsize, time::Duration};

use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use parking_lot::Mutex;
use portreeve_serving::{Decision, User};
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use tokio::time::Instant;

use crate::{
    expiring_cache::ExpiringCache,
    metrics::Metrics,
    review::{ReviewClients, ReviewError, send},
};

/// The number of cached decisions, as in Kubernetes.
const CAPACITY: NonZeroUsize = NonZeroUsize::new(8192).unwrap();
/// What is reviewed, for errors.
const SUBJECT: &str = "the request";
/// The size of a review from which on its decision is not cached, as in Kubernetes.
const LONGEST_CACHED: usize = 10_000;

/// How long decisions are cached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecisionTtls {
    pub(crate) authorized: Duration,
    pub(crate) unauthorized: Duration,
}

/// Authorizes users by reviews of the apiserver.
pub(crate) struct AccessReviewer {
    clients: ReviewClients,
    ttls: DecisionTtls,
    metrics: Metrics,
    /// The key is the hash of the serialized specification of a review: callers choose its length.
    cache: Mutex<ExpiringCache<[u8; SHA256_OUTPUT_LEN], Decision>>,
}

impl AccessReviewer {
    /// Creates a reviewer whose decisions are cached.
    pub(crate) fn new(clients: ReviewClients, ttls: DecisionTtls, metrics: Metrics) -> Self {
        Self {
            clients,
            ttls,
            metrics,
            cache: Mutex::new(ExpiringCache::new(CAPACITY)),
        }
    }

    /// Decides whether the user may use the verb (in lower case) on the path.
    ///
    /// # Errors
    ///
    /// Returns an error when the apiserver does not answer. Errors are not cached.
    pub(crate) async fn authorize(&self, user: &User, verb: &str, path: &str) -> Result<Decision, ReviewError> {
        let review = SubjectAccessReview {
            spec: specification(user, verb, path),
            ..SubjectAccessReview::default()
        };
        let text = serde_json::to_string(&review.spec).map_err(|error| ReviewError {
            subject: SUBJECT,
            problem: error.to_string(),
        })?;
        let mut key = [0; SHA256_OUTPUT_LEN];
        key.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
        if let Some(decision) = self.cache.lock().get(&key, Instant::now()) {
            return Ok(decision);
        }
        let client = if user.is_anonymous() {
            &self.clients.unknown
        } else {
            &self.clients.known
        };
        let answer = send(client, &review, SUBJECT, &self.metrics.access_reviews).await?;
        let decision = decision(answer.status)?;
        if text.len() < LONGEST_CACHED {
            let ttl = match &decision {
                Decision::Allowed => self.ttls.authorized,
                Decision::Denied(_) => self.ttls.unauthorized,
            };
            self.cache.lock().insert(key, decision.clone(), Instant::now(), ttl);
        }
        Ok(decision)
    }
}

fn specification(user: &User, verb: &str, path: &str) -> SubjectAccessReviewSpec {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    SubjectAccessReviewSpec {
        user: text(&user.name),
        uid: text(&user.uid),
        groups: Some(user.groups.clone()),
        extra: Some(user.extra.clone()).filter(|extra| !extra.is_empty()),
        non_resource_attributes: Some(NonResourceAttributes {
            path: Some(path.to_owned()),
            verb: Some(verb.to_owned()),
        }),
        resource_attributes: None,
    }
}

/// Reads the answer to a review. Without a decision, the request is denied.
fn decision(status: Option<SubjectAccessReviewStatus>) -> Result<Decision, ReviewError> {
    let status = status.unwrap_or_default();
    match status {
        SubjectAccessReviewStatus {
            allowed: true,
            denied: None | Some(false),
            ..
        } => Ok(Decision::Allowed),
        SubjectAccessReviewStatus { allowed: true, .. } => Err(ReviewError {
            subject: SUBJECT,
            problem: "the apiserver answers that it is both allowed and denied".to_owned(),
        }),
        status => Ok(Decision::Denied(status.reason.unwrap_or_default())),
    }
}
