//! The faults of single requests: each is what it says, to those that are named, and over when it is healed.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use http::Request;
use http_body_util::BodyExt;
use kube::ResourceExt;
use kube::api::{ListParams, WatchEvent};
use kube::client::Body;
use portreeve_testing::{Canned, Fault, Matcher, Spoil, Times};
use tokio::time::timeout;

use super::proxy::{Events, LIMIT, NO_ANSWER, Stage, added, broken, code, create};

fn creates() -> Matcher {
    Matcher::any().method("POST").resource("configmaps")
}

fn lists() -> Matcher {
    Matcher::lists().resource("configmaps")
}

fn reads() -> Matcher {
    Matcher::any().method("GET").resource("configmaps").name("a")
}

/// How much of the body of an object comes through the proxy, and whether its end is that of an answer.
async fn read(stage: &Stage) -> Result<(Vec<u8>, bool)> {
    let path = format!("/api/v1/namespaces/{}/configmaps/a", stage.namespace.name());
    let client = stage.through.clone().into_client();
    let answer = client.send(Request::get(path).body(Body::empty())?).await?;
    let (mut body, mut read) = (answer.into_body(), Vec::new());
    loop {
        match timeout(LIMIT, body.frame()).await.context("the body hangs")? {
            Some(Ok(frame)) => read.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Some(Err(_)) => return Ok((read, false)),
            None => return Ok((read, true)),
        }
    }
}

/// The next event, unless nothing comes for a while.
async fn soon(events: &mut Events) -> Result<Option<kube::Result<WatchEvent<k8s_openapi::api::core::v1::ConfigMap>>>> {
    match timeout(NO_ANSWER, events.next()).await {
        Ok(Some(event)) => Ok(Some(event)),
        Ok(None) => bail!("the watch ended"),
        Err(_) => Ok(None),
    }
}

#[tokio::test]
async fn a_write_is_cut_before_it_is_done_or_after_it() -> Result<()> {
    let stage = Stage::new("writes").await?;
    stage.proxy.fault(creates(), Fault::Cut, Times::Nth(1));
    stage.proxy.fault(creates(), Fault::LoseAnswer, Times::Nth(2));
    for name in ["before", "after"] {
        ensure!(
            code(create(&stage.through, name).await).is_none(),
            "{name} was answered"
        );
    }
    ensure!(stage.direct.get_opt("before").await?.is_none(), "it was passed on");
    ensure!(stage.direct.get_opt("after").await?.is_some(), "it was not passed on");
    ensure!(code(create(&stage.through, "later").await) == Some(200));
    Ok(())
}

#[tokio::test]
async fn a_black_hole_takes_the_requests_that_are_named_and_breaks_them_when_it_heals() -> Result<()> {
    let stage = Stage::new("hole").await?;
    let hole = stage.proxy.fault(creates(), Fault::BlackHole, Times::Next(1));
    let mut hangs = Box::pin(create(&stage.through, "swallowed"));
    tokio::select! {
        answer = &mut hangs => bail!("it was answered with {answer:?}"),
        met = hole.until_answered(1, LIMIT) => met?,
    }
    ensure!(timeout(NO_ANSWER, &mut hangs).await.is_err(), "it was answered");
    ensure!(code(create(&stage.through, "other").await) == Some(200));
    stage.proxy.heal();
    ensure!(code(timeout(LIMIT, hangs).await?).is_none(), "it was answered");
    ensure!(stage.direct.get_opt("swallowed").await?.is_none(), "it was passed on");
    Ok(())
}

#[tokio::test]
async fn a_request_is_late_and_done_all_the_same() -> Result<()> {
    const DELAY: Duration = Duration::from_millis(700);
    let stage = Stage::new("late").await?;
    stage.proxy.fault(creates(), Fault::Delay(DELAY), Times::Next(1));
    let begun = Instant::now();
    ensure!(code(create(&stage.through, "a").await) == Some(200));
    ensure!(begun.elapsed() >= DELAY, "it took only {:?}", begun.elapsed());
    Ok(())
}

