//! Tests of both kinds of reviews with a scripted apiserver, in paused time.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use futures::future::join_all;
use http::{Request, Response, StatusCode};
use kube::client::Body;
use portreeve_metrics::Registry;
use portreeve_serving::{Decision, User};
use serde_json::{Value, json};

use super::*;
use crate::{
    access_review::{AccessReviewer, DecisionTtls},
    metrics::Metrics,
    token_review::TokenReviewer,
};

const TTL: Duration = Duration::from_secs(10);

/// An apiserver that answers every request in the same way.
#[derive(Clone)]
struct Scripted {
    status: StatusCode,
    /// The status of the review, or of an error.
    answer: Value,
    delay: Duration,
    requests: Arc<AtomicUsize>,
}

impl Scripted {
    fn new(status: u16, answer: Value) -> Self {
        Self {
            status: StatusCode::from_u16(status).unwrap(),
            answer,
            delay: Duration::ZERO,
            requests: Arc::default(),
        }
    }

    fn review(status: &Value) -> Self {
        Self::new(201, json!({"metadata": {}, "spec": {"token": ""}, "status": status}))
    }

    fn error(code: u16) -> Self {
        let status = json!({"kind": "Status", "status": "Failure", "message": "scripted", "reason": "", "code": code});
        Self::new(code, status)
    }

