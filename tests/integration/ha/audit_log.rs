//! Verifies on a real apiserver what the audit checker assumes about its audit log.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    apps::v1::Deployment,
    coordination::v1::Lease,
    core::v1::{ConfigMap, Pod},
    rbac::v1::PolicyRule,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use portreeve_testing::{ControlPlane, Namespace, PooledPlane};
use serde_json::json;

use crate::{
    audit::{
        AuditChecker, AuditLog, GuardedLease, policy,
        report::{Report, WriteCounts},
    },
    fixtures::namespace::unrelated_deployment,
};

/// A control plane with two accounts, a Lease, and an audit log.
struct AuditLogFixture {
    plane: PooledPlane,
    namespace: Namespace,
    audit_checker: AuditChecker,
}

impl AuditLogFixture {
    async fn new() -> Result<Self> {
        let plane = ControlPlane::builder()
            .audit_policy(policy::WRITES_WITH_RESPONSES)
            .pooled()
            .await?;
        let namespace = plane.namespace("facts").await?;
        let name = namespace.name().to_owned();
        let replicas = ["a", "b"].map(|pod| (format!("system:serviceaccount:{name}:{pod}"), pod.to_owned()));
        let audit_checker = AuditChecker {
            replicas: replicas.to_vec(),
            leases: vec![GuardedLease {
                namespace: name,
                name: "lock".to_owned(),
                components: Vec::new(),
            }],
        };
        Ok(Self {
            plane,
            namespace,
            audit_checker,
        })
    }

    async fn client(&self, pod: &str) -> Result<Client> {
        let all = || Some(vec!["*".to_owned()]);
        let rule = PolicyRule {
            api_groups: all(),
            resources: all(),
            verbs: vec!["*".to_owned()],
            ..PolicyRule::default()
        };
        self.plane
            .service_account_client(self.namespace.name(), pod, vec![rule])
            .await
    }

    /// Makes a pod the holder of the Lease, as the administrator.
    async fn set_holder(&self, pod: &str) -> Result<()> {
        let leases: Api<Lease> = self.namespace.api();
        let lease = json!({"metadata": {"name": "lock"}, "spec": {"holderIdentity": format!("{pod}_1")}});
        if leases.get_opt("lock").await?.is_none() {
            leases
                .create(&PostParams::default(), &serde_json::from_value(lease)?)
                .await?;
        } else {
            leases
                .patch("lock", &PatchParams::default(), &Patch::Merge(lease))
                .await?;
        }
        Ok(())
    }

    fn check(&self) -> Result<Report> {
        self.audit_checker.check(&AuditLog::of(&self.plane)?.lines_since(0)?)
    }

    fn maps(&self, client: Client) -> Api<ConfigMap> {
        Api::namespaced(client, self.namespace.name())
    }
}

fn map(name: &str, data: &[(&str, &str)]) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.to_owned());
    let data: BTreeMap<_, _> = data
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    map.data = Some(data);
    map
}

/// Sends every kind of write as one replica, and returns how many writes succeed.
async fn write_in_every_way(namespace: &str, client: Client) -> Result<usize> {
    let (create, delete, patch) = (PostParams::default(), DeleteParams::default(), PatchParams::default());
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let created = maps.create(&create, &map("web", &[])).await?;
    maps.patch("web", &patch, &Patch::Merge(json!({"data": {"a": "b"}})))
        .await?;
    maps.patch(
        "web",
        &PatchParams::apply("facts").force(),
        &Patch::Apply(map_to_apply()),
    )
    .await?;
    let present = maps.get("web").await?;
    let mut updated = map("web", &[("a", "d")]);
    updated.metadata.resource_version = present.metadata.resource_version;
    maps.replace("web", &create, &updated).await?;
    maps.delete("web", &delete).await?;
    ensure!(created.metadata.uid.is_some());

    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let wanted: Deployment = serde_json::from_value(unrelated_deployment("web"))?;
    deployments.create(&create, &wanted).await?;
    // The foreground deletion marks the object; removing the last finalizer removes it.
    deployments.delete("web", &DeleteParams::foreground()).await?;
    let finalizers = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    deployments.patch("web", &patch, &finalizers).await?;
    ensure!(deployments.get_opt("web").await?.is_none());
    deployments.create(&create, &wanted).await?;
    deployments
        .patch_status("web", &patch, &Patch::Merge(json!({"status": {"replicas": 1}})))
        .await?;
    deployments.delete_collection(&delete, &ListParams::default()).await?;

    // The response is the removed object.
    let pods: Api<Pod> = Api::namespaced(client, namespace);
    let pod = json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "web", "image": "web"}]}});
    pods.create(&create, &serde_json::from_value(pod)?).await?;
    pods.delete("web", &delete.grace_period(0)).await?;
    Ok(13)
}

