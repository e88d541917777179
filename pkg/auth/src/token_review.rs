//! Authenticates bearer tokens by `TokenReviews`, with a cache.
//!
//! Architecture Invariant: no token is kept or logged. The cache knows only keyed hashes.

use std::{collections::HashMap, num::NonZeroUsize, sync::Arc, time::Duration};

use futures::{
    FutureExt,
    future::{BoxFuture, Shared, WeakShared},
};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use kube::Client;
use parking_lot::Mutex;
use portreeve_serving::User;
use ring::{hmac, rand::SystemRandom};
use tokio::time::Instant;

use crate::{
    expiring_cache::ExpiringCache,
    metrics::Metrics,
    review::{ReviewClients, ReviewError, send},
};

/// The number of cached tokens. A cluster has a few scrapers; the bound is for attackers.
const CAPACITY: NonZeroUsize = NonZeroUsize::new(8192).unwrap();

/// How long a token counts as known after its last review that accepted it. Most scrapers come once
/// a minute. It saves no review.
const KNOWN_FOR: Duration = Duration::from_hours(1);

/// What is reviewed, for errors.
const SUBJECT: &str = "the bearer token";

const HIT: &str = "hit";
const MISS: &str = "miss";

/// The user of a token, or `None` for a token that the apiserver does not know.
type Verdict = Option<Arc<User>>;
type Key = [u8; 32];
type Review = BoxFuture<'static, Result<Verdict, ReviewError>>;

enum Lookup {
    Cached(Verdict),
    Pending(Shared<Review>),
}

/// Authenticates bearer tokens.
pub(crate) struct TokenReviewer {
    clients: ReviewClients,
    key: hmac::Key,
    ttl: Duration,
    metrics: Metrics,
    state: Arc<Mutex<State>>,
}

struct State {
    cache: ExpiringCache<Key, Verdict>,
    /// The tokens that were accepted lately.
    known: ExpiringCache<Key, ()>,
    /// The reviews in flight, which the requests that wait for them own. Equal tokens share one.
    pending: HashMap<Key, WeakShared<Review>>,
}

impl TokenReviewer {
    /// Creates a reviewer whose answers are cached for `ttl`.
    ///
    /// # Errors
    ///
    /// Returns an error when the operating system has no randomness.
    pub(crate) fn new(
        clients: ReviewClients,
        ttl: Duration,
        metrics: Metrics,
    ) -> Result<Self, ring::error::Unspecified> {
        Ok(Self {
            clients,
            key: hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())?,
            ttl,
            metrics,
            state: Arc::new(Mutex::new(State {
                cache: ExpiringCache::new(CAPACITY),
                known: ExpiringCache::new(CAPACITY),
                pending: HashMap::new(),
            })),
        })
    }

    /// Returns whether the apiserver has accepted the token within the last hour.
    pub(crate) fn is_known(&self, token: &str) -> bool {
        let key = self.hash(token);
        self.state.lock().known.get(&key, Instant::now()).is_some()
    }

    /// Returns the user of the token, or `None` if the apiserver does not accept it.
    ///
    /// # Errors
    ///
    /// Returns an error when the apiserver does not answer. Errors are not cached.
    pub(crate) async fn authenticate(&self, token: &str) -> Result<Verdict, ReviewError> {
        let started = Instant::now();
        let (status, verdict) = match self.find(token) {
            Lookup::Cached(verdict) => (HIT, Ok(verdict)),
            Lookup::Pending(review) => {
                let _blocked = self.metrics.token_cache.active_fetch("blocked");
                (MISS, review.await)
            }
        };
        self.metrics.token_cache.requests.observe(status, started.elapsed());
        verdict
    }

    fn find(&self, token: &str) -> Lookup {
        let key = self.hash(token);
        let mut state = self.state.lock();
        if let Some(verdict) = state.cache.get(&key, Instant::now()) {
            return Lookup::Cached(verdict);
        }
        if let Some(review) = state.pending.get(&key).and_then(WeakShared::upgrade) {
            return Lookup::Pending(review);
        }
        let client = match state.known.get(&key, Instant::now()) {
            Some(()) => &self.clients.known,
            None => &self.clients.unknown,
        };
        let review = self.review(client.clone(), key, token.to_owned());
        if let Some(weak) = review.downgrade() {
            state.pending.insert(key, weak);
        }
        Lookup::Pending(review)
    }

    fn hash(&self, token: &str) -> Key {
        let mut key = Key::default();
        key.copy_from_slice(hmac::sign(&self.key, token.as_bytes()).as_ref());
        key
    }

    /// Returns a future that reviews the token and records the verdict. It runs while a request
    /// waits for it.
    fn review(&self, client: Client, key: Key, token: String) -> Shared<Review> {
        let ttl = self.ttl;
        let metrics = self.metrics.clone();
        let state = Arc::clone(&self.state);
        async move {
            let _in_flight = InFlight { state: &state, key };
            let _active = metrics.token_cache.active_fetch("in_flight");
            let review = TokenReview {
                spec: TokenReviewSpec {
                    token,
                    ..TokenReviewSpec::default()
                },
                ..TokenReview::default()
            };
            let answer = send(&client, &review, SUBJECT, &metrics.token_reviews).await;
            let status = if answer.is_ok() { "ok" } else { "error" };
            metrics.token_cache.fetches.with_label_values(&[status]).inc();
            let verdict = verdict(answer?)?;
            let (mut state, now) = (state.lock(), Instant::now());
            state.cache.insert(key, verdict.clone(), now, ttl);
            if verdict.is_some() {
                state.known.insert(key, (), now, KNOWN_FOR);
            }
            drop(state);
            Ok(verdict)
        }
        .boxed()
        .shared()
    }
}

/// Removes a review from those in flight when it ends or is dropped.
struct InFlight<'a> {
    state: &'a Mutex<State>,
    key: Key,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.state.lock().pending.remove(&self.key);
    }
}

/// Reads the answer to a review.
fn verdict(review: TokenReview) -> Result<Verdict, ReviewError> {
    let status = review.status.unwrap_or_default();
    if status.authenticated == Some(true) {
        return Ok(Some(Arc::new(user(status.user.unwrap_or_default()))));
    }
    match status.error.filter(|error| !error.is_empty()) {
        // As in Kubernetes, an error is not cached: the token may be valid soon.
        Some(problem) => Err(ReviewError {
            subject: SUBJECT,
            problem,
        }),
        None => Ok(None),
    }
}

fn user(info: UserInfo) -> User {
    User {
        name: info.username.unwrap_or_default(),
        uid: info.uid.unwrap_or_default(),
        groups: info.groups.unwrap_or_default(),
        extra: info.extra.unwrap_or_default(),
    }
}