    fn slow(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    fn client(&self) -> Client {
        let scripted = self.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            let scripted = scripted.clone();
            async move {
                scripted.requests.fetch_add(1, Ordering::Relaxed);
                sleep(scripted.delay).await;
                let body = Body::from(scripted.answer.to_string().into_bytes());
                Response::builder().status(scripted.status).body(body)
            }
        });
        Client::new(service, "default")
    }

    fn clients(&self) -> ReviewClients {
        ReviewClients {
            known: self.client(),
            unknown: self.client(),
        }
    }

    fn tokens(&self) -> TokenReviewer {
        TokenReviewer::new(self.clients(), TTL, Metrics::register(&Registry::new()).unwrap()).unwrap()
    }

    fn access(&self) -> AccessReviewer {
        let ttls = DecisionTtls {
            authorized: TTL,
            unauthorized: TTL / 2,
        };
        AccessReviewer::new(self.clients(), ttls, Metrics::register(&Registry::new()).unwrap())
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

fn authenticated() -> Value {
    json!({"authenticated": true, "user": {"username": "alice", "groups": ["developers"], "extra": {"scopes": ["a"]}}})
}

#[tokio::test(start_paused = true)]
async fn known_users_do_not_wait_for_reviews_of_others() {
    let (known, unknown) = (Scripted::review(&authenticated()), Scripted::review(&authenticated()));
    let clients = ReviewClients {
        known: known.client(),
        unknown: unknown.client(),
    };
    let tokens = TokenReviewer::new(clients, TTL, Metrics::register(&Registry::new()).unwrap()).unwrap();
    assert!(!tokens.is_known("a"));
    tokens.authenticate("a").await.unwrap();
    assert!(tokens.is_known("a") && !tokens.is_known("b"));
    // The cache has forgotten the verdict.
    sleep(TTL).await;
    tokens.authenticate("a").await.unwrap();
    assert_eq!((known.requests(), unknown.requests()), (1, 1));
    sleep(Duration::from_hours(1)).await;
    assert!(!tokens.is_known("a"));
}

#[tokio::test(start_paused = true)]
async fn verdicts_on_tokens_are_cached_until_they_expire() {
    for status in [authenticated(), json!({"authenticated": false})] {
        let scripted = Scripted::review(&status);
        let tokens = scripted.tokens();
        for _ in 0..3 {
            let user = tokens.authenticate("a").await.unwrap();
            assert_eq!(user.is_some(), status["authenticated"] == true);
        }
        assert_eq!(scripted.requests(), 1);
        tokens.authenticate("b").await.unwrap();
        assert_eq!(scripted.requests(), 2, "each token has its own entry");
        sleep(TTL).await;
        tokens.authenticate("a").await.unwrap();
        assert_eq!(scripted.requests(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn the_user_of_a_token_is_complete() {
    let user = Scripted::review(&authenticated()).tokens().authenticate("a").await;
    let user = User::clone(&user.unwrap().unwrap());
    let expected = User {
        name: "alice".to_owned(),
        uid: String::new(),
        groups: vec!["developers".to_owned()],
        extra: [("scopes".to_owned(), vec!["a".to_owned()])].into(),
    };
    assert_eq!(user, expected);
}

#[tokio::test(start_paused = true)]
async fn errors_are_not_cached() {
    let scripted = Scripted::review(&json!({"authenticated": false, "error": "the token has expired"}));
    let tokens = scripted.tokens();
    for _ in 0..2 {
        let error = tokens.authenticate("a").await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "failed to review the bearer token: the token has expired"
        );
    }
    assert_eq!(scripted.requests(), 2);
}

#[tokio::test(start_paused = true)]
async fn equal_tokens_in_flight_share_one_review() {
    let scripted = Scripted::review(&authenticated()).slow(Duration::from_secs(1));
    let tokens = scripted.tokens();
    let users = join_all((0..20).map(|number| tokens.authenticate(if number % 2 == 0 { "a" } else { "b" }))).await;
    assert!(users.into_iter().all(|user| user.unwrap().is_some()));
    assert_eq!(scripted.requests(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_gives_up_does_not_end_the_review_of_others() {
    let scripted = Scripted::review(&authenticated()).slow(Duration::from_secs(2));
    let tokens = scripted.tokens();
    let impatient = tokio::time::timeout(Duration::from_secs(1), tokens.authenticate("a"));
    let (impatient, patient) = tokio::join!(impatient, tokens.authenticate("a"));
    assert!(impatient.is_err() && patient.unwrap().is_some());
    assert_eq!(scripted.requests(), 1);
    // Nobody waits for this review any more, so the next request needs one of its own.
    let impatient = tokio::time::timeout(Duration::from_secs(1), tokens.authenticate("b"));
    assert!(impatient.await.is_err());
    assert!(tokens.authenticate("b").await.unwrap().is_some());
    assert_eq!(scripted.requests(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_review_without_an_answer_ends_after_ten_seconds() {
    let scripted = Scripted::review(&authenticated()).slow(Duration::from_hours(1));
    let started = Instant::now();
    let error = scripted.tokens().authenticate("a").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to review the bearer token: no answer within 10s"
    );
    assert_eq!(started.elapsed(), LIMIT);
}

/// As in Kubernetes' `TestV1WebhookCache`.
#[tokio::test(start_paused = true)]
async fn only_temporary_failures_are_repeated() {
    for (code, expected) in [
        (429, 5),
        (500, 5),
        (504, 5),
        (503, 1),
        (400, 1),
        (401, 1),
        (403, 1),
        (404, 1),
    ] {
        let scripted = Scripted::error(code);
        assert!(scripted.tokens().authenticate("a").await.is_err());
        assert_eq!(scripted.requests(), expected, "TokenReview: {code}");
        let scripted = Scripted::error(code);
        assert!(
            scripted
                .access()
                .authorize(&User::anonymous(), "get", "/metrics")
                .await
                .is_err()
        );
        assert_eq!(scripted.requests(), expected, "SubjectAccessReview: {code}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_retry_after_is_not_waited_for() {
    let mut scripted = Scripted::error(503);
    scripted.answer["details"] = json!({"retryAfterSeconds": 120});
    let started = Instant::now();
    assert!(scripted.tokens().authenticate("a").await.is_err());
    assert_eq!((scripted.requests(), started.elapsed()), (1, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn decisions_are_cached_by_user_verb_and_path() {
    let scripted = Scripted::review(&json!({"allowed": true}));
    let access = scripted.access();
    let alice = User {
        name: "alice".to_owned(),
        ..User::default()
    };
    let mut expected = 0;
    for (user, verb, path) in [
        (&alice, "get", "/metrics"),
        (&alice, "put", "/metrics"),
        (&alice, "get", "/configz"),
        (&User::anonymous(), "get", "/metrics"),
    ] {
        expected += 1;
        for _ in 0..2 {
            assert_eq!(access.authorize(user, verb, path).await.unwrap(), Decision::Allowed);
        }
        assert_eq!(scripted.requests(), expected, "{verb} {path}");
    }
}

#[tokio::test(start_paused = true)]
async fn denials_have_their_own_lifetime() {
    let scripted = Scripted::review(&json!({"allowed": false, "reason": "no role"}));
    let access = scripted.access();
    let user = User::default();
    let denied = || access.authorize(&user, "get", "/metrics");
    assert_eq!(denied().await.unwrap(), Decision::Denied("no role".to_owned()));
    sleep(Duration::from_millis(4_999)).await;
    denied().await.unwrap();
    assert_eq!(scripted.requests(), 1);
    sleep(Duration::from_millis(1)).await;
    denied().await.unwrap();
    assert_eq!(scripted.requests(), 2);
}

#[tokio::test(start_paused = true)]
async fn decisions_on_long_requests_are_not_cached() {
    let scripted = Scripted::review(&json!({"allowed": true}));
    let access = scripted.access();
    let path = format!("/{}", "a".repeat(10_000));
    for _ in 0..2 {
        access.authorize(&User::default(), "get", &path).await.unwrap();
    }
    assert_eq!(scripted.requests(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_a_clear_permission_allows_nothing() {
    let decide = async |status: Value| {
        let scripted = Scripted::review(&status);
        scripted.access().authorize(&User::default(), "get", "/metrics").await
    };
    assert_eq!(
        decide(json!({"allowed": false})).await.unwrap(),
        Decision::Denied(String::new())
    );
    assert!(decide(json!({"allowed": true, "denied": true})).await.is_err());
    assert!(
        decide(json!(null))
            .await
            .is_ok_and(|decision| decision != Decision::Allowed)
    );
}
