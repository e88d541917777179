//! Tests of the `rest_client_*` metrics by name, label and value.

use prometheus::TextEncoder;

use super::*;

/// Returns the lines of a scrape.
fn lines(registry: &Registry) -> Vec<String> {
    let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
    text.lines().map(ToOwned::to_owned).collect()
}

fn assert_scraped(registry: &Registry, expected: &[&str]) {
    let lines = lines(registry);
    for expected in expected {
        assert!(lines.iter().any(|line| line == expected), "no {expected} in {lines:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn calls_are_counted_by_code_method_and_host() {
    let test_stack = test_stack();
    let registry = test_stack.registry.clone();
    let client = test_stack.client(|request| async move {
        tokio::time::sleep(Duration::from_millis(250)).await;
        match request.method().as_str() {
            "GET" => Ok(response(404, "")),
            "POST" => Ok(response(201, r#"{"metadata":{}}"#)),
            _ => Err("connection reset".into()),
        }
    });
    let api = config_maps(client);
    let _ = api.get("a").await;
    let _ = api.get("b").await;
    let _ = api.create(&PostParams::default(), &config_map()).await;
    let _ = api.delete("a", &DeleteParams::default()).await;
    let sent = serde_json::to_vec(&config_map()).unwrap().len();
    let expected = [
        r#"rest_client_requests_total{code="404",host="apiserver:6443",method="GET"} 2"#,
        r#"rest_client_requests_total{code="201",host="apiserver:6443",method="POST"} 1"#,
        r#"rest_client_requests_total{code="<error>",host="apiserver:6443",method="DELETE"} 1"#,
        r#"rest_client_request_duration_seconds_count{host="apiserver:6443",verb="GET"} 2"#,
        r#"rest_client_request_duration_seconds_sum{host="apiserver:6443",verb="GET"} 0.5"#,
        r#"rest_client_request_duration_seconds_sum{host="apiserver:6443",verb="DELETE"} 0.25"#,
        &format!(r#"rest_client_request_size_bytes_sum{{host="apiserver:6443",verb="POST"}} {sent}"#),
        r#"rest_client_response_size_bytes_sum{host="apiserver:6443",verb="POST"} 15"#,
    ];
    assert_scraped(&registry, &expected);
}

#[tokio::test(start_paused = true)]
async fn rate_limit_delay_is_measured_separately_and_in_the_request_duration() {
    let test_stack = test_stack().rate(2.0, 1);
    let registry = test_stack.registry.clone();
    let (client, _) = test_stack.responding(200, r#"{"metadata":{}}"#);
    let api = config_maps(client);
    api.get("a").await.unwrap();
    api.get("a").await.unwrap();
    let expected = [
        r#"rest_client_rate_limiter_duration_seconds_count{host="apiserver:6443",verb="GET"} 2"#,
        r#"rest_client_rate_limiter_duration_seconds_sum{host="apiserver:6443",verb="GET"} 0.5"#,
        r#"rest_client_request_duration_seconds_sum{host="apiserver:6443",verb="GET"} 0.5"#,
    ];
    assert_scraped(&registry, &expected);
}

#[tokio::test(start_paused = true)]
async fn request_duration_includes_the_body() {
    let test_stack = test_stack();
    let registry = test_stack.registry.clone();
    let api = config_maps(test_stack.client(|_| async { Ok(stalled_response("{")) }));
    api.get("a").await.unwrap_err();
    let lines = lines(&registry);
    let name = "rest_client_request_duration_seconds_sum";
    let sum = lines.iter().find_map(|line| line.strip_prefix(name)?.split(' ').nth(1));
    // The call ends at its limit, give or take a tick of the clock.
    assert!(sum.is_some_and(|sum| sum.starts_with("30")), "{lines:#?}");
    assert_scraped(
        &registry,
        &[r#"rest_client_response_size_bytes_sum{host="apiserver:6443",verb="GET"} 1"#],
    );
}

#[tokio::test(start_paused = true)]
async fn open_watch_is_counted_but_its_duration_is_not_measured() {
    let test_stack = test_stack();
    let registry = test_stack.registry.clone();
    let (client, _) = test_stack.responding(200, "{}\n");
    let watch = || Request::get("/api/v1/pods?watch=true").body(Body::empty()).unwrap();
    let body = client.send(watch()).await.unwrap().into_body();
    body.collect().await.unwrap();
    let lines = lines(&registry);
    assert_scraped(
        &registry,
        &[r#"rest_client_requests_total{code="200",host="apiserver:6443",method="GET"} 1"#],
    );
    for name in [
        "rest_client_request_duration_seconds",
        "rest_client_response_size_bytes",
    ] {
        let observed = lines
            .iter()
            .any(|line| line.starts_with(&format!("{name}_count")) && !line.ends_with(" 0"));
        assert!(!observed, "{name}: {lines:#?}");
    }
}
