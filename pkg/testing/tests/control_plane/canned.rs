//! Tests of responses that the proxy sends itself.

use anyhow::{Result, ensure};
use http::{Request, StatusCode, header};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{api::PostParams, client::Body};
use portreeve_testing::{CannedResponse, Matcher, Repeat};
use serde_json::{from_value, json};

use super::proxy::{Fixture, LIMIT, code, create};

#[tokio::test]
async fn the_proxy_responds_to_exactly_the_matching_requests() -> Result<()> {
    let fixture = Fixture::new("canned").await?;
    let creates = || Matcher::any().method("POST").resource("configmaps");
    let conflict = fixture
        .proxy
        .respond(creates(), CannedResponse::conflict(), Repeat::Nth(2));
    let reads = fixture.proxy.count(Matcher::any().method("GET").resource("configmaps"));
    let mut codes = Vec::new();
    for name in ["a", "b", "c"] {
        codes.push(code(create(&fixture.through, name).await));
    }
    ensure!(codes == [Some(200), Some(409), Some(200)], "{codes:?}");
    ensure!(
        fixture.direct.get_opt("b").await?.is_none(),
        "the proxy forwarded the second request"
    );
    ensure!((conflict.matched(), conflict.applied()) == (3, 1));

    let matcher = || Matcher::any().resource("configmaps").name("a");
    fixture
        .proxy
        .respond(matcher(), CannedResponse::unavailable(), Repeat::Next(2));
    codes.clear();
    for _ in 0..3 {
        codes.push(code(fixture.through.get("a").await));
    }
    ensure!(codes == [Some(503), Some(503), Some(200)], "{codes:?}");

    let throttled = fixture
        .proxy
        .respond(matcher(), CannedResponse::too_many_requests(7), Repeat::UntilHealed);
    let path = format!("/api/v1/namespaces/{}/configmaps/a", fixture.namespace.name());
    let through = fixture.through.clone().into_client();
    for _ in 0..2 {
        let response = through.send(Request::get(&path).body(Body::empty())?).await?;
        ensure!(response.status() == StatusCode::TOO_MANY_REQUESTS);
        ensure!(
            response
                .headers()
                .get(header::RETRY_AFTER)
                .is_some_and(|seconds| seconds == "7")
        );
    }
    throttled.wait_for_applied(2, LIMIT).await?;
    fixture.proxy.heal();
    fixture.through.get("a").await?;
    throttled.wait_for_matched(3, LIMIT).await?;
    ensure!(reads.matched() == 6, "the proxy counted {} reads", reads.matched());
    Ok(())
}

#[tokio::test]
async fn canned_responses_have_the_codes_of_their_names() -> Result<()> {
    let fixture = Fixture::new("codes").await?;
    fixture.create("a").await?;
    for (canned, expected) in [
        (CannedResponse::conflict(), 409),
        (CannedResponse::expired(), 410),
        (CannedResponse::too_many_requests(1), 429),
        (CannedResponse::internal_error(), 500),
        (CannedResponse::unavailable(), 503),
        (CannedResponse::timeout(), 504),
    ] {
        fixture.proxy.respond(Matcher::objects(), canned, Repeat::Next(1));
        let response = code(fixture.through.get("a").await);
        ensure!(response == Some(expected), "got {response:?}, not {expected}");
    }
    ensure!(code(fixture.through.get("a").await) == Some(200));
    Ok(())
}

#[tokio::test]
async fn a_client_that_still_writes_reads_a_canned_response() -> Result<()> {
    let fixture = Fixture::new("large").await?;
    fixture
        .proxy
        .respond(Matcher::writes(), CannedResponse::conflict(), Repeat::UntilHealed);
    let large: ConfigMap = from_value(json!({"metadata": {"name": "large"}, "data": {"text": "x".repeat(1 << 20)}}))?;
    for _ in 0..5 {
        ensure!(code(fixture.through.create(&PostParams::default(), &large).await) == Some(409));
    }
    Ok(())
}
