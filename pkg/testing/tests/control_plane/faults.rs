//! Tests of the faults of single requests: their effects, the requests that they affect, and that
//! healing ends them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use http::Request;
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, PostParams, WatchEvent};
use kube::client::Body;
use portreeve_testing::{BodyFault, CannedResponse, Fault, LIMIT, Matcher, Repeat, eventually};
use serde_json::{from_value, json};
use tokio::time::timeout;

use super::proxy::{Events, Fixture, NO_RESPONSE, added, broken, code, create};

fn creates() -> Matcher {
    Matcher::any().method("POST").resource("configmaps")
}

fn lists() -> Matcher {
    Matcher::lists().resource("configmaps")
}

fn reads() -> Matcher {
    Matcher::any().method("GET").resource("configmaps").name("a")
}

/// Reads the body of an object through the proxy. Returns the bytes, and whether the body ended
/// regularly.
async fn read(fixture: &Fixture) -> Result<(Vec<u8>, bool)> {
    let path = format!("/api/v1/namespaces/{}/configmaps/a", fixture.namespace.name());
    let client = fixture.through.clone().into_client();
    let response = client.send(Request::get(path).body(Body::empty())?).await?;
    let (mut body, mut read) = (response.into_body(), Vec::new());
    loop {
        match timeout(LIMIT, body.frame()).await.context("the response body hangs")? {
            Some(Ok(frame)) => read.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Some(Err(_)) => return Ok((read, false)),
            None => return Ok((read, true)),
        }
    }
}

/// Returns the next event, or `None` if none arrives within `NO_RESPONSE`.
async fn next_event(events: &mut Events) -> Result<Option<kube::Result<WatchEvent<ConfigMap>>>> {
    match timeout(NO_RESPONSE, events.next()).await {
        Ok(Some(event)) => Ok(Some(event)),
        Ok(None) => bail!("the watch ended"),
        Err(_) => Ok(None),
    }
}

#[tokio::test]
async fn a_write_is_cut_before_or_after_the_apiserver_handles_it() -> Result<()> {
    let fixture = Fixture::new("writes").await?;
    fixture.proxy.fault(creates(), Fault::Cut, Repeat::Nth(1));
    fixture.proxy.fault(creates(), Fault::DropResponse, Repeat::Nth(2));
    for name in ["before", "after"] {
        ensure!(
            code(create(&fixture.through, name).await).is_none(),
            "the request to create {name} got a response"
        );
    }
    ensure!(
        fixture.direct.get_opt("before").await?.is_none(),
        "the proxy forwarded the request"
    );
    ensure!(
        fixture.direct.get_opt("after").await?.is_some(),
        "the proxy did not forward the request"
    );
    ensure!(code(create(&fixture.through, "later").await) == Some(200));
    Ok(())
}

#[tokio::test]
async fn a_black_hole_holds_matching_requests_and_healing_breaks_them() -> Result<()> {
    let fixture = Fixture::new("hole").await?;
    let fault = fixture.proxy.fault(creates(), Fault::BlackHole, Repeat::Next(1));
    let mut request = Box::pin(create(&fixture.through, "swallowed"));
    tokio::select! {
        response = &mut request => bail!("the request got the response {response:?}"),
        fault = fault.wait_for_applied(1, LIMIT) => fault?,
    }
    ensure!(
        timeout(NO_RESPONSE, &mut request).await.is_err(),
        "the request got a response"
    );
    ensure!(code(create(&fixture.through, "other").await) == Some(200));
    fixture.proxy.heal();
    ensure!(
        code(timeout(LIMIT, request).await?).is_none(),
        "the request got a response"
    );
    ensure!(
        fixture.direct.get_opt("swallowed").await?.is_none(),
        "the proxy forwarded the request"
    );
    Ok(())
}