fn map_to_apply() -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web"}, "data": {"a": "c"}})
}

#[tokio::test]
async fn the_checker_decides_on_every_kind_of_write() -> Result<()> {
    let fixture = AuditLogFixture::new().await?;
    let (a, b) = (fixture.client("a").await?, fixture.client("b").await?);
    let namespace = fixture.namespace.name();
    fixture.set_holder("a").await?;
    let legal = write_in_every_way(namespace, a).await?;
    let illegal = write_in_every_way(namespace, b).await?;
    fixture.set_holder("b").await?;
    let report = fixture.check()?;
    ensure!(
        report.replicas["a"].written == legal && report.terms[0].writes.count == legal,
        "{report}"
    );
    ensure!(report.violations.len() == illegal, "{report}");
    ensure!(
        report.violations.iter().all(|violation| violation.write.pod == "b"),
        "{report}"
    );
    ensure!(report.undecided.is_empty() && report.rejected.is_empty(), "{report}");
    Ok(())
}

#[tokio::test]
async fn the_checker_counts_requests_that_change_nothing_separately() -> Result<()> {
    let fixture = AuditLogFixture::new().await?;
    let maps = fixture.maps(fixture.client("b").await?);
    fixture.set_holder("a").await?;
    let by_admin: Api<ConfigMap> = fixture.namespace.api();
    by_admin
        .create(&PostParams::default(), &map("web", &[("a", "b")]))
        .await?;
    let same = Patch::Merge(json!({"data": {"a": "b"}}));
    maps.patch("web", &PatchParams::default(), &same).await?;
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    maps.patch("web", &dry_run, &Patch::Merge(json!({"data": {"a": "c"}})))
        .await?;
    let rejected = maps.create(&PostParams::default(), &map("web", &[])).await;
    ensure!(rejected.is_err_and(|error| error.to_string().contains("AlreadyExists")));
    let stale = Patch::Merge(json!({"metadata": {"resourceVersion": "1"}, "data": {"a": "d"}}));
    ensure!(maps.patch("web", &PatchParams::default(), &stale).await.is_err());
    let report = fixture.check()?;
    let expected = WriteCounts {
        unchanged: 1,
        rejected: 2,
        dry_runs: 1,
        ..WriteCounts::default()
    };
    ensure!(report.replicas["b"] == expected, "{report}");
    let codes: Vec<_> = report.rejected.iter().map(|rejected| rejected.code).collect();
    ensure!(codes == [409, 409] && report.is_clean(), "{report}");
    Ok(())
}

#[tokio::test]
async fn responses_carry_revisions_that_order_them_with_the_lease() -> Result<()> {
    let fixture = AuditLogFixture::new().await?;
    let clients = [("a", fixture.client("a").await?), ("b", fixture.client("b").await?)];
    for round in 0..20 {
        for (pod, client) in &clients {
            fixture.set_holder(pod).await?;
            let maps = fixture.maps(client.clone());
            let name = format!("{pod}-{round}");
            maps.create(&PostParams::default(), &map(&name, &[])).await?;
            maps.delete(&name, &DeleteParams::default()).await?;
        }
    }
    let report = fixture.check()?;
    ensure!(report.is_clean() && report.terms.len() == 40, "{report}");
    let counts = report.terms.iter().map(|term| term.writes.count);
    ensure!(counts.clone().all(|count| count == 2), "{report}");
    // With the users swapped, the checker reports every write.
    let mut swapped = fixture.audit_checker.clone();
    let (first, second) = swapped.replicas.split_at_mut(1);
    std::mem::swap(
        &mut first.first_mut().context("there are fewer than two replicas")?.1,
        &mut second.first_mut().context("there are fewer than two replicas")?.1,
    );
    let report = swapped.check(&AuditLog::of(&fixture.plane)?.lines_since(0)?)?;
    ensure!(report.violations.len() == 80, "{report}");
    Ok(())
}
