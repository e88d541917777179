//! Three replicas with a serving certificate, and the accounts that scrape them.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace as NamespaceObject, ResourceQuota, ServiceAccount};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use portreeve_testing::{Authority, ControlPlane, FaultProxy, Namespace, PooledPlane, eventually, free_port};
use serde_json::{Value, json};

use super::{manifests::component, text};
use crate::{
    fixtures::{
        LIMIT,
        daemon::{ALL_CONTROLLERS, Daemon, printed},
        namespace::NamespaceFixture,
        rbac,
        tokens::{token, token_of},
    },
    release::install,
};

/// The server name that the `ServiceMonitor` and the documented scrape config verify.
pub(super) const SERVER_NAME: &str = "portreeve.portreeve-system.svc";
const REPLICAS: [&str; 3] = ["portreeve-a", "portreeve-b", "portreeve-c"];

/// The flags with which the leader issues the serving certificate.
fn certificate_flags(namespace: &str) -> [String; 3] {
    [
        format!("--tls-secret={namespace}/portreeve-serving"),
        format!("--tls-issue-names={SERVER_NAME}"),
        format!("--tls-ca-config-map={namespace}/portreeve-serving-ca"),
    ]
}

/// Returns the published CA.
async fn published_ca(system: &Namespace) -> Result<String> {
    let map = system.api::<ConfigMap>().get("portreeve-serving-ca").await?;
    let authority = map.data.and_then(|mut data| data.remove("ca.crt"));
    authority.context("no CA is published")
}

/// Three replicas, the account of Prometheus, and an account without rights.
pub(super) struct Environment {
    pub(super) plane: PooledPlane,
    proxy: FaultProxy,
    /// The namespace of the Lease.
    pub(super) system: Namespace,
    /// The kubeconfig of the replicas.
    pub(super) kubeconfig: PathBuf,
    pub(super) replicas: Vec<Daemon>,
    serving_ca: PathBuf,
    /// A token of the account of Prometheus.
    pub(super) token: String,
    /// A token of an account without rights.
    unprivileged: String,
}

impl Environment {
    /// Starts the replicas one after the other, with these additional flags. The first one leads.
    pub(super) async fn start(flags: &[&str]) -> Result<Self> {
        let plane = ControlPlane::pooled().await?;
        let system = plane.namespace("portreeve-system").await?;
        install(&system).await?;
        let lease = format!("--leader-elect-resource-namespace={}", system.name());
        let within = format!("--namespace={}", system.name());
        let certificate = certificate_flags(system.name());
        let certificate = certificate.each_ref().map(String::as_str);
        let rights = printed(&[&["rbac", &ALL_CONTROLLERS, &within, &lease], &certificate[..]].concat())?;
        rbac::apply_and_wait(system.client(), system.name(), &rights).await?;
        let kubeconfig = plane
            .service_account_kubeconfig(system.name(), rbac::ACCOUNT, Vec::new())
            .await?;
        let proxy = FaultProxy::start(&plane).await?;
        let kubeconfig = proxy.kubeconfig(&kubeconfig, "replicas")?;
        let flags = [&[&*lease, &*ALL_CONTROLLERS], &certificate[..], flags].concat();
        let mut replicas = Vec::new();
        for pod in REPLICAS {
            let webhooks = format!("--webhook-port={}", free_port()?);
            let flags = [&flags[..], &[&*webhooks]].concat();
            let replica = Daemon::start_with(&plane, &kubeconfig, pod, &flags, &[("POD_NAME", pod)]).await?;
            replica.admin.wait_until_ready().await?;
            let has_certificate = |_, text: &str| text.contains("[+]servingCertificate ok\n");
            replica
                .admin
                .wait_until_readyz("a certificate", has_certificate)
                .await?;
            if replicas.is_empty() {
                replica.wait_for_line(&["acquired the lease"]).await?;
            }
            replicas.push(replica);
        }
        plane
            .service_account_kubeconfig(system.name(), "unprivileged", Vec::new())
            .await?;
        let serving_ca = plane.folder().join("serving-ca.crt");
        fs::write(&serving_ca, published_ca(&system).await?)?;
        Ok(Self {
            token: prometheus_token(&plane).await?,
            unprivileged: token(&system, "unprivileged", None).await?,
            serving_ca,
            replicas,
            kubeconfig,
            system,
            proxy,
            plane,
        })
    }

    /// Writes a file that Prometheus reads.
    fn file(&self, name: &str, content: &str) -> Result<PathBuf> {
        let path = self.plane.folder().join(name);
        fs::write(&path, content)?;
        Ok(path)
    }

    /// Returns the documented scrape config, with static targets and the files of this test.
    pub(super) fn documented_job(&self) -> Result<Value> {
        let mut job = documented_scrape_config()?;
        let fields = job.as_object_mut().context("the job is no object")?;
        for field in ["kubernetes_sd_configs", "relabel_configs"] {
            ensure!(fields.remove(field).is_some(), "the documented job has no {field}");
        }
        let targets: Vec<_> = self
            .replicas
            .iter()
            .map(|replica| format!("127.0.0.1:{}", replica.admin.port))
            .collect();
        job["static_configs"] = json!([{"targets": targets, "labels": {"namespace": self.system.name()}}]);
        job["tls_config"]["ca_file"] = json!(self.serving_ca);
        job["authorization"]["credentials_file"] = json!(self.file("prometheus.token", &self.token)?);
        Ok(job)
    }

