//! The garbage collector's annotations of its group's Lease: one replica writes them, and other
//! replicas read them, even after the writer has ended.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context, Result, ensure};
use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use portreeve_garbagecollector::LeaseAnnotations;
use portreeve_reconcile::{Controller, ControllerFailure, Descriptor, Registrations, Shutdown, SystemClock};
use portreeve_testing::{ControlPlane, PooledPlane, Signal, eventually};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::fixtures::{
    LIMIT,
    daemon::{Daemon, EXPIRING_LEASE},
    in_process::InProcess,
};

const NOTE: &str = "a-test.example.com/note";
const LEASE: &str = "portreeve";

/// A controller that gives its Lease annotations to the test, under the replica name in its flag.
const ANNOTATION_CONTROLLER: &[Descriptor] = &[Descriptor {
    name: "scribe-controller",
    log_target: module_path!(),
    aliases: &[],
    on_by_default: true,
    in_testenv: false,
    crds: &[],
    policies: &[],
    rules: &[],
    webhooks: Vec::new,
    flags: || vec![clap::Arg::new("scribe").long("scribe").required(true)],
    build: |ctx| {
        let name: String = ctx.flag("scribe")?;
        let built = BuiltController {
            lease_annotations: ctx
                .lease
                .clone()
                .map(|lease| LeaseAnnotations::new(ctx.client.clone(), lease)),
            initial_note: None,
        };
        built_controllers().insert(name.clone(), built);
        Ok(Registrations::new(AnnotationController(name)))
    },
}];

/// Returns the controllers that were built, by replica name.
fn built_controllers() -> MutexGuard<'static, BTreeMap<String, BuiltController>> {
    static BUILT: Mutex<BTreeMap<String, BuiltController>> = Mutex::new(BTreeMap::new());
    BUILT.lock().unwrap_or_else(PoisonError::into_inner)
}

struct BuiltController {
    lease_annotations: Option<LeaseAnnotations>,
    initial_note: Option<InitialNote>,
}

/// The value of the annotation when the controller started.
#[derive(Clone)]
struct InitialNote(Option<String>);

struct AnnotationController(String);

impl Controller for AnnotationController {
    fn run(self: Box<Self>, stop: Shutdown) -> BoxFuture<'static, Result<(), ControllerFailure>> {
        if let Some(built) = built_controllers().get_mut(&self.0) {
            let note = built
                .lease_annotations
                .as_ref()
                .and_then(|lease_annotations| lease_annotations.read(NOTE));
            built.initial_note = Some(InitialNote(note));
        }
        Box::pin(async move {
            stop.requested().await;
            Ok(())
        })
    }
}

/// A control plane for one test.
struct AnnotationEnvironment {
    plane: PooledPlane,
    leases: Api<Lease>,
}

/// A daemon that leads or stands by, and its Lease annotations.
struct Replica {
    daemon: InProcess,
    name: String,
    lease_annotations: LeaseAnnotations,
}

impl Replica {
    fn note(&self) -> Option<String> {
        self.lease_annotations.read(NOTE)
    }

    /// Waits until the controller of this replica runs, and returns the annotation that it read at
    /// its start.
    async fn initial_note(&self) -> Result<Option<String>> {
        let InitialNote(note) = eventually(LIMIT, &format!("{} to lead", self.name), || async {
            built_controllers().get(&self.name)?.initial_note.clone()
        })
        .await?;
        Ok(note)
    }

    async fn wait_for_note(&self, note: Option<&str>) -> Result<()> {
        eventually(LIMIT, &format!("{} to read {note:?}", self.name), || async {
            (self.note().as_deref() == note).then_some(())
        })
        .await
    }
}

impl AnnotationEnvironment {
    async fn new() -> Result<Self> {
        let plane = ControlPlane::pooled().await?;
        let leases = Api::namespaced(plane.client()?, "kube-system");
        Ok(Self { plane, leases })
    }

    async fn replica(&self, name: &str) -> Result<Replica> {
        let scribe = format!("--scribe={name}");
        let flags: Vec<_> = EXPIRING_LEASE.iter().copied().chain([&*scribe]).collect();
        let daemon = InProcess::start_as(
            self.plane.kubeconfig(),
            Arc::new(SystemClock),
            ANNOTATION_CONTROLLER,
            &flags,
        )
        .await?;
        let lease_annotations = built_controllers()
            .get(name)
            .and_then(|built| built.lease_annotations.clone());
        Ok(Replica {
            daemon,
            name: name.to_owned(),
            lease_annotations: lease_annotations.context("the controller has no Lease annotations")?,
        })
    }

    /// Starts a replica and waits until it leads.
    async fn leader(&self, name: &str) -> Result<Replica> {
        let replica = self.replica(name).await?;
        replica.initial_note().await?;
        Ok(replica)
    }

    async fn lease(&self) -> Result<Lease> {
        Ok(self.leases.get(LEASE).await?)
    }

    async fn annotation(&self) -> Result<Option<String>> {
        Ok(self.lease().await?.annotations().get(NOTE).cloned())
    }

    /// Sets the annotation, as `kubectl annotate` does. Null removes it.
    async fn annotate(&self, value: Value) -> Result<Lease> {
        self.patch(json!({"metadata": {"annotations": {NOTE: value}}})).await
    }

    async fn patch(&self, patch: Value) -> Result<Lease> {
        let patch = Patch::Merge(patch);
        Ok(self.leases.patch(LEASE, &PatchParams::default(), &patch).await?)
    }

