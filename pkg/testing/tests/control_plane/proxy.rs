//! Tests of the faults of the proxy's link to the real apiserver.

use std::pin::Pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, Config, ResourceExt};
use portreeve_testing::{ControlPlane, FaultProxy, LIMIT, Matcher, Namespace, Repeat, eventually};
use tokio::time::timeout;

/// Long enough for a running server to respond, and short enough to wait for a missing response.
pub(super) const NO_RESPONSE: Duration = Duration::from_millis(500);

pub(super) type Events = Pin<Box<dyn Stream<Item = kube::Result<WatchEvent<ConfigMap>>> + Send>>;

/// A proxy, a namespace, and the namespace's ConfigMaps reached directly and through the proxy.
pub(super) struct Fixture {
    pub(super) proxy: FaultProxy,
    pub(super) namespace: Namespace,
    pub(super) direct: Api<ConfigMap>,
    pub(super) through: Api<ConfigMap>,
}

impl Fixture {
    pub(super) async fn new(name: &str) -> Result<Self> {
        let plane = ControlPlane::shared().await;
        let namespace = plane.namespace(name).await?;
        let proxy = FaultProxy::start(plane).await?;
        let through = Api::namespaced(client(&proxy, plane.config()?)?, namespace.name());
        let direct = namespace.api();
        Ok(Self {
            proxy,
            namespace,
            direct,
            through,
        })
    }

    /// Opens a watch through the proxy on all changes from now on.
    pub(super) async fn watch(&self) -> Result<Events> {
        let version = self
            .direct
            .list(&ListParams::default())
            .await?
            .metadata
            .resource_version;
        let version = version.context("the list has no version")?;
        Ok(self.through.watch(&WatchParams::default(), &version).await?.boxed())
    }

    pub(super) async fn create(&self, name: &str) -> Result<()> {
        create(&self.direct, name).await?;
        Ok(())
    }
}

