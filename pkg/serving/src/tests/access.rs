//! Tests of authentication and authorization before the routing.

use expect_test::{Expect, expect};

use super::*;

/// Starts a server with a failing readiness check, and the route /whoami, which shows the headers
/// that reach it.
fn start() -> Running {
    let mut endpoints = endpoints();
    endpoints.health.readyz = checker(vec![
        Check::failed("informer/foos", "forbidden for alice"),
        Check::note("crd", "missing"),
    ]);
    let whoami = async |headers: HeaderMap| {
        let names = headers.keys().map(|name| name.as_str().to_owned());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names.join(",")
    };
    endpoints.extra_routes = Router::new().route("/whoami", get(whoami));
    Running::start(&Args::default(), Limits::default(), endpoints)
}

async fn check(running: &Running, user: Option<&str>, path: &str, expected: &Expect) {
    let header = user
        .map(|name| format!("Authorization: {name}\r\n"))
        .unwrap_or_default();
    expected.assert_eq(&running.request_with("GET", path, &header).await.show());
}

#[tokio::test]
async fn responses_depend_on_the_credentials() {
    let running = start();
    check(&running, None, "/livez", &expect!["200 ok"]).await;
    check(
        &running,
        None,
        "/metrics",
        &expect![[r#"
            403 {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"forbidden: User \"system:anonymous\" cannot get path \"/metrics\"","reason":"Forbidden","details":{},"code":403}
        "#]],
    )
    .await;
    let unauthorized = expect![[r#"
        401 {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}
    "#]];
    check(&running, Some("stranger"), "/metrics", &unauthorized).await;
    check(&running, Some("stranger"), "/livez", &unauthorized).await;
    check(
        &running,
        Some("refused"),
        "/configz",
        &expect![[r#"
            403 {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"forbidden: User \"refused\" cannot get path \"/configz\": it is Sunday","reason":"Forbidden","details":{},"code":403}
        "#]],
    )
    .await;
    check(
        &running,
        Some("undecided"),
        "/metrics",
        &expect![[r#"
            500 Internal Server Error: "/metrics": no answer
        "#]],
    )
    .await;
    let metrics = running
        .request_with("GET", "/metrics", "Authorization: reader\r\n")
        .await;
    assert!(
        metrics.status() == "200" && metrics.body.contains("# TYPE"),
        "{}",
        metrics.show()
    );
    // Nobody but an authorized user learns which paths exist.
    check(&running, Some("admin"), "/nothing", &expect!["404 "]).await;
    for path in ["/nothing", "/whoami"] {
        assert_eq!(running.get(path).await.status(), "403", "{path}");
    }
}

#[tokio::test]
async fn the_verb_of_a_request_is_its_method() {
    let running = start();
    let put = running
        .request_with("PUT", "/metrics", "Authorization: reader\r\n")
        .await;
    assert!(put.show().contains("cannot put path"), "{}", put.show());
}

#[tokio::test]
async fn text_of_users_is_escaped() {
    let running = start();
    let reply = running.request_with("GET", "/a&c", "Authorization: <script>\r\n").await;
    assert_eq!(reply.status(), "403");
    assert!(
        !reply.body.contains('<') && reply.body.contains("&lt;script&gt;"),
        "{}",
        reply.body
    );
    assert!(reply.head.contains("x-content-type-options: nosniff"), "{}", reply.head);
}

#[tokio::test]
async fn handlers_see_no_credentials() {
    let running = start();
    let headers = "Authorization: admin\r\nX-Remote-User: root\r\nX-Remote-Extra-A: b\r\nAccept: text/plain\r\n";
    let reply = running.request_with("GET", "/whoami", headers).await;
    assert_eq!(reply.show(), "200 accept,connection,host");
}

#[tokio::test]
async fn reasons_are_for_readers_of_metrics() {
    let running = start();
    let withheld = expect![[r"
        500 [+]ping ok
        [-]informer/foos failed: reason withheld
        [+]crd ok
        readyz check failed
    "]];
    check(&running, None, "/readyz", &withheld).await;
    check(&running, Some("bob"), "/readyz?verbose", &withheld).await;
    check(&running, Some("undecided"), "/readyz?verbose", &withheld).await;
    check(
        &running,
        Some("reader"),
        "/readyz",
        &expect![[r"
            500 [+]ping ok
            [-]informer/foos failed: forbidden for alice
            [+]crd ok: missing
            readyz check failed
        "]],
    )
    .await;
}
