//! Answers of the proxy's own: to the requests that are named, with the codes that they are named for.

use anyhow::{Result, ensure};
use http::{Request, StatusCode, header};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{api::PostParams, client::Body};
use portreeve_testing::{Canned, Matcher, Times};
use serde_json::{from_value, json};

use super::proxy::{LIMIT, Stage, code, create};

#[tokio::test]
async fn exactly_the_requests_that_are_named_are_answered_by_the_proxy() -> Result<()> {
    let stage = Stage::new("canned").await?;
    let creates = || Matcher::any().method("POST").resource("configmaps");
    let conflict = stage.proxy.answer(creates(), Canned::conflict(), Times::Nth(2));
    let reads = stage.proxy.count(Matcher::any().method("GET").resource("configmaps"));
    let mut codes = Vec::new();
    for name in ["a", "b", "c"] {
        codes.push(code(create(&stage.through, name).await));
    }
    ensure!(codes == [Some(200), Some(409), Some(200)], "{codes:?}");
    ensure!(stage.direct.get_opt("b").await?.is_none(), "the second was passed on");
    ensure!((conflict.seen(), conflict.answered()) == (3, 1));

    let matcher = || Matcher::any().resource("configmaps").name("a");
    stage.proxy.answer(matcher(), Canned::unavailable(), Times::Next(2));
    codes.clear();
    for _ in 0..3 {
        codes.push(code(stage.through.get("a").await));
    }
    ensure!(codes == [Some(503), Some(503), Some(200)], "{codes:?}");

    let busy = stage
        .proxy
        .answer(matcher(), Canned::too_many_requests(7), Times::UntilHealed);
    let path = format!("/api/v1/namespaces/{}/configmaps/a", stage.namespace.name());
    let through = stage.through.clone().into_client();
    for _ in 0..2 {
        let answer = through.send(Request::get(&path).body(Body::empty())?).await?;
        ensure!(answer.status() == StatusCode::TOO_MANY_REQUESTS);
        ensure!(
            answer
                .headers()
                .get(header::RETRY_AFTER)
                .is_some_and(|seconds| seconds == "7")
        );
    }
    busy.until_answered(2, LIMIT).await?;
    stage.proxy.heal();
    stage.through.get("a").await?;
    busy.until_seen(3, LIMIT).await?;
    ensure!(reads.seen() == 6, "{} reads were seen", reads.seen());
    Ok(())
}

#[tokio::test]
async fn canned_answers_have_the_codes_that_they_are_named_for() -> Result<()> {
    let stage = Stage::new("codes").await?;
    stage.create("a").await?;
    for (canned, expected) in [
        (Canned::conflict(), 409),
        (Canned::expired(), 410),
        (Canned::too_many_requests(1), 429),
        (Canned::internal_error(), 500),
        (Canned::unavailable(), 503),
        (Canned::timeout(), 504),
    ] {
        stage.proxy.answer(Matcher::objects(), canned, Times::Next(1));
        let answer = code(stage.through.get("a").await);
        ensure!(answer == Some(expected), "{answer:?}, not {expected}");
    }
    ensure!(code(stage.through.get("a").await) == Some(200));
    Ok(())
}

#[tokio::test]
async fn a_canned_answer_is_read_by_a_client_that_still_writes() -> Result<()> {
    let stage = Stage::new("large").await?;
    stage
        .proxy
        .answer(Matcher::writes(), Canned::conflict(), Times::UntilHealed);
    let large: ConfigMap = from_value(json!({"metadata": {"name": "large"}, "data": {"text": "x".repeat(1 << 20)}}))?;
    for _ in 0..5 {
        ensure!(code(stage.through.create(&PostParams::default(), &large).await) == Some(409));
    }
    Ok(())
}
