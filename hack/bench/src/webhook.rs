//! The processes that serve webhooks for CronTabs, and the definition of CronTabs whose versions
//! such a process converts.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use data_encoding::BASE64;
use kube::CustomResourceExt;
use portreeve_crontab::api::CronTab;
use portreeve_testing::free_port;
use serde_json::json;

use crate::controller::{Account, Controller};
use crate::objects::{definitions, object, post, webhook_configurations};
use crate::run::Run;
use crate::tables::Version;

/// The path at which the daemon converts CronTabs.
const CONVERT: &str = "/convert/crontabs.stable.example.com";
/// The path at which a webhook on controller-runtime converts everything.
const CONVERT_PEER: &str = "/convert";

/// The port on which a process serves webhooks, and the folder with its certificate.
pub(crate) struct Endpoint {
    port: u16,
    folder: PathBuf,
}

impl Endpoint {
    /// Chooses a free port and writes a certificate for servers on this machine.
    pub(crate) fn new(run: &Run<'_>) -> Result<Self> {
        let (folder, issued) = (
            run.plane.folder().join("webhook"),
            run.plane.authority().server_certificate()?,
        );
        let describe = || format!("failed to write to {}", folder.display());
        fs::create_dir_all(&folder).with_context(describe)?;
        fs::write(folder.join("tls.crt"), issued.certificate).with_context(describe)?;
        fs::write(folder.join("tls.key"), issued.key).with_context(describe)?;
        let port = free_port()?;
        Ok(Self { port, folder })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Starts the process of the subject. `replica` and `more` are for the daemon.
    pub(crate) async fn start(&self, run: &Run<'_>, replica: Option<&Account>, more: &[String]) -> Result<Controller> {
        let (port, folder) = (self.port, &self.folder);
        if let Some(peers) = &run.peers {
            let args = [&*port.to_string(), &*folder.to_string_lossy()];
            return Controller::spawn_program(run, &peers.join("webhook"), &args);
        }
        let flags = [
            format!("--webhook-port={port}"),
            format!("--tls-cert-file={}", folder.join("tls.crt").display()),
            format!("--tls-private-key-file={}", folder.join("tls.key").display()),
        ];
        Controller::start_with(run, replica, &[&flags, more].concat()).await
    }

    /// Makes the apiserver call the validating webhook at this path.
    pub(crate) async fn validate(&self, run: &Run<'_>, path: &str) -> Result<()> {
        let ca = authority(run);
        let configuration = object("webhook", &[("port", &self.port), ("path", &path), ("ca", &ca)]);
        post(&webhook_configurations(&run.client), configuration).await?;
        Ok(())
    }

    /// Creates the definition of CronTabs with both versions, which the webhook converts.
    pub(crate) async fn convert(&self, run: &Run<'_>, stored: Version) -> Result<()> {
        let path = if run.peers.is_some() { CONVERT_PEER } else { CONVERT };
        create_definition(run, stored, Some(format!("https://127.0.0.1:{}{path}", self.port))).await
    }
}

/// Creates the definition of CronTabs with both versions, of which `stored` is stored. The webhook
/// at `url` converts them.
pub(crate) async fn create_definition(run: &Run<'_>, stored: Version, url: Option<String>) -> Result<()> {
    let mut definition = serde_json::to_value(CronTab::crd())?;
    for version in definition["spec"]["versions"].as_array_mut().into_iter().flatten() {
        version["served"] = true.into();
        version["storage"] = (version["name"] == stored.name()).into();
    }
    if let Some(url) = url {
        definition["spec"]["conversion"] = json!({
            "strategy": "Webhook",
            "webhook": {
                "conversionReviewVersions": ["v1"],
                "clientConfig": {"url": url, "caBundle": authority(run)},
            },
        });
    }
    post(&definitions(&run.client), definition).await?;
    Ok(())
}

/// Returns the CA of all certificates, as a `caBundle`.
fn authority(run: &Run<'_>) -> String {
    BASE64.encode(run.plane.authority().pem().as_bytes())
}
