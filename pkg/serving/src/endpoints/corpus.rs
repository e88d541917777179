//! Tests request targets of people, probes and scanners, and mutations of them: each gets a
//! response, and a 403 reveals nothing.

use http::Uri;
use portreeve_testing::Corpus;
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::tests::NamedUsers;

/// The number of mutations.
const MUTATIONS: usize = 4_000;

fn handler() -> RequestHandler {
    let checks: HealthChecker =
        Arc::new(|| vec![Check::ok("informer/foos"), Check::failed("workers", "stuck\nfor ever")]);
    let health = HealthCheckers {
        livez: Arc::clone(&checks),
        readyz: Arc::clone(&checks),
        healthz: checks,
    };
    let page = async |Path((controller, page)): Path<(String, String)>, Query(pairs): Query<Vec<(String, String)>>| {
        format!("{controller} {page} {pairs:?}")
    };
    let endpoints = HttpEndpoints {
        access: Arc::new(NamedUsers),
        health,
        registry: Registry::new(),
        extra_routes: Router::new()
            .route("/debug/controllers/{controller}/{page}", get(page))
            .route("/secret", get(async || "hunter2")),
    };
    let allowed = "/livez,/readyz,/healthz,/debug/*".parse().unwrap();
    let access = Access::new(allowed, Arc::clone(&endpoints.access));
    let metrics = Metrics::register(endpoints.registry.clone()).unwrap();
    RequestHandler::new(endpoints, metrics, access, Duration::from_secs(5))
}

fn check(runtime: &Runtime, handler: &RequestHandler, input: &[u8]) {
    let Ok(target) = Uri::try_from(input) else { return };
    let path = target.path().to_owned();
    let request = Request::builder().uri(target).body(Body::empty()).unwrap();
    let (status, body) = runtime.block_on(async {
        let response = handler.handle(request, &[], || ()).await;
        let status = response.status();
        (
            status,
            axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap(),
        )
    });
    let text = String::from_utf8_lossy(&body);
    let is_allowed = ["/livez", "/readyz", "/healthz"].contains(&&*path)
        || path.starts_with("/debug/") && !path.contains("/../") && !path.contains('%');
    match status {
        StatusCode::FORBIDDEN => assert!(text.contains("system:anonymous") && !text.contains('<'), "{text}"),
        StatusCode::OK | StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::INTERNAL_SERVER_ERROR => {
            assert!(is_allowed, "{path} must not return {status}");
        }
        other => panic!("{other} for {path}"),
    }
    assert!(!text.contains("hunter2"));
    // Each of the three checks takes at most one line.
    let lines = text
        .lines()
        .filter(|line| line.starts_with("[+]") || line.starts_with("[-]"));
    assert!(lines.count() <= 3, "{text}");
}

#[test]
fn every_target_gets_a_response_and_unauthorized_ones_reveal_nothing() -> anyhow::Result<()> {
    let runtime = Builder::new_current_thread().enable_time().build()?;
    let handler = handler();
    let corpus = Corpus::read(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/request"))?;
    corpus.check(MUTATIONS, |input| check(&runtime, &handler, input))
}