/// Returns a client through the proxy, without kube's own retries, which would hide failures.
fn client(proxy: &FaultProxy, config: Config) -> Result<Client> {
    let mut config = proxy.config(config);
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

pub(super) async fn create(api: &Api<ConfigMap>, name: &str) -> kube::Result<ConfigMap> {
    let object = ConfigMap {
        metadata: kube::api::ObjectMeta {
            name: Some(name.to_owned()),
            ..kube::api::ObjectMeta::default()
        },
        ..ConfigMap::default()
    };
    api.create(&PostParams::default(), &object).await
}

/// Returns the name of the next added object.
pub(super) async fn added(events: &mut Events) -> Result<String> {
    match timeout(LIMIT, events.next()).await?.context("the watch ended")? {
        Ok(WatchEvent::Added(object)) => Ok(object.name_any()),
        other => bail!("expected an addition, got {other:?}"),
    }
}

/// Waits until the watch breaks. Returns an error if it sends an event before that.
pub(super) async fn broken(events: &mut Events) -> Result<()> {
    while let Some(Ok(event)) = timeout(LIMIT, events.next()).await? {
        ensure!(matches!(event, WatchEvent::Bookmark(_)), "the watch sent {event:?}");
    }
    Ok(())
}

pub(super) fn code<T>(outcome: kube::Result<T>) -> Option<u16> {
    match outcome {
        Ok(_) => Some(200),
        Err(kube::Error::Api(status)) => Some(status.code),
        Err(_) => None,
    }
}

#[tokio::test]
async fn a_cut_breaks_open_connections_and_refuses_new_ones_until_healed() -> Result<()> {
    let fixture = Fixture::new("cut").await?;
    let mut events = fixture.watch().await?;
    fixture.create("a").await?;
    ensure!(added(&mut events).await? == "a");
    fixture.proxy.cut();
    broken(&mut events).await?;
    eventually(LIMIT, "the connections to end", || async {
        (fixture.proxy.connections() == 0).then_some(())
    })
    .await?;
    let response = timeout(LIMIT, fixture.through.get("a")).await?;
    ensure!(response.is_err(), "the cut proxy responded: {response:?}");

    fixture.proxy.heal();
    fixture.through.get("a").await?;
    let mut events = fixture.watch().await?;
    fixture.create("b").await?;
    ensure!(added(&mut events).await? == "b");

    // A cut that is healed immediately still breaks connections.
    fixture.proxy.cut();
    fixture.proxy.heal();
    broken(&mut events).await?;
    Ok(())
}

#[tokio::test]
async fn a_black_hole_holds_all_data_and_closes_nothing() -> Result<()> {
    let fixture = Fixture::new("hole").await?;
    let mut events = fixture.watch().await?;
    fixture.create("a").await?;
    ensure!(added(&mut events).await? == "a");
    fixture.through.get("a").await?;
    let open = fixture.proxy.connections();

    fixture.proxy.black_hole();
    fixture.create("b").await?;
    let event = timeout(NO_RESPONSE, events.next()).await;
    ensure!(event.is_err(), "the watch sent {event:?}");
    // One request on the open, idle connection, and one on a new connection.
    let (one, other) = (fixture.through.get("a"), fixture.through.get("a"));
    let responses = timeout(NO_RESPONSE, async {
        tokio::select! { response = one => response, response = other => response }
    })
    .await;
    ensure!(responses.is_err(), "a request got the response {responses:?}");
    ensure!(fixture.proxy.connections() > open, "the proxy accepted no connection");

    fixture.proxy.heal();
    ensure!(
        added(&mut events).await? == "b",
        "the watch did not resume where it was"
    );
    fixture.through.get("b").await?;
    Ok(())
}

#[tokio::test]
async fn healing_forwards_requests_in_a_black_hole_unless_they_were_cut() -> Result<()> {
    let fixture = Fixture::new("held").await?;
    for (name, is_cut) in [("late", false), ("lost", true)] {
        fixture.through.list(&ListParams::default()).await?;
        fixture.proxy.black_hole();
        let mut request = Box::pin(create(&fixture.through, name));
        let response = timeout(NO_RESPONSE, &mut request).await;
        ensure!(response.is_err(), "a request got the response {response:?}");
        if is_cut {
            fixture.proxy.cut();
        }
        ensure!(
            fixture.direct.get_opt(name).await?.is_none(),
            "the proxy forwarded {name}"
        );
        fixture.proxy.heal();
        let response = timeout(LIMIT, request).await?;
        ensure!(
            response.is_err() == is_cut,
            "the request to create {name} got {response:?}"
        );
        ensure!(fixture.direct.get_opt(name).await?.is_none() == is_cut, "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn a_link_that_holds_responses_still_forwards_writes() -> Result<()> {
    let fixture = Fixture::new("mute").await?;
    let mut events = fixture.watch().await?;
    fixture.through.list(&ListParams::default()).await?;
    fixture.proxy.hold_responses();
    // The first request uses an open connection, the second a new one.
    for name in ["a", "b"] {
        let mut write = Box::pin(create(&fixture.through, name));
        tokio::select! {
            response = &mut write => bail!("the write got the response {response:?}"),
            done = eventually(LIMIT, name, || fixture.direct.get(name)) => done.map(|_| ())?,
        }
        let response = timeout(NO_RESPONSE, write).await;
        ensure!(response.is_err(), "the write got the response {response:?}");
    }
    let event = timeout(NO_RESPONSE, events.next()).await;
    ensure!(event.is_err(), "the watch sent {event:?}");
    fixture.proxy.heal();
    ensure!(added(&mut events).await? == "a");
    ensure!(
        code(create(&fixture.through, "a").await) == Some(409),
        "the object does not exist yet"
    );
    Ok(())
}

#[tokio::test]
async fn a_slow_link_delays_requests_and_events_without_adding_up() -> Result<()> {
    const DELAY: Duration = Duration::from_millis(400);
    let fixture = Fixture::new("slow").await?;
    let mut events = fixture.watch().await?;
    fixture.proxy.slow(DELAY);
    let begun = Instant::now();
    create(&fixture.through, "a").await?;
    ensure!(begun.elapsed() >= DELAY, "the create took only {:?}", begun.elapsed());
    ensure!(added(&mut events).await? == "a");
    ensure!(
        begun.elapsed() >= 2 * DELAY,
        "the event took only {:?}",
        begun.elapsed()
    );

    let begun = Instant::now();
    for number in 0..20 {
        fixture.create(&format!("burst-{number}")).await?;
    }
    for number in 0..20 {
        ensure!(added(&mut events).await? == format!("burst-{number}"));
    }
    let took = begun.elapsed();
    ensure!(took >= DELAY && took < 20 * DELAY, "20 events took {took:?}");

    fixture.proxy.slow(LIMIT);
    let without_response = timeout(NO_RESPONSE, create(&fixture.through, "given-up")).await;
    ensure!(
        without_response.is_err(),
        "a request got the response {without_response:?}"
    );
    let mut waiting = Box::pin(fixture.through.get("a"));
    ensure!(timeout(NO_RESPONSE, &mut waiting).await.is_err());
    fixture.proxy.heal();
    timeout(LIMIT / 2, waiting).await??;
    ensure!(
        fixture.direct.get_opt("given-up").await?.is_none(),
        "the proxy forwarded an abandoned request"
    );
    Ok(())
}

#[tokio::test]
async fn only_responses_to_matching_requests_are_delayed() -> Result<()> {
    const DELAY: Duration = Duration::from_secs(3);
    let fixture = Fixture::new("lag").await?;
    let mut prompt = fixture.watch().await?;
    let lagging = fixture
        .proxy
        .delay_responses(Matcher::watches(), DELAY, Repeat::Next(1));
    let mut late = fixture.watch().await?;
    let mut next = fixture.watch().await?;
    ensure!(
        (lagging.matched(), lagging.applied()) == (2, 1),
        "the delay does not apply to exactly one of two watches"
    );
    let begun = Instant::now();
    create(&fixture.through, "a").await?;
    for events in [&mut prompt, &mut next] {
        ensure!(added(events).await? == "a");
    }
    ensure!(begun.elapsed() < DELAY, "the others took {:?}", begun.elapsed());
    ensure!(added(&mut late).await? == "a");
    ensure!(begun.elapsed() >= DELAY, "the event took only {:?}", begun.elapsed());
    Ok(())
}
