//! CRDs that `--install-crds` must not or cannot install.

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use k8s_openapi::{
    api::{core::v1::ConfigMap, events::v1::Event},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, CustomResourceExt, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::ApiResource,
};
use portreeve_crontab::api::CronTab;
use portreeve_foo::api::Foo;
use portreeve_testing::{ControlPlane, PooledPlane, eventually};
use serde_json::{Value, json};

use crate::fixtures::{LIMIT, daemon::Daemon, namespace::NamespaceFixture};

const FOOS: &str = "foos.samplecontroller.k8s.io";
const CRONTABS: &str = "crontabs.stable.example.com";
const METRIC: &str = "portreeve_crd_install_blocked";

/// The CronTab of Kubernetes' documentation: our group, kind and plural, and other fields.
fn documented_crontabs() -> Value {
    let properties = json!({"spec": {"type": "object", "properties": {
        "cronSpec": {"type": "string"},
        "image": {"type": "string"},
        "replicas": {"type": "integer"},
    }}});
    json!({
        "metadata": {"name": CRONTABS},
        "spec": {
            "group": "stable.example.com",
            "scope": "Namespaced",
            "names": {"plural": "crontabs", "singular": "crontab", "kind": "CronTab", "shortNames": ["ct"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
            }],
        },
    })
}

struct Cluster {
    plane: PooledPlane,
    client: Client,
    crds: Api<CustomResourceDefinition>,
}

impl Cluster {
    async fn start() -> Result<Self> {
        let plane = ControlPlane::pooled().await?;
        let client = plane.client()?;
        let crds = Api::all(client.clone());
        Ok(Self { plane, client, crds })
    }

    async fn create(&self, crd: Value) -> Result<()> {
        let crd = serde_json::from_value(crd)?;
        self.crds.create(&PostParams::default(), &crd).await?;
        Ok(())
    }

    async fn patch(&self, name: &str, metadata: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        self.crds.patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    fn crontabs(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &ApiResource::erase::<CronTab>(&()))
    }

    /// Waits until the daemon has reported an obstacle in all ways, while it is ready.
    async fn wait_until_reported(&self, daemon: &Daemon, crd: &str, reason: &str, words: &[&str]) -> Result<()> {
        let start = format!("[+]definition/{crd} ok: ");
        let noted = |status, text: &str| {
            let note = text.lines().find(|line| line.starts_with(&start));
            status == StatusCode::OK && note.is_some_and(|note| words.iter().all(|word| note.contains(word)))
        };
        daemon
            .admin
            .wait_until_readyz("a note on the definition", noted)
            .await?;
        let words: Vec<_> = ["delaying the start of the controller", crd]
            .iter()
            .chain(words)
            .copied()
            .collect();
        daemon.wait_for_line(&words).await?;
        let labels = [&*format!("definition=\"{crd}\""), &*format!("reason=\"{reason}\"")];
        let blocked = daemon.admin.metrics().await?.sum(METRIC, &labels);
        ensure!((blocked - 1.0).abs() < f64::EPSILON, "{METRIC} is {blocked}");
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        eventually(LIMIT, "an event on the definition", || async {
            let all = events.list(&ListParams::default()).await?.items;
            let is_it = |event: &&Event| {
                let regarding = event.regarding.as_ref().and_then(|regarding| regarding.name.as_deref());
                regarding == Some(crd) && event.reason.as_deref() == Some("CustomResourceDefinitionNotInstalled")
            };
            all.iter().find(is_it).map(|_| ()).context("there is none")
        })
        .await
    }
}