    /// Waits until the Lease was renewed `count` times.
    async fn wait_for_renewals(&self, count: usize) -> Result<()> {
        let mut last = renewed(&self.lease().await?);
        for _ in 0..count {
            last = eventually(LIMIT, "a renewal", || async {
                let now = renewed(&self.lease().await?);
                ensure!(now != last, "the last renewal is still of {now:?}");
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
async fn an_annotation_survives_renewals_a_release_a_takeover_and_a_kill() -> Result<()> {
    let environment = AnnotationEnvironment::new().await?;
    let first = environment.leader("survives-1").await?;
    ensure!(first.initial_note().await?.is_none() && first.note().is_none());
    let second = environment.replica("survives-2").await?;
    first.lease_annotations.write(NOTE, Some("at noon")).await?;
    ensure!(
        first.note().as_deref() == Some("at noon"),
        "the writer does not read its own annotation"
    );
    second.wait_for_note(Some("at noon")).await?;
    environment.wait_for_renewals(4).await?;
    ensure!(
        environment.annotation().await?.as_deref() == Some("at noon"),
        "a renewal removed the annotation"
    );

    first.daemon.stop().await?;
    ensure!(
        second.initial_note().await?.as_deref() == Some("at noon"),
        "the release removed the annotation"
    );
    // A daemon that does not know the annotation leads in between, and is killed.
    let flags: Vec<_> = EXPIRING_LEASE
        .iter()
        .copied()
        .chain(["--controllers=foo", "--install-crds"])
        .collect();
    let killed = Daemon::start(&environment.plane, "killed", &flags).await?;
    killed.wait_for_line(&["standing by"]).await?;
    second.daemon.stop().await?;
    killed.wait_for_line(&["acquired the lease"]).await?;
    environment.wait_for_renewals(2).await?;
    let third = environment.replica("survives-3").await?;
    killed.process.signal(Signal::KILL)?;
    ensure!(
        third.initial_note().await?.as_deref() == Some("at noon"),
        "the annotation is gone after the kill"
    );
    environment.wait_for_renewals(1).await?;
    ensure!(environment.annotation().await?.as_deref() == Some("at noon"));
    third.daemon.stop().await
}

#[tokio::test]
async fn leader_and_standby_observe_manual_changes_of_annotations_at_once() -> Result<()> {
    let environment = AnnotationEnvironment::new().await?;
    let mut leader = environment.leader("removed-1").await?;
    let mut standby = environment.replica("removed-2").await?;
    leader.lease_annotations.write(NOTE, Some("at noon")).await?;
    for replica in [&mut leader, &mut standby] {
        replica.wait_for_note(Some("at noon")).await?;
        timeout(LIMIT, replica.lease_annotations.changed()).await?;
        tokio::select! {
            () = replica.lease_annotations.changed() => anyhow::bail!("{} is notified of renewals", replica.name),
            renewed = environment.wait_for_renewals(2) => renewed?,
        }
    }
    let before = environment.lease().await?.uid();
    for replica in [&leader, &standby] {
        let target = replica
            .lease_annotations
            .target()
            .context("the replica has not seen the Lease")?;
        ensure!(target.key.to_string() == "kube-system/portreeve" && Some(&*target.uid) == before.as_deref());
    }
    for (value, note) in [(json!("again"), Some("again")), (Value::Null, None)] {
        environment.annotate(value).await?;
        for replica in [&mut leader, &mut standby] {
            let observed = async {
                timeout(LIMIT, replica.lease_annotations.changed()).await?;
                anyhow::Ok(replica.note())
            };
            let observed = observed.await?;
            ensure!(observed.as_deref() == note, "{observed:?}");
        }
    }
    standby.daemon.stop().await?;
    leader.daemon.stop().await
}

#[tokio::test]
async fn a_replica_that_does_not_lead_writes_no_annotation() -> Result<()> {
    let environment = AnnotationEnvironment::new().await?;
    let leader = environment.leader("fenced-1").await?;
    let standby = environment.replica("fenced-2").await?;
    leader.lease_annotations.write(NOTE, Some("at noon")).await?;
    let error = standby
        .lease_annotations
        .write(NOTE, Some("by a standby"))
        .await
        .err()
        .context("the standby wrote the annotation")?;
    let expected = "failed to annotate Lease kube-system/portreeve: ";
    ensure!(
        error.to_string().starts_with(expected) && error.to_string().contains("does not lead"),
        "{error}"
    );
    environment
        .patch(json!({"spec": {"holderIdentity": "a-thief"}}))
        .await?;
    eventually(LIMIT, "writes of the former leader to be fenced", || async {
        leader.lease_annotations.write(NOTE, Some("before it knew")).await.err()
    })
    .await?;
    let before = environment.annotation().await?;
    let error = leader
        .lease_annotations
        .write(NOTE, Some("too late"))
        .await
        .err()
        .context("the former leader wrote the annotation")?;
    ensure!(error.to_string().contains("does not lead"), "{error}");
    ensure!(environment.annotation().await? == before);
    // Every write carries the UID as a precondition, so a new Lease of the same name is not
    // modified.
    let stranger = json!({"metadata": {"uid": "another", "annotations": {NOTE: "on another"}}});
    let rejected = environment
        .patch(stranger)
        .await
        .err()
        .context("a patch with another UID was accepted")?;
    ensure!(environment.annotation().await? == before, "{rejected}");
    Ok(())
}

#[tokio::test]
async fn without_leader_election_there_are_no_lease_annotations() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let daemon = InProcess::start(plane, ANNOTATION_CONTROLLER, &["--scribe=alone"]).await?;
    let is_none = built_controllers()
        .get("alone")
        .map(|built| built.lease_annotations.is_none());
    ensure!(is_none == Some(true));
    daemon.stop().await
}
