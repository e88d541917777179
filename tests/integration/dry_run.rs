//! `--dry-run`: the daemon logs its plans and writes nothing.

use anyhow::{Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, CustomResourceExt, api::PostParams};
use portreeve_foo::api::Foo;
use portreeve_testing::{ControlPlane, eventually};
use serde_json::json;

use crate::{
    audit::policy,
    fixtures::{LIMIT, daemon::Daemon, namespace::NamespaceFixture},
    requests::daemon_requests,
};

/// The apiserver's audit log shows whether the daemon wrote anything.
#[tokio::test]
async fn a_dry_run_logs_its_plans_and_writes_nothing() -> Result<()> {
    let plane = ControlPlane::builder().audit_policy(policy::REQUESTS).pooled().await?;
    let fixture = NamespaceFixture::new(&plane, "dry").await?;
    let daemon = Daemon::start(&plane, "dry-daemon", &["--dry-run", "--install-crds"]).await?;
    daemon
        .wait_for_line(&["apply CustomResourceDefinition foos.samplecontroller.k8s.io"])
        .await?;
    let crds: Api<CustomResourceDefinition> = Api::all(plane.client()?);
    ensure!(crds.get_opt("foos.samplecontroller.k8s.io").await?.is_none());

    crds.create(&PostParams::default(), &Foo::crd()).await?;
    let foo = eventually(LIMIT, "Foos to be served", || fixture.create_foo("web", "web", 1)).await?;
    let create = format!("create Deployment {}/web", fixture.name());
    daemon.wait_for_line(&["dry run: would do", &create]).await?;
    // A Deployment that the Foo does not control is a conflict: the plan is a status patch and an
    // event.
    let theirs = fixture.create_foreign("web").await?;
    let report = format!("patch status of Foo {}/web, event ErrResourceExists", fixture.name());
    daemon.wait_for_line(&["dry run: would do", &report]).await?;
    // The Deployment now belongs to the Foo but has different fields: the plan is an apply.
    let owner = json!([{"apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "name": "web",
        "uid": foo.metadata.uid, "controller": true, "blockOwnerDeletion": true}]);
    let adopted = fixture
        .merge_deployment("web", json!({"metadata": {"ownerReferences": owner}}))
        .await?;
    let apply = format!("apply Deployment {}/web", fixture.name());
    daemon.wait_for_line(&["dry run: would do", &apply]).await?;

    ensure!(json!(fixture.foos().get("web").await?) == json!(foo));
    let now = fixture.deployments().get("web").await?;
    ensure!(
        now.metadata.resource_version == adopted.metadata.resource_version,
        "{now:#?}"
    );
    ensure!(now.metadata.uid == theirs.metadata.uid);
    ensure!(fixture.events_on("web").await?.is_empty());
    let requests = daemon_requests(&plane)?;
    ensure!(
        requests.iter().any(|request| request.verb == "watch"),
        "the audit log contains no watch of the daemon: {requests:?}"
    );
    let reads = ["get", "list", "watch"];
    let written: Vec<_> = requests
        .iter()
        .filter(|request| !reads.contains(&&*request.verb))
        .collect();
    ensure!(written.is_empty(), "{written:#?}");
    Ok(())
}