/// Only the collector can end the foreground deletion of the Foo that delays the end of the CRD.
#[tokio::test]
async fn a_terminating_crd_delays_only_its_controller_and_is_installed_once_it_is_gone() -> Result<()> {
    let cluster = Cluster::start().await?;
    let fixture = NamespaceFixture::new(&cluster.plane, "terminating").await?;
    cluster.create(json!(Foo::crd())).await?;
    let foo = eventually(LIMIT, "Foos to be served", || fixture.create_foo("web", "web", 1)).await?;
    let maps: Api<ConfigMap> = fixture.namespace.api();
    let owner = json!({
        "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "name": "web",
        "uid": foo.uid(), "blockOwnerDeletion": true,
    });
    let map = serde_json::from_value(json!({"metadata": {"name": "map", "ownerReferences": [owner]}}))?;
    maps.create(&PostParams::default(), &map).await?;
    // The apiserver may still register the group.
    let foreground = DeleteParams::foreground();
    let foos = fixture.foos();
    eventually(LIMIT, "the Foo to be deleted", || foos.delete("web", &foreground)).await?;
    cluster.patch(FOOS, json!({"finalizers": ["example.com/hold"]})).await?;
    cluster.crds.delete(FOOS, &DeleteParams::default()).await?;

    let flags = ["--install-crds", "--controllers=foo,garbagecollector"];
    let daemon = Daemon::start(&cluster.plane, "terminating", &flags).await?;
    let words = ["is being deleted", "foo-controller"];
    cluster
        .wait_until_reported(&daemon, FOOS, "terminating", &words)
        .await?;
    eventually(LIMIT, "the dependent to be gone", || async {
        ensure!(maps.get_opt("map").await?.is_none(), "it still exists");
        anyhow::Ok(())
    })
    .await?;
    let (status, text) = daemon.admin.get("/livez").await?;
    ensure!(status == StatusCode::OK, "{text}");

    eventually(LIMIT, "the Foo to be gone", || async {
        let left = cluster.crds.get(FOOS).await?.finalizers().to_vec();
        ensure!(left == ["example.com/hold"], "{left:?}");
        anyhow::Ok(())
    })
    .await?;
    cluster.patch(FOOS, json!({"finalizers": null})).await?;
    eventually(LIMIT, "new Foos to be served", || fixture.create_foo("new", "new", 1)).await?;
    let ready = portreeve_api::conditions::ConditionStatus::True;
    fixture.wait_for_condition("new", "Ready", ready).await?;
    let is_gone = |status, text: &str| status == StatusCode::OK && !text.contains("definition/");
    daemon.admin.wait_until_readyz("the note to be gone", is_gone).await?;
    let blocked = daemon.admin.metrics().await?.sum(METRIC, &[]);
    ensure!(blocked == 0.0, "{METRIC} is {blocked}");
    Ok(())
}

#[tokio::test]
async fn a_crd_of_another_program_is_left_alone_until_it_has_our_label() -> Result<()> {
    let cluster = Cluster::start().await?;
    let fixture = NamespaceFixture::new(&cluster.plane, "foreign").await?;
    cluster.create(documented_crontabs()).await?;
    let crontabs = cluster.crontabs(fixture.name());
    let resource = ApiResource::erase::<CronTab>(&());
    let spec = json!({"spec": {"cronSpec": "* * * * */5", "image": "my-awesome-cron-image"}});
    let theirs = DynamicObject::new("my-new-cron-object", &resource).data(spec);
    let parameters = PostParams::default();
    let theirs = eventually(LIMIT, "CronTabs to be served", || crontabs.create(&parameters, &theirs)).await?;
    let before = cluster.crds.get(CRONTABS).await?;

    let flags = ["--install-crds", "--controllers=foo,crontab"];
    let daemon = Daemon::start(&cluster.plane, "foreign", &flags).await?;
    let label = format!("kubectl label crd {CRONTABS} app.kubernetes.io/part-of=portreeve");
    let words = ["another program", &*label, "crontab-controller"];
    cluster
        .wait_until_reported(&daemon, CRONTABS, "not_ours", &words)
        .await?;
    fixture.ready_foo("web", 1).await?;
    let object = format!("{}/my-new-cron-object: spec: missing field `schedule`", fixture.name());
    daemon
        .admin
        .wait_until_readyz("the field of an object that cannot be decoded", |_, text| {
            text.contains(&object)
        })
        .await?;
    let after = cluster.crds.get(CRONTABS).await?;
    ensure!(after.resource_version() == before.resource_version(), "{after:#?}");
    let kept = crontabs.get(&theirs.name_any()).await?;
    ensure!(kept.resource_version() == theirs.resource_version(), "{kept:#?}");

    cluster
        .patch(CRONTABS, json!({"labels": {"app.kubernetes.io/part-of": "portreeve"}}))
        .await?;
    daemon
        .wait_for_line(&["starting controller", "crontab-controller"])
        .await?;
    let updated = cluster.crds.get(CRONTABS).await?;
    let schema = |crd: &CustomResourceDefinition| json!(crd.spec.versions[0].schema);
    ensure!(schema(&updated) == schema(&CronTab::crd()), "{updated:#?}");
    ensure!(updated.uid() == before.uid());
    Ok(())
}