#[tokio::test]
async fn a_body_is_cut_or_ended_or_garbled_from_the_byte_that_is_named() -> Result<()> {
    let stage = Stage::new("bodies").await?;
    stage.create("a").await?;
    let (whole, ended) = read(&stage).await?;
    ensure!(ended && whole.len() > 200, "{} bytes", whole.len());
    for at in [0, 1, 100] {
        stage
            .proxy
            .fault(reads(), Fault::Spoil(Spoil::CutAt(at)), Times::Next(1));
        let at = usize::try_from(at)?;
        let (cut, ended) = read(&stage).await?;
        ensure!(!ended && cut == whole[..at], "{} bytes, ended: {ended}", cut.len());
        stage
            .proxy
            .fault(reads(), Fault::Spoil(Spoil::EndAt(at as u64)), Times::Next(1));
        let (short, ended) = read(&stage).await?;
        ensure!(ended && short == whole[..at], "{} bytes, ended: {ended}", short.len());
        stage
            .proxy
            .fault(reads(), Fault::Spoil(Spoil::GarbageAt(at as u64)), Times::Next(1));
        let (garbled, ended) = read(&stage).await?;
        ensure!(ended && garbled.len() == whole.len() && garbled[..at] == whole[..at]);
        ensure!(garbled[at..].iter().zip(&whole[at..]).all(|(now, was)| now != was));
    }
    // A body that ends before that comes as it is.
    let far = 1 << 20;
    for how in [
        Spoil::CutAt(far),
        Spoil::EndAt(far),
        Spoil::SilentAt(far),
        Spoil::GarbageAt(far),
    ] {
        stage.proxy.fault(reads(), Fault::Spoil(how), Times::Next(1));
        ensure!(read(&stage).await? == (whole.clone(), true), "{how:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_body_drips() -> Result<()> {
    let stage = Stage::new("drip").await?;
    stage.create("a").await?;
    let (whole, _) = read(&stage).await?;
    let pause = Duration::from_millis(20);
    let drip = Spoil::Drip {
        bytes: whole.len().div_ceil(20),
        pause,
    };
    stage.proxy.fault(reads(), Fault::Spoil(drip), Times::Next(1));
    let begun = Instant::now();
    ensure!(read(&stage).await? == (whole, true));
    ensure!(begun.elapsed() >= 20 * pause, "it took only {:?}", begun.elapsed());
    Ok(())
}

#[tokio::test]
async fn a_watch_goes_silent_or_is_cut_in_the_middle_of_an_event() -> Result<()> {
    let stage = Stage::new("watches").await?;
    let mut whole = stage.watch().await?;
    let silent = Fault::Spoil(Spoil::SilentAt(10));
    let met = stage.proxy.fault(Matcher::watches(), silent, Times::Next(1));
    let mut silent = stage.watch().await?;
    let cut = Fault::Spoil(Spoil::CutAt(10));
    stage.proxy.fault(Matcher::watches(), cut, Times::Next(1));
    let mut cut = stage.watch().await?;
    stage.create("a").await?;
    ensure!(added(&mut whole).await? == "a");
    broken(&mut cut).await?;
    ensure!(soon(&mut silent).await?.is_none(), "it is not silent");
    stage.proxy.heal();
    broken(&mut silent).await?;
    ensure!((met.seen(), met.answered()) == (2, 1));
    Ok(())
}

#[tokio::test]
async fn the_third_page_of_a_list_fails_and_the_list_can_be_had_again() -> Result<()> {
    let stage = Stage::new("pages").await?;
    for name in ["a", "b", "c"] {
        stage.create(name).await?;
    }
    let third = Matcher::later_pages().resource("configmaps");
    stage
        .proxy
        .fault(third, Fault::Answer(Canned::expired()), Times::Nth(2));
    let page = |token: Option<String>| {
        let through = stage.through.clone();
        async move {
            let mut parameters = ListParams::default().limit(1);
            parameters.continue_token = token;
            through.list(&parameters).await
        }
    };
    let first = page(None).await?;
    let second = page(first.metadata.continue_).await?;
    ensure!(second.items.iter().map(ResourceExt::name_any).eq(["b"]));
    ensure!(code(page(second.metadata.continue_.clone()).await) == Some(410));
    let third = page(second.metadata.continue_).await?;
    ensure!(third.items.iter().map(ResourceExt::name_any).eq(["c"]));
    Ok(())
}

#[tokio::test]
async fn who_asks_for_pages_gets_smaller_ones_from_the_apiserver() -> Result<()> {
    let stage = Stage::new("small-pages").await?;
    for name in ["a", "b", "c"] {
        stage.create(name).await?;
    }
    stage.proxy.fault(lists(), Fault::PagesOf(1), Times::UntilHealed);
    let asked = ListParams::default().limit(500);
    let first = stage.through.list(&asked).await?;
    ensure!(first.items.iter().map(ResourceExt::name_any).eq(["a"]));
    let rest = ListParams {
        continue_token: first.metadata.continue_,
        ..asked.clone()
    };
    let second = stage.through.list(&rest).await?;
    ensure!(second.items.iter().map(ResourceExt::name_any).eq(["b"]));
    ensure!(stage.through.list(&ListParams::default()).await?.items.len() == 3);
    stage.proxy.heal();
    ensure!(stage.through.list(&asked).await?.items.len() == 3);
    Ok(())
}

#[tokio::test]
async fn what_is_healed_before_the_fault_has_come_over_it_comes_as_it_is() -> Result<()> {
    let stage = Stage::new("healed").await?;
    // More than there is before the watch is healed, and less than there is after it.
    let at = 2_000;
    let mut watches = Vec::new();
    for how in [
        Spoil::CutAt(at),
        Spoil::EndAt(at),
        Spoil::SilentAt(at),
        Spoil::GarbageAt(at),
    ] {
        stage.proxy.fault(Matcher::watches(), Fault::Spoil(how), Times::Next(1));
        watches.push((how, stage.watch().await?));
    }
    stage.create("before").await?;
    for (_, watch) in &mut watches {
        ensure!(added(watch).await? == "before");
    }
    stage.proxy.heal();
    let names: Vec<String> = (0..20).map(|number| format!("after-{number:02}")).collect();
    for name in &names {
        stage.create(name).await?;
    }
    for (how, watch) in &mut watches {
        for name in &names {
            ensure!(added(watch).await? == *name, "{how:?}");
        }
    }

    // On a slow line, before it has reached the apiserver.
    stage.proxy.slow(LIMIT);
    let met = stage.proxy.fault(lists(), Fault::BlackHole, Times::Next(1));
    let all = ListParams::default();
    let healed = async {
        met.until_answered(1, LIMIT).await?;
        stage.proxy.heal();
        anyhow::Ok(())
    };
    let (listed, healed) = tokio::join!(stage.through.list(&all), healed);
    healed?;
    ensure!(code(listed) == Some(200));
    Ok(())
}

#[tokio::test]
async fn a_storm_meets_the_same_requests_when_it_has_the_same_seed() -> Result<()> {
    let stage = Stage::new("storm").await?;
    let storm = async |seed| {
        let times = Times::Chance { percent: 40, seed };
        let met = stage.proxy.answer(lists(), Canned::too_many_requests(1), times);
        let mut told = Vec::new();
        for _ in 0..30 {
            told.push(code(stage.through.list(&ListParams::default()).await));
        }
        ensure!(told.iter().filter(|code| **code == Some(429)).count() as u64 == met.answered());
        stage.proxy.heal();
        Ok(told)
    };
    let first = storm(7).await?;
    ensure!(first.contains(&Some(429)) && first.contains(&Some(200)), "{first:?}");
    ensure!(storm(7).await? == first && storm(8).await? != first);
    ensure!(code(stage.through.list(&ListParams::default()).await) == Some(200));
    Ok(())
}
