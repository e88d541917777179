//! CRDs that are created, deleted and installed while the daemon runs.

mod obstacles;

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, CustomResourceExt, ResourceExt,
    api::{DeleteParams, PostParams},
};
use portreeve_foo::api::Foo;
use portreeve_testing::{ControlPlane, eventually};
use serde_json::{Value, json};

use crate::fixtures::{LIMIT, daemon::Daemon, definitions::plane_with_definitions, namespace::NamespaceFixture};

const NAME: &str = "foos.samplecontroller.k8s.io";
const INFORMER: &str = "informer/foos.v1alpha1.samplecontroller.k8s.io";

fn crds(plane: &ControlPlane) -> Result<Api<CustomResourceDefinition>> {
    Ok(Api::all(plane.client()?))
}

/// Creates a Foo as soon as the apiserver serves Foos, and waits until the Foo is ready.
async fn settle_as_soon_as_served(fixture: &NamespaceFixture, name: &str) -> Result<()> {
    eventually(LIMIT, "Foos to be served", || fixture.create_foo(name, name, 1)).await?;
    fixture
        .wait_for_condition(name, "Ready", portreeve_api::conditions::ConditionStatus::True)
        .await?;
    Ok(())
}

async fn wait_until_not_served(daemon: &Daemon) -> Result<()> {
    let what = "a note that Foos are not served";
    let note = format!("[+]{INFORMER} ok: the resource is not served");
    // The other informers may still be syncing, so the text may contain other lines.
    let noted = |status, text: &str| status == StatusCode::OK && text.contains(&note);
    daemon.admin.wait_until_readyz(what, noted).await?;
    Ok(())
}

#[tokio::test]
async fn a_crd_can_be_created_late_deleted_and_recreated() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let fixture = NamespaceFixture::new(&plane, "late").await?;
    let daemon = Daemon::start(&plane, "early-daemon", &["-v=4"]).await?;
    wait_until_not_served(&daemon).await?;
    let crds = crds(&plane)?;
    crds.create(&PostParams::default(), &Foo::crd()).await?;
    settle_as_soon_as_served(&fixture, "first").await?;
    daemon
        .admin
        .wait_until_readyz("Foos to be watched", |_, text| {
            text.contains(&format!("[+]{INFORMER} ok\n"))
        })
        .await?;

    crds.delete(NAME, &DeleteParams::default()).await?;
    eventually(LIMIT, "the definition to be gone", || async {
        ensure!(crds.get_opt(NAME).await?.is_none(), "the definition still exists");
        anyhow::Ok(())
    })
    .await?;
    wait_until_not_served(&daemon).await?;
    ensure!(
        fixture.deployments().get_opt("first").await?.is_some(),
        "the daemon deleted a Deployment whose Foo is no longer served"
    );

    crds.create(&PostParams::default(), &Foo::crd()).await?;
    settle_as_soon_as_served(&fixture, "second").await?;
    let (status, _) = daemon.admin.get("/livez").await?;
    ensure!(status == StatusCode::OK);
    Ok(())
}

/// `kubectl apply` has installed them, and a new leader finds what its predecessor wrote.
#[tokio::test]
async fn install_crds_writes_no_crd_that_is_as_wanted() -> Result<()> {
    let plane = plane_with_definitions().await?;
    let daemon = Daemon::start(&plane, "satisfied-daemon", &["--install-crds", "-v=4"]).await?;
    daemon.admin.wait_until_ready().await?;
    let log = daemon.log()?;
    ensure!(!log.contains("installing CustomResourceDefinition"), "{log}");
    Ok(())
}

/// Checks the three rules of `--install-crds` with successive daemons on one control plane.
#[tokio::test]
async fn install_crds_installs_and_upgrades_but_keeps_crds_with_other_versions() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let crds = crds(&plane)?;
    let daemon = Daemon::start(&plane, "installing-daemon", &["--install-crds"]).await?;
    daemon.admin.wait_until_ready().await?;
    let fresh = crds.get(NAME).await?;
    let established = |crd: &CustomResourceDefinition| {
        let conditions = crd.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|it| it.type_ == "Established" && it.status == "True"))
    };
    ensure!(established(&fresh), "{fresh:?}");
    NamespaceFixture::new(&plane, "installed")
        .await?
        .ready_foo("web", 1)
        .await?;
    drop(daemon);

    let mut older = json!(Foo::crd());
    *field(&mut older, "/spec/versions/0/additionalPrinterColumns")? = json!([]);
    *field(
        &mut older,
        "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/replicas/maximum",
    )? = 5.into();
    replace(&crds, older).await?;
    let daemon = Daemon::start(&plane, "upgrading-daemon", &["--install-crds"]).await?;
    daemon.admin.wait_until_ready().await?;
    let upgraded = crds.get(NAME).await?;
    ensure!(
        json!(upgraded.spec.versions) == json!(fresh.spec.versions),
        "{upgraded:#?}"
    );
    drop(daemon);

    let mut newer = json!(Foo::crd());
    let mut version = field(&mut newer, "/spec/versions/0")?.take();
    version["storage"] = false.into();
    let mut next = version.clone();
    next["name"] = "v1".into();
    next["storage"] = true.into();
    newer["spec"]["versions"] = json!([version, next]);
    replace(&crds, newer).await?;
    let before = crds.get(NAME).await?;
    let daemon = Daemon::start(&plane, "respectful-daemon", &["--install-crds"]).await?;
    daemon
        .wait_for_line(&["ERROR", "skipping CustomResourceDefinition", NAME, "v1"])
        .await?;
    daemon.admin.wait_until_ready().await?;
    let after = crds.get(NAME).await?;
    ensure!(after.metadata.generation == before.metadata.generation, "{after:#?}");
    ensure!(json!(after.spec) == json!(before.spec), "{after:#?}");
    NamespaceFixture::new(&plane, "respected")
        .await?
        .ready_foo("web", 1)
        .await?;
    Ok(())
}

fn field<'a>(value: &'a mut Value, pointer: &str) -> Result<&'a mut Value> {
    value
        .pointer_mut(pointer)
        .with_context(|| format!("the definition has no field {pointer}"))
}

/// Replaces the CRD, as `kubectl replace` does.
async fn replace(crds: &Api<CustomResourceDefinition>, crd: Value) -> Result<()> {
    let mut crd: CustomResourceDefinition = serde_json::from_value(crd)?;
    crd.metadata.resource_version = crds.get(NAME).await?.resource_version();
    crds.replace(NAME, &PostParams::default(), &crd).await?;
    Ok(())
}
