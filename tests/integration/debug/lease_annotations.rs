//! The garbage collector's annotations of its group's Lease: only the leader writes them. The
//! guard's tests in `pkg/leader` and `garbage::breaker` show that they outlive the writer.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use portreeve_garbagecollector::{AnnotateError, LeaseAnnotations};
use portreeve_reconcile::{Descriptor, Registrations};
use portreeve_testing::{ControlPlane, eventually};
use serde_json::json;

use super::Idle;
use crate::{
    controllers::descriptor,
    fixtures::{LIMIT, daemon::EXPIRING_LEASE, in_process::InProcess},
};

const NOTE: &str = "a-test.example.com/note";
const LEASE: &str = "portreeve";

/// A controller that gives its Lease annotations to the test, under the replica name in its flag.
const ANNOTATION_CONTROLLER: &[Descriptor] = &[descriptor(
    "scribe-controller",
    || vec![clap::Arg::new("scribe").long("scribe").required(true)],
    |ctx| {
        let lease = ctx.lease.clone();
        let lease_annotations = lease.map(|lease| LeaseAnnotations::new(ctx.client.clone(), lease));
        built_controllers().insert(ctx.flag("scribe")?, lease_annotations);
        Ok(Registrations::new(Idle))
    },
)];

/// Returns the Lease annotations of the controllers that were built, by replica name.
fn built_controllers() -> MutexGuard<'static, BTreeMap<String, Option<LeaseAnnotations>>> {
    static BUILT: Mutex<BTreeMap<String, Option<LeaseAnnotations>>> = Mutex::new(BTreeMap::new());
    BUILT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a daemon that leads or stands by, and returns it with its Lease annotations.
async fn start_replica(plane: &ControlPlane, name: &str) -> Result<(InProcess, LeaseAnnotations)> {
    let scribe = format!("--scribe={name}");
    let flags = [&EXPIRING_LEASE[..], &[&*scribe]].concat();
    let daemon = InProcess::start(plane, ANNOTATION_CONTROLLER, &flags).await?;
    let lease_annotations = built_controllers().remove(name).flatten();
    Ok((
        daemon,
        lease_annotations.context("the controller has no Lease annotations")?,
    ))
}

/// Ensures that a write was rejected because the replica does not lead.
fn ensure_fenced(written: Result<(), AnnotateError>) -> Result<()> {
    let error = written.err().context("the replica wrote the annotation")?.to_string();
    let expected = "failed to annotate Lease kube-system/portreeve: ";
    ensure!(
        error.starts_with(expected) && error.contains("does not lead"),
        "{error}"
    );
    Ok(())
}

#[tokio::test]
async fn a_replica_that_does_not_lead_writes_no_annotation() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let leases: Api<Lease> = Api::namespaced(plane.client()?, "kube-system");
    let annotation = || async { anyhow::Ok(leases.get(LEASE).await?.annotations().get(NOTE).cloned()) };
    let (_leader, of_leader) = start_replica(&plane, "fenced-1").await?;
    eventually(LIMIT, "the first replica to lead", || {
        of_leader.write(NOTE, Some("at noon"))
    })
    .await?;
    let (_standby, of_standby) = start_replica(&plane, "fenced-2").await?;
    ensure_fenced(of_standby.write(NOTE, Some("by a standby")).await)?;
    ensure!(annotation().await?.as_deref() == Some("at noon"));

    let taken = Patch::Merge(json!({"spec": {"holderIdentity": "a-thief"}}));
    leases.patch(LEASE, &PatchParams::default(), &taken).await?;
    eventually(LIMIT, "writes of the former leader to be fenced", || async {
        of_leader.write(NOTE, Some("before it knew")).await.err()
    })
    .await?;
    let before = annotation().await?;
    ensure_fenced(of_leader.write(NOTE, Some("too late")).await)?;
    ensure!(annotation().await? == before);
    Ok(())
}
