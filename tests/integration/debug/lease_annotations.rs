//! The Lease annotations of a group: what one replica notes on the Lease, and others read, whatever becomes of the one that wrote it.

use std::{
    collections::BTreeMap,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::{TryStreamExt, future::BoxFuture};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, WatchEvent, WatchParams},
};
use portreeve_reconcile::{Controller, ControllerFailure, Descriptor, LeaseAnnotations, Shutdown, SystemClock};
use portreeve_testing::{ControlPlane, Signal, eventually};
use serde_json::{Value, json};
use tokio::time::{Instant, interval, timeout};

use crate::{
    election::TIMES,
    in_process::InProcess,
    support::{LIMIT, daemon::Daemon, fixtures::in_time},
};

const NOTE: &str = "a-test.example.com/note";
const LEASE: &str = "portreeve";
const RETRY_PERIOD: Duration = Duration::from_millis(500);

/// Hands its Lease annotations to the test that it is named for.
const ANNOTATION_CONTROLLER: &[Descriptor] = &[Descriptor {
    name: "scribe-controller",
    aliases: &[],
    on_by_default: true,
    crds: Vec::new,
    rules: &[],
    flags: || vec![clap::Arg::new("scribe").long("scribe").required(true)],
    build: |setup| {
        let name: String = setup.flag("scribe")?;
        let built = Built {
            lease_annotations: setup.lease_annotations.clone(),
            began: None,
        };
        all_built().insert(name.clone(), built);
        Ok(Box::new(AnnotationController(name)))
    },
}];

/// What was built, by the names of the replicas.
fn all_built() -> MutexGuard<'static, BTreeMap<String, Built>> {
    static BUILT: Mutex<BTreeMap<String, Built>> = Mutex::new(BTreeMap::new());
    BUILT.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Built {
    lease_annotations: Option<Arc<dyn LeaseAnnotations>>,
    began: Option<Began>,
}

/// What the note said when the controller was run.
#[derive(Clone)]
struct Began(Option<String>);

struct AnnotationController(String);

impl Controller for AnnotationController {
    fn run(self: Box<Self>, stop: Shutdown) -> BoxFuture<'static, Result<(), ControllerFailure>> {
        if let Some(built) = all_built().get_mut(&self.0) {
            let note = built
                .lease_annotations
                .as_ref()
                .and_then(|lease_annotations| lease_annotations.read(NOTE));
            built.began = Some(Began(note));
        }
        Box::pin(async move {
            stop.requested().await;
            Ok(())
        })
    }
}

/// A control plane of one's own.
struct Stage {
    plane: ControlPlane,
    leases: Api<Lease>,
}

/// A daemon that leads or stands by.
struct Replica {
    daemon: InProcess,
    name: String,
    lease_annotations: Arc<dyn LeaseAnnotations>,
}

impl Replica {
    fn note(&self) -> Option<String> {
        self.lease_annotations.read(NOTE)
    }

    /// Waits until its controller runs, and returns what it had to go by.
    async fn began_with(&self) -> Result<Option<String>> {
        let Began(note) = eventually(LIMIT, &format!("{} to lead", self.name), || async {
            all_built().get(&self.name)?.began.clone()
        })
        .await?;
        Ok(note)
    }

    async fn wait_for_note(&self, note: Option<&str>) -> Result<()> {
        eventually(LIMIT, &format!("{} to know of {note:?}", self.name), || async {
            (self.note().as_deref() == note).then_some(())
        })
        .await
    }
}

impl Stage {
    async fn new() -> Result<Self> {
        let plane = ControlPlane::start().await?;
        let leases = Api::namespaced(plane.client()?, "kube-system");
        Ok(Self { plane, leases })
    }

    async fn replica(&self, name: &str) -> Result<Replica> {
        let scribe = format!("--scribe={name}");
        let flags: Vec<_> = TIMES.iter().copied().chain([&*scribe]).collect();
        let daemon = InProcess::start_as(
            self.plane.kubeconfig(),
            Arc::new(SystemClock),
            ANNOTATION_CONTROLLER,
            &flags,
        )
        .await?;
        let lease_annotations = all_built().get(name).and_then(|built| built.lease_annotations.clone());
        Ok(Replica {
            daemon,
            name: name.to_owned(),
            lease_annotations: lease_annotations.context("it has no Lease annotations")?,
        })
    }

