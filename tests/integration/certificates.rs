//! `--tls-secret`: the leader issues certificates, and every replica serves them.

mod bundles;
mod clock;
mod lost;
mod replicas;
pub(crate) mod webhooks;

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use http::Request;
use k8s_openapi::{
    ByteString,
    api::{
        core::v1::{ConfigMap, Namespace, Secret},
        events::v1::Event,
    },
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    client::Body,
};
use portreeve_testing::{ControlPlane, eventually};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde_json::json;

use crate::fixtures::{
    LIMIT,
    admin::{self, Admin},
    daemon::{Daemon, EXPIRING_LEASE},
    rbac::restricted_kubeconfig,
};

const SECRET: &str = "--tls-secret=portreeve-system/portreeve-serving";
const FLAGS: [&str; 4] = [
    "--controllers=-foo",
    SECRET,
    "--tls-issue-names=portreeve.portreeve-system.svc",
    "--tls-ca-config-map=portreeve-system/portreeve-serving-ca",
];
const NAME: &str = "portreeve.portreeve-system.svc";
const CHECK: &str = "servingCertificate";

/// The Secret and the ConfigMap.
pub(crate) struct Objects {
    namespaces: Api<Namespace>,
    secrets: Api<Secret>,
    config_maps: Api<ConfigMap>,
    events: Api<Event>,
}

impl Objects {
    pub(crate) fn new(client: &Client) -> Self {
        Self {
            namespaces: Api::all(client.clone()),
            secrets: Api::namespaced(client.clone(), "portreeve-system"),
            config_maps: Api::namespaced(client.clone(), "portreeve-system"),
            events: Api::namespaced(client.clone(), "portreeve-system"),
        }
    }

    pub(crate) async fn create_namespace(&self) -> Result<()> {
        let namespace = serde_json::from_value(json!({"metadata": {"name": "portreeve-system"}}))?;
        self.namespaces.create(&PostParams::default(), &namespace).await?;
        Ok(())
    }

    async fn create_secret(&self) -> Result<()> {
        let secret = serde_json::from_value(json!({"metadata": {"name": "portreeve-serving"}}))?;
        self.secrets.create(&PostParams::default(), &secret).await?;
        Ok(())
    }

    async fn create_config_map(&self) -> Result<()> {
        let config_map = serde_json::from_value(json!({"metadata": {"name": "portreeve-serving-ca"}}))?;
        self.config_maps.create(&PostParams::default(), &config_map).await?;
        Ok(())
    }

    async fn data(&self) -> Result<BTreeMap<String, ByteString>> {
        Ok(self.secrets.get("portreeve-serving").await?.data.unwrap_or_default())
    }

    async fn replace_data(&self, data: serde_json::Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "data": data }));
        let parameters = PatchParams::default();
        self.secrets.patch("portreeve-serving", &parameters, &patch).await?;
        Ok(())
    }

    /// Waits until the Secret has a certificate, and returns its CAs.
    async fn wait_for_authority(&self) -> Result<String> {
        eventually(LIMIT, "a CA in the Secret", || async {
            let data = self.secrets.get("portreeve-serving").await?.data.unwrap_or_default();
            ensure!(data.contains_key("tls.crt"), "there is no certificate");
            let authorities = data.get("ca.crt").context("there is no CA")?;
            anyhow::Ok(String::from_utf8(authorities.0.clone())?)
        })
        .await
    }

    /// Waits for an event on the Secret whose message contains this text, and returns the message.
    async fn wait_for_event(&self, text: &str) -> Result<String> {
        eventually(LIMIT, &format!("an event with {text:?}"), || async {
            let events = self.events.list(&ListParams::default()).await?;
            let mut notes = events.items.into_iter().filter_map(|event| event.note);
            let found = notes.find(|note| note.contains(text));
            found.context("there is no such event")
        })
        .await
    }

    /// Waits until a replica serves a certificate that a client with the published CAs trusts, for
    /// the name of the Service.
    async fn wait_until_trusted(&self, admin: Admin) -> Result<()> {
        eventually(LIMIT, "a certificate of the published CA", || {
            self.ensure_trusted(admin)
        })
        .await
    }

    async fn ensure_trusted(&self, admin: Admin) -> Result<()> {
        let published = self
            .config_maps
            .get("portreeve-serving-ca")
            .await?
            .data
            .unwrap_or_default();
        let authorities = published.get("ca.crt").context("no CA is published")?;
        ensure!(!authorities.contains("PRIVATE KEY"), "a key is published");
        let mut config = admin.config()?;
        let authorities = CertificateDer::pem_slice_iter(authorities.as_bytes());
        let authorities: Result<Vec<_>, _> = authorities.collect();
        config.root_cert = Some(authorities?.iter().map(|authority| authority.to_vec()).collect());
        config.tls_server_name = Some(NAME.to_owned());
        let response = admin::send(config, Request::get("/livez").body(Body::empty())?).await?;
        ensure!(response.status().is_success());
        Ok(())
    }
}