    /// Returns jobs whose scrapes fail, with the error of each.
    pub(super) fn failing_jobs(&self) -> Result<Vec<(Value, &'static str)>> {
        let stranger = json!(self.file("stranger-ca.crt", &Authority::new()?.pem())?);
        let unprivileged = json!({"credentials": self.unprivileged});
        let wrong = json!({"credentials": "wrong"});
        let table = [
            ("anonymous", "authorization", "", Value::Null, "403 Forbidden"),
            ("unprivileged", "authorization", "", unprivileged, "403 Forbidden"),
            ("wrong-token", "authorization", "", wrong, "401 Unauthorized"),
            (
                "wrong-ca",
                "tls_config",
                "ca_file",
                stranger,
                "signed by unknown authority",
            ),
            (
                "wrong-name",
                "tls_config",
                "server_name",
                json!("a.b.svc"),
                "certificate is valid for",
            ),
        ];
        let jobs = table.into_iter().map(|(name, field, subfield, value, error)| {
            let mut job = self.documented_job()?;
            job["job_name"] = json!(name);
            if subfield.is_empty() {
                job[field] = value;
            } else {
                job[field][subfield] = value;
            }
            Ok((job, error))
        });
        jobs.collect()
    }

    /// Gives the controllers work that succeeds and work that fails, and interrupts the watches.
    pub(super) async fn work(&self) -> Result<()> {
        let fixture = NamespaceFixture::new(&self.plane, "work").await?;
        fixture.ready_foo("web", 1).await?;
        let dependents = self.delete_owner_of(1).await?;
        eventually(LIMIT, "the dependent to be gone", || async {
            let left = dependents.list(&ListParams::default().labels("dependent")).await?;
            ensure!(left.items.is_empty(), "it still exists");
            anyhow::Ok(())
        })
        .await?;
        self.reject_deployments(1).await?;
        self.proxy.reset();
        Ok(())
    }

    /// Creates Foos whose Deployments a quota rejects.
    pub(super) async fn reject_deployments(&self, foos: usize) -> Result<()> {
        let fixture = NamespaceFixture::new(&self.plane, "refused").await?;
        let quotas: Api<ResourceQuota> = fixture.namespace.api();
        let hard = json!({"count/deployments.apps": "0"});
        let quota = json!({"metadata": {"name": "none"}, "spec": {"hard": hard}});
        let quota = serde_json::from_value(quota)?;
        quotas.create(&PostParams::default(), &quota).await?;
        // No controller of this control plane writes the status, without which the quota rejects
        // requests only after a timeout.
        let status = Patch::Merge(json!({"status": {"hard": hard, "used": hard}}));
        quotas.patch_status("none", &PatchParams::default(), &status).await?;
        for number in 0..foos {
            let name = format!("web-{number}");
            fixture.create_foo(&name, &name, 1).await?;
        }
        Ok(())
    }

    /// Deletes an owner, so that the garbage collector deletes its dependents, which have the label
    /// `dependent`.
    pub(super) async fn delete_owner_of(&self, dependents: usize) -> Result<Api<ConfigMap>> {
        let maps: Api<ConfigMap> = self.plane.namespace("owned").await?.api();
        let create = async |object: Value| {
            let object = serde_json::from_value(object)?;
            anyhow::Ok(maps.create(&PostParams::default(), &object).await?)
        };
        let owner = create(json!({"metadata": {"name": "owner"}})).await?;
        let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.uid()});
        for number in 0..dependents {
            create(json!({"metadata": {
                "name": format!("dependent-{number}"),
                "labels": {"dependent": "true"},
                "ownerReferences": [reference],
            }}))
            .await?;
        }
        maps.delete("owner", &DeleteParams::background()).await?;
        Ok(maps)
    }
}

/// Creates the account of Prometheus, grants it the rights of deploy/monitoring, and returns a
/// token of it.
async fn prometheus_token(plane: &ControlPlane) -> Result<String> {
    let client = plane.client()?;
    let component = component()?;
    let binding = &component["ClusterRoleBinding portreeve:metrics-reader"];
    let (namespace, account) = (
        text(binding, "/subjects/0/namespace")?,
        text(binding, "/subjects/0/name")?,
    );
    let object: NamespaceObject = serde_json::from_value(json!({"metadata": {"name": namespace}}))?;
    Api::all(client.clone()).create(&PostParams::default(), &object).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let object = serde_json::from_value(json!({"metadata": {"name": account}}))?;
    accounts.create(&PostParams::default(), &object).await?;
    // The roles are in the namespace of the documented overlay.
    let replicas = text(&component["Role portreeve:metrics-discovery"], "/metadata/namespace")?;
    let object: NamespaceObject = serde_json::from_value(json!({"metadata": {"name": replicas}}))?;
    Api::all(client.clone()).create(&PostParams::default(), &object).await?;
    let roles = component.iter().filter(|(key, _)| key.contains("Role"));
    let roles: Vec<_> = roles.map(|(_, role)| role.to_string()).collect();
    rbac::apply_and_wait_for(&client, namespace, account, &roles.join("\n---\n")).await?;
    token_of(&accounts, account, None).await
}

/// Returns the job of the scrape config in docs/monitoring.md.
pub(super) fn documented_scrape_config() -> Result<Value> {
    let page = include_str!("../../../../docs/monitoring.md");
    let blocks = page
        .split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next());
    let mut configs = blocks.filter(|block| block.starts_with("scrape_configs:"));
    let config = configs.next().context("docs/monitoring.md has no scrape config")?;
    let config: Value = serde_saphyr::from_str(config)?;
    Ok(config["scrape_configs"][0].clone())
}