    /// A replica that leads.
    async fn leader(&self, name: &str) -> Result<Replica> {
        let replica = self.replica(name).await?;
        replica.began_with().await?;
        Ok(replica)
    }

    async fn lease(&self) -> Result<Lease> {
        Ok(self.leases.get(LEASE).await?)
    }

    async fn annotated(&self) -> Result<Option<String>> {
        Ok(self.lease().await?.annotations().get(NOTE).cloned())
    }

    /// What `kubectl annotate` does; null removes.
    async fn annotate(&self, value: Value) -> Result<Lease> {
        self.patch(json!({"metadata": {"annotations": {NOTE: value}}})).await
    }

    async fn patch(&self, patch: Value) -> Result<Lease> {
        let patch = Patch::Merge(patch);
        Ok(self.leases.patch(LEASE, &PatchParams::default(), &patch).await?)
    }

    /// Waits until the Lease was renewed that many times.
    async fn renewals(&self, count: usize) -> Result<()> {
        let mut last = renewed(&self.lease().await?);
        for _ in 0..count {
            last = eventually(LIMIT, "a renewal", || async {
                let now = renewed(&self.lease().await?);
                ensure!(now != last, "it is of {now:?}");
                anyhow::Ok(now)
            })
            .await?;
        }
        Ok(())
    }
}

fn renewed(lease: &Lease) -> Option<Timestamp> {
    Some(lease.spec.as_ref()?.renew_time.as_ref()?.0)
}

#[tokio::test]
async fn a_note_survives_renewals_a_release_a_takeover_and_a_kill() -> Result<()> {
    let stage = Stage::new().await?;
    let first = stage.leader("survives-1").await?;
    ensure!(first.began_with().await?.is_none() && first.note().is_none());
    let second = stage.replica("survives-2").await?;
    first.lease_annotations.write(NOTE, "at noon").await?;
    ensure!(first.note().as_deref() == Some("at noon"), "known once it is written");
    second.wait_for_note(Some("at noon")).await?;
    stage.renewals(4).await?;
    ensure!(stage.annotated().await?.as_deref() == Some("at noon"), "renewed away");

    first.daemon.stop().await?;
    ensure!(
        second.began_with().await?.as_deref() == Some("at noon"),
        "released away"
    );
    // One that knows nothing of the note leads in between, and ends by SIGKILL.
    let flags: Vec<_> = TIMES
        .iter()
        .copied()
        .chain(["--controllers=foo", "--install-crds"])
        .collect();
    let killed = Daemon::start(&stage.plane, "killed", &flags).await?;
    killed.wait_for_line(&["standing by"]).await?;
    second.daemon.stop().await?;
    killed.wait_for_line(&["acquired the lease"]).await?;
    stage.renewals(2).await?;
    let third = stage.replica("survives-3").await?;
    killed.process.signal(Signal::KILL)?;
    ensure!(third.began_with().await?.as_deref() == Some("at noon"), "killed away");
    stage.renewals(1).await?;
    ensure!(stage.annotated().await?.as_deref() == Some("at noon"));
    third.daemon.stop().await
}

#[tokio::test]
async fn what_a_person_removes_is_heard_at_once_by_who_leads_and_who_stands_by() -> Result<()> {
    let stage = Stage::new().await?;
    let leader = stage.leader("removed-1").await?;
    let standby = stage.replica("removed-2").await?;
    leader.lease_annotations.write(NOTE, "at noon").await?;
    for replica in [&leader, &standby] {
        replica.wait_for_note(Some("at noon")).await?;
        timeout(LIMIT, replica.lease_annotations.changed()).await?;
        tokio::select! {
            () = replica.lease_annotations.changed() => anyhow::bail!("{} is told of renewals", replica.name),
            renewed = stage.renewals(2) => renewed?,
        }
    }
    let before = stage.lease().await?.uid();
    for replica in [&leader, &standby] {
        let target = replica.lease_annotations.target().context("no target")?;
        ensure!(target.key.to_string() == "kube-system/portreeve" && Some(&*target.uid) == before.as_deref());
    }
    for (value, note) in [(json!("again"), Some("again")), (Value::Null, None)] {
        stage.annotate(value).await?;
        for replica in [&leader, &standby] {
            let heard = async {
                timeout(LIMIT, replica.lease_annotations.changed()).await?;
                anyhow::Ok(replica.note())
            };
            let heard = in_time(&format!("{} hears of {note:?}", replica.name), heard).await?;
            ensure!(heard.as_deref() == note, "{heard:?}");
        }
    }
    standby.daemon.stop().await?;
    leader.daemon.stop().await
}