/// The account has the printed permissions and no others.
#[tokio::test]
async fn every_replica_serves_the_certificate_that_the_leader_issues() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let namespace = "--leader-elect-resource-namespace=portreeve-system";
    let objects = Objects::new(&plane.client()?);
    objects.create_namespace().await?;
    let kubeconfig = restricted_kubeconfig(&plane, &[&FLAGS[..], &[namespace]].concat()).await?;
    let flags: Vec<_> = FLAGS.into_iter().chain(EXPIRING_LEASE).chain([namespace]).collect();
    let first = Daemon::start_as(&plane, &kubeconfig, "first", &flags).await?;
    first.wait_for_line(&["acquired the lease"]).await?;
    // The leader creates the Secret, and the ConfigMap delays nothing.
    let issued = |_, text: &str| text.contains(&format!("[+]{CHECK} ok\n"));
    first.admin.wait_until_readyz("the first certificate", issued).await?;
    objects.create_config_map().await?;
    objects.wait_until_trusted(first.admin).await?;

    // Names of checks are open to everybody.
    let (_, text) = first.admin.get("/readyz?verbose").await?;
    let names = text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, _)| name);
    let names: Vec<_> = names.filter(|name| name.contains("informer/")).collect();
    ensure!(
        names.iter().any(|name| name.starts_with("[+]informer/secrets.v1-")),
        "{names:?}"
    );
    ensure!(names.iter().all(|name| !name.contains("portreeve")), "{names:?}");

    let second = Daemon::start_as(&plane, &kubeconfig, "second", &flags).await?;
    objects.wait_until_trusted(second.admin).await?;
    let issued = objects.data().await?;

    // Deleting the content is how to replace a key that has become known.
    objects
        .replace_data(json!({"ca.crt": null, "ca.key": null, "tls.crt": null, "tls.key": null}))
        .await?;
    eventually(LIMIT, "a new CA", || async {
        let data = objects.data().await?;
        ensure!(data.contains_key("tls.crt") && data["ca.crt"] != issued["ca.crt"]);
        anyhow::Ok(())
    })
    .await?;
    for replica in [&first, &second] {
        objects.wait_until_trusted(replica.admin).await?;
        let healthy = |_, text: &str| text.contains(&format!("[+]{CHECK} ok\n"));
        replica.admin.wait_until_readyz("the certificate", healthy).await?;
        let metrics = replica.admin.metrics().await?;
        ensure!(metrics.sum("portreeve_serving_certificate_expiry_timestamp_seconds", &[]) > 1.7e9);
    }

    // After a takeover, the new leader keeps the certificate, and replaces what cannot be used.
    let issued = objects.data().await?;
    drop(first);
    second.wait_for_line(&["acquired the lease"]).await?;
    objects.replace_data(json!({"tls.key": null})).await?;
    objects.wait_until_trusted(second.admin).await?;
    eventually(LIMIT, "a new key", || async {
        let data = objects.data().await?;
        ensure!(data.contains_key("tls.key") && data["tls.key"] != issued["tls.key"]);
        ensure!(data["ca.crt"] == issued["ca.crt"], "the CA was replaced too");
        anyhow::Ok(())
    })
    .await?;
    let log = second.log()?;
    ensure!(!log.contains("PRIVATE") && !log.contains("forbidden"), "{log}");
    Ok(())
}

/// Without `--tls-issue-names`, somebody else maintains the Secret.
#[tokio::test]
async fn a_certificate_of_somebody_else_is_served_and_its_faults_are_reported() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let objects = Objects::new(&plane.client()?);
    objects.create_namespace().await?;
    objects.create_secret().await?;
    let kubeconfig = restricted_kubeconfig(&plane, &["--controllers=*", SECRET]).await?;
    let daemon = Daemon::start_as(&plane, &kubeconfig, "reader", &["--controllers=-foo", SECRET]).await?;
    let empty = |_, text: &str| text.contains("no tls.crt and tls.key");
    daemon.admin.wait_until_readyz("the empty Secret", empty).await?;

    let issued = plane.authority().server_certificate()?;
    let encode = |text: &str| data_encoding::BASE64.encode(text.as_bytes());
    objects
        .replace_data(json!({"tls.crt": encode(&issued.certificate), "tls.key": encode(&issued.key)}))
        .await?;
    let trusted = || async {
        let mut config = daemon.admin.config()?;
        config.root_cert = Some(vec![plane.authority().der()]);
        admin::send(config, Request::get("/livez").body(Body::empty())?).await?;
        anyhow::Ok(())
    };
    eventually(LIMIT, "the certificate in the Secret", trusted).await?;

    let other = plane.authority().server_certificate()?;
    objects.replace_data(json!({"tls.key": encode(&other.key)})).await?;
    let mismatch = |_, text: &str| text.contains("tls.key of --tls-secret=portreeve-system/portreeve-serving");
    daemon.admin.wait_until_readyz("the wrong key", mismatch).await?;
    trusted()
        .await
        .context("the previous certificate is no longer served")?;
    let failures = async || {
        let metrics = daemon.admin.metrics().await?;
        anyhow::Ok(metrics.sum("portreeve_serving_certificate_reloads_total", &[r#"status="failure""#]))
    };
    // The empty Secret and the wrong key.
    let before = failures().await?;
    ensure!(before >= 2.0, "{before} failures are counted");
    objects
        .secrets
        .delete("portreeve-serving", &DeleteParams::default())
        .await?;
    trusted()
        .await
        .context("the certificate of the deleted Secret is no longer served")?;
    let deleted = |_, text: &str| text.contains(&format!("[+]{CHECK} ok: ")) && text.contains("does not exist");
    daemon.admin.wait_until_readyz("the deleted Secret", deleted).await?;
    let after = failures().await?;
    ensure!(after > before, "{after} failures are counted");
    daemon
        .wait_for_line(&["waiting for the secret of the serving certificate"])
        .await?;
    ensure!(!daemon.log()?.contains("PRIVATE"));
    Ok(())
}