#[tokio::test]
async fn a_request_that_is_forwarded_late_arrives_when_the_fault_is_healed() -> Result<()> {
    let fixture = Fixture::new("late").await?;
    fixture.proxy.fault(creates(), Fault::ForwardLate, Repeat::Next(1));
    ensure!(
        code(create(&fixture.through, "a").await).is_none(),
        "the request got a response"
    );
    ensure!(code(create(&fixture.through, "b").await) == Some(200));
    ensure!(
        fixture.direct.get_opt("a").await?.is_none(),
        "the proxy forwarded the request at once"
    );
    fixture.proxy.heal();
    eventually(LIMIT, "the request to arrive", || async {
        fixture.direct.get_opt("a").await.ok().flatten()
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_body_is_cut_truncated_or_corrupted_at_the_given_offset() -> Result<()> {
    let fixture = Fixture::new("bodies").await?;
    fixture.create("a").await?;
    let (whole, ended) = read(&fixture).await?;
    ensure!(ended && whole.len() > 200, "{} bytes", whole.len());
    for at in [0, 1, 100] {
        fixture
            .proxy
            .fault(reads(), Fault::Body(BodyFault::CutAt(at)), Repeat::Next(1));
        let at = usize::try_from(at)?;
        let (cut, ended) = read(&fixture).await?;
        ensure!(!ended && cut == whole[..at], "{} bytes, ended: {ended}", cut.len());
        fixture
            .proxy
            .fault(reads(), Fault::Body(BodyFault::TruncateAt(at as u64)), Repeat::Next(1));
        let (short, ended) = read(&fixture).await?;
        ensure!(ended && short == whole[..at], "{} bytes, ended: {ended}", short.len());
        fixture
            .proxy
            .fault(reads(), Fault::Body(BodyFault::CorruptAt(at as u64)), Repeat::Next(1));
        let (garbled, ended) = read(&fixture).await?;
        ensure!(ended && garbled.len() == whole.len() && garbled[..at] == whole[..at]);
        ensure!(garbled[at..].iter().zip(&whole[at..]).all(|(now, was)| now != was));
    }
    // A body that ends before the offset is unchanged.
    let far = 1 << 20;
    for body_fault in [
        BodyFault::CutAt(far),
        BodyFault::TruncateAt(far),
        BodyFault::StallAt(far),
        BodyFault::CorruptAt(far),
    ] {
        fixture.proxy.fault(reads(), Fault::Body(body_fault), Repeat::Next(1));
        ensure!(read(&fixture).await? == (whole.clone(), true), "{body_fault:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_throttled_body_arrives_in_small_pieces() -> Result<()> {
    let fixture = Fixture::new("drip").await?;
    fixture.create("a").await?;
    let (whole, _) = read(&fixture).await?;
    let pause = Duration::from_millis(20);
    let throttle = BodyFault::Throttle {
        bytes: whole.len().div_ceil(20),
        pause,
    };
    fixture.proxy.fault(reads(), Fault::Body(throttle), Repeat::Next(1));
    let begun = Instant::now();
    ensure!(read(&fixture).await? == (whole, true));
    ensure!(
        begun.elapsed() >= 20 * pause,
        "the request took only {:?}",
        begun.elapsed()
    );
    Ok(())
}

#[tokio::test]
async fn a_watch_stalls_or_is_cut_in_the_middle_of_an_event() -> Result<()> {
    let fixture = Fixture::new("watches").await?;
    let mut whole = fixture.watch().await?;
    let stalled = Fault::Body(BodyFault::StallAt(10));
    let fault = fixture.proxy.fault(Matcher::watches(), stalled, Repeat::Next(1));
    let mut stalled = fixture.watch().await?;
    let cut = Fault::Body(BodyFault::CutAt(10));
    fixture.proxy.fault(Matcher::watches(), cut, Repeat::Next(1));
    let mut cut = fixture.watch().await?;
    fixture.create("a").await?;
    ensure!(added(&mut whole).await? == "a");
    broken(&mut cut).await?;
    ensure!(
        next_event(&mut stalled).await?.is_none(),
        "the stalled watch sent an event"
    );
    fixture.proxy.heal();
    broken(&mut stalled).await?;
    ensure!((fault.matched(), fault.applied()) == (2, 1));
    Ok(())
}

#[tokio::test]
async fn a_fault_that_is_healed_before_it_takes_effect_has_none() -> Result<()> {
    let fixture = Fixture::new("healed").await?;
    // The bodies reach this offset only after the faults are healed.
    let at = 2_000;
    let mut watches = Vec::new();
    for body_fault in [
        BodyFault::CutAt(at),
        BodyFault::TruncateAt(at),
        BodyFault::StallAt(at),
        BodyFault::CorruptAt(at),
    ] {
        fixture
            .proxy
            .fault(Matcher::watches(), Fault::Body(body_fault), Repeat::Next(1));
        watches.push((body_fault, fixture.watch().await?));
    }
    fixture.create("before").await?;
    for (_, watch) in &mut watches {
        ensure!(added(watch).await? == "before");
    }
    fixture.proxy.heal();
    let names: Vec<String> = (0..20).map(|number| format!("after-{number:02}")).collect();
    for name in &names {
        fixture.create(name).await?;
    }
    for (body_fault, watch) in &mut watches {
        for name in &names {
            ensure!(added(watch).await? == *name, "{body_fault:?}");
        }
    }

    // On a slow link, the fault is healed before the request has reached the apiserver.
    fixture.proxy.slow(LIMIT);
    let fault = fixture.proxy.fault(lists(), Fault::BlackHole, Repeat::Next(1));
    let all = ListParams::default();
    let healed = async {
        fault.wait_for_applied(1, LIMIT).await?;
        fixture.proxy.heal();
        anyhow::Ok(())
    };
    let (listed, healed) = tokio::join!(fixture.through.list(&all), healed);
    healed?;
    ensure!(code(listed) == Some(200));
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