#[tokio::test]
async fn a_replica_that_does_not_lead_notes_nothing() -> Result<()> {
    let stage = Stage::new().await?;
    let leader = stage.leader("fenced-1").await?;
    let standby = stage.replica("fenced-2").await?;
    leader.lease_annotations.write(NOTE, "at noon").await?;
    let error = standby
        .lease_annotations
        .write(NOTE, "by a standby")
        .await
        .err()
        .context("it wrote")?;
    let expected = "failed to annotate Lease kube-system/portreeve: ";
    ensure!(
        error.to_string().starts_with(expected) && error.to_string().contains("does not lead"),
        "{error}"
    );
    stage.patch(json!({"spec": {"holderIdentity": "a-thief"}})).await?;
    eventually(LIMIT, "who led to be fenced", || async {
        leader.lease_annotations.write(NOTE, "before it knew").await.err()
    })
    .await?;
    let before = stage.annotated().await?;
    let error = leader
        .lease_annotations
        .write(NOTE, "too late")
        .await
        .err()
        .context("it wrote")?;
    ensure!(error.to_string().contains("does not lead"), "{error}");
    ensure!(stage.annotated().await? == before);
    // The precondition of every write: another Lease of the same name is left alone.
    let stranger = json!({"metadata": {"uid": "another", "annotations": {NOTE: "on another"}}});
    let refused = stage.patch(stranger).await.err().context("it was written")?;
    ensure!(stage.annotated().await? == before, "{refused}");
    Ok(())
}

#[tokio::test]
async fn annotations_do_not_keep_a_renewal_waiting() -> Result<()> {
    let stage = Stage::new().await?;
    let leader = stage.leader("renews").await?;
    let version = stage.lease().await?.resource_version().context("no version")?;
    let parameters = WatchParams::default().fields(&format!("metadata.name={LEASE}"));
    let mut events = pin!(stage.leases.watch(&parameters, &version).await?);
    let (mut ticks, until) = (
        interval(Duration::from_millis(250)),
        Instant::now() + Duration::from_secs(6),
    );
    let (mut writes, mut seen) = (0_usize, Vec::new());
    while Instant::now() < until {
        tokio::select! {
            event = events.try_next() => match event?.context("the watch ended")? {
                WatchEvent::Modified(lease) => seen.push(lease),
                other => anyhow::bail!("{other:?}"),
            },
            _ = ticks.tick() => {
                writes += 1;
                let value = writes.to_string();
                if writes.is_multiple_of(2) {
                    leader.lease_annotations.write(NOTE, &value).await?;
                } else {
                    stage.annotate(json!(value)).await?;
                }
            }
        }
    }
    let mut times: Vec<_> = seen.iter().filter_map(renewed).collect();
    times.dedup();
    let gaps = times
        .windows(2)
        .map(|pair| pair[1].duration_since(pair[0]).unsigned_abs());
    let mut gaps: Vec<_> = gaps.collect();
    gaps.sort();
    let median = *gaps.get(gaps.len() / 2).context("it was not renewed")?;
    let slow = leader
        .daemon
        .admin
        .metrics()
        .await?
        .sum("leader_election_slowpath_total", &[]);
    println!(
        "{writes} writes, {} renewals, {slow} of them slow, {median:?} apart in the median",
        times.len()
    );
    // One that was under way at a write is made again at once. None may come so late that the Lease is lost.
    ensure!(median < RETRY_PERIOD * 2, "{gaps:?}");
    let spec = stage.lease().await?.spec.context("no spec")?;
    ensure!(spec.lease_transitions == Some(0), "{spec:?}");
    leader.daemon.stop().await
}

#[tokio::test]
async fn without_an_election_there_is_no_notebook() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let daemon = InProcess::start(plane, ANNOTATION_CONTROLLER, &["--scribe=alone"]).await?;
    let is_none = all_built().get("alone").map(|built| built.lease_annotations.is_none());
    ensure!(is_none == Some(true));
    daemon.stop().await
}
