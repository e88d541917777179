//! Tests requests of people, probes, scrapers and scanners, and mutations of them: each target gets
//! a response, no bytes of a client end the server, and a 403 reveals nothing.

use std::convert::Infallible;

use http::Uri;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use portreeve_testing::Corpus;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::connection::{Limits, http};
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
        metrics: Metrics::register(&portreeve_metrics::Registry::new()).unwrap(),
        extra_routes: Router::new()
            .route("/debug/controllers/{controller}/{page}", get(page))
            .route("/secret", get(async || "hunter2")),
    };
    let allowed = "/livez,/readyz,/healthz,/debug/*".parse().unwrap();
    let access = Access::new(allowed, Arc::clone(&endpoints.access));
    RequestHandler::new(Service::from(endpoints).routes, access, Duration::from_secs(5))
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

/// Sends bytes over a connection and returns all responses. The client then waits until the server
/// closes the connection.
async fn exchange(handler: &RequestHandler, input: &[u8]) -> String {
    let (mut client, server) = duplex(1 << 20);
    client.write_all(input).await.unwrap();
    let service = service_fn(|request: Request<Incoming>| async {
        Ok::<_, Infallible>(handler.handle(request.map(Body::new), &[], || ()).await)
    });
    // An error is how the server ends a connection that is not HTTP.
    _ = http(&Limits::default())
        .serve_connection(TokioIo::new(server), service)
        .await;
    let mut responses = Vec::new();
    client.read_to_end(&mut responses).await.unwrap();
    String::from_utf8_lossy(&responses).into_owned()
}

fn check_bytes(runtime: &Runtime, handler: &RequestHandler, input: &[u8]) {
    let responses = runtime.block_on(exchange(handler, input));
    assert!(responses.is_empty() || responses.starts_with("HTTP/1."), "{responses}");
    for secret in ["hunter2", "# TYPE"] {
        assert!(!responses.contains(secret), "{responses}");
    }
}

#[test]
fn no_bytes_of_a_client_end_the_server_or_reveal_a_closed_page() -> anyhow::Result<()> {
    // Time limits pass as soon as the server waits for the client.
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
    let handler = handler();
    let answer = |input: &str| runtime.block_on(exchange(&handler, input.as_bytes()));
    let denied = "HTTP/1.1 403 Forbidden";
    assert!(answer("GET /livez HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 500 "));
    assert!(answer("GET /secret HTTP/1.1\r\n\r\n").starts_with(denied));
    let corpus = Corpus::read(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/head"))?;
    corpus.check(MUTATIONS, |input| {
        check_bytes(&runtime, &handler, input);
        let lines = String::from_utf8_lossy(input).replace('\n', "\r\n");
        check_bytes(&runtime, &handler, lines.as_bytes());
    })
}

#[test]
fn every_target_gets_a_response_and_unauthorized_ones_reveal_nothing() -> anyhow::Result<()> {
    let runtime = Builder::new_current_thread().enable_time().build()?;
    let handler = handler();
    let corpus = Corpus::read(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/request"))?;
    corpus.check(MUTATIONS, |input| check(&runtime, &handler, input))
}
