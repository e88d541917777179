//! Tests of the responses to clients.

use std::error::Error as _;
use std::net::{Ipv4Addr, TcpListener};

use expect_test::{Expect, expect};

use super::*;

async fn check(running: &Running, path: &str, expected: &Expect) {
    expected.assert_eq(&running.get(path).await.show());
}

#[tokio::test]
async fn health_endpoints_respond_like_kubernetes() {
    let readyz = checker(vec![
        Check::failed("informer/foos", "forbidden"),
        Check::note("crd", "missing"),
    ]);
    let mut endpoints = endpoints();
    endpoints.health.readyz = readyz;
    let running = Running::with(endpoints);
    check(&running, "/livez", &expect!["200 ok"]).await;
    check(
        &running,
        "/healthz?verbose",
        &expect![[r"
        200 [+]ping ok
        [+]workers ok
        healthz check passed
    "]],
    )
    .await;
    check(&running, "/readyz?exclude=informer%2Ffoos", &expect!["200 ok"]).await;
    check(
        &running,
        "/readyz/informer/foos",
        &expect![[r"
        500 internal server error: forbidden
    "]],
    )
    .await;
    check(&running, "/readyz/ping", &expect!["200 ok"]).await;
    check(&running, "/readyz/informer", &expect!["404 "]).await;
    check(&running, "/readyz/", &expect!["404 "]).await;
    check(&running, "/nothing", &expect!["404 "]).await;
}

#[tokio::test]
async fn health_endpoints_support_only_get_and_head() {
    let running = Running::with(endpoints());
    let head = running.request("HEAD", "/livez").await;
    assert_eq!((head.status(), head.body.as_str()), ("200", ""));
    assert!(head.head.contains("cache-control: no-cache, private"), "{}", head.head);
    assert!(head.head.contains("x-content-type-options: nosniff"), "{}", head.head);
    assert_eq!(running.request("POST", "/livez").await.status(), "405");
    assert_eq!(running.request("DELETE", "/readyz/ping").await.status(), "405");
}

#[tokio::test]
async fn paths_that_are_not_always_allowed_need_authorization() {
    let running = Running::start(&Args::default(), Limits::default(), endpoints());
    check(
        &running,
        "/livez?verbose",
        &expect![[r"
        200 [+]ping ok
        [+]workers ok
        livez check passed
    "]],
    )
    .await;
    for path in [
        "/metrics",
        "/nothing",
        "/livez/ping",
        "//livez",
        "/livez/../metrics",
        "/%6civez",
        "/",
        "*",
    ] {
        assert_eq!(running.get(path).await.status(), "403", "{path}");
    }
    for method in ["HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "LINK"] {
        assert_eq!(running.request(method, "/metrics").await.status(), "403", "{method}");
    }
    // The absolute form contains a path as well.
    assert_eq!(running.get("https://localhost/metrics").await.status(), "403");
    assert_eq!(running.get("https://localhost/livez").await.status(), "200");
}

#[tokio::test]
async fn metrics_include_the_registry_the_process_and_the_checks() {
    let registry = Registry::new();
    let endpoints = HttpEndpoints {
        metrics: Metrics::register(&registry).unwrap(),
        ..endpoints()
    };
    let gauge = prometheus::IntGauge::new("portreeve_test", "A metric of another component.").unwrap();
    registry.register(Box::new(gauge.clone())).unwrap();
    gauge.set(7);
    let running = Running::with(endpoints);
    running.get("/livez").await;
    let metrics = running.get("/metrics").await;
    assert!(
        metrics.head.contains("content-type: text/plain; version=0.0.4"),
        "{}",
        metrics.head
    );
    for line in [
        "portreeve_test 7",
        "kubernetes_healthcheck{name=\"workers\",type=\"livez\"} 1",
        "kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"livez\"} 1",
    ] {
        assert!(
            metrics.body.lines().any(|found| found == line),
            "{line} in {}",
            metrics.body
        );
    }
    #[cfg(target_os = "linux")]
    assert!(
        metrics.body.contains("\nprocess_resident_memory_bytes "),
        "{}",
        metrics.body
    );
}

#[tokio::test]
async fn extra_routes_do_not_replace_built_in_routes() {
    let mut endpoints = endpoints();
    endpoints.extra_routes = Router::new()
        .route("/debug/graph", get(async || "graph"))
        .route("/livez", get(async || "theirs"))
        .route("/metrics", get(async || "theirs"));
    let running = Running::with(endpoints);
    check(&running, "/debug/graph", &expect!["200 graph"]).await;
    check(&running, "/livez", &expect!["200 ok"]).await;
    assert_ne!(running.get("/metrics").await.body, "theirs");
}

#[tokio::test]
async fn panic_in_a_handler_closes_only_its_connection() {
    let mut endpoints = endpoints();
    endpoints.extra_routes =
        Router::new().route("/panic", get(async || -> &'static str { panic!("a test's own panic") }));
    let running = Running::with(endpoints);
    let mut stream = running.connect().await;
    soon(stream.write_all(b"GET /panic HTTP/1.1\r\nHost: localhost\r\n\r\n"))
        .await
        .unwrap();
    assert_eq!(soon(stream.read(&mut [0; 16])).await.unwrap_or(0), 0);
    assert_eq!(running.get("/livez").await.status(), "200");
}

#[test]
fn port_in_use_fails_the_start() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let args = Args {
        secure_port: port,
        bind_address: Ipv4Addr::LOCALHOST.into(),
        ..Args::default()
    };
    let error = Server::bind(&args).expect_err("bind must fail");
    expect!["failed to listen on 127.0.0.1:PORT: choose a free port with --secure-port (0 disables the listener) and an address of this machine with --bind-address"].assert_eq(&error.to_string().replace(&port.to_string(), "PORT"));
    assert!(error.source().unwrap().to_string().contains("in use"), "{error:?}");
}

#[test]
fn port_zero_binds_nothing() {
    assert!(
        Server::bind(&Args {
            secure_port: 0,
            ..Args::default()
        })
        .unwrap()
        .is_none()
    );
}
