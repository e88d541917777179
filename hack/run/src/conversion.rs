//! The conversion webhook of the daemon, and v2 of CronTab, which needs it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portreeve_testing::{ControlPlane, eventually, free_port};

/// How long the daemon may take to install the definition and to serve the webhook.
const LIMIT: Duration = Duration::from_mins(1);

/// Where the daemon serves the webhook, and with which certificate.
pub(crate) struct ConversionWebhook {
    port: u16,
    certificate: PathBuf,
    key: PathBuf,
    ca: PathBuf,
}

impl ConversionWebhook {
    /// Writes the certificate, its key and its CA into the folder of the control plane.
    pub(crate) fn new(plane: &ControlPlane) -> Result<Self> {
        let issued = plane.authority().server_certificate()?;
        let write = |name: &str, content: String| {
            let path = plane.folder().join(name);
            fs::write(&path, content).with_context(|| format!("failed to write {}", path.display()))?;
            anyhow::Ok(path)
        };
        Ok(Self {
            port: free_port()?,
            certificate: write("webhook.crt", issued.certificate)?,
            key: write("webhook.key", issued.key)?,
            ca: write("webhook-ca.crt", plane.authority().pem())?,
        })
    }

    /// Returns the flags of a daemon that serves the webhook. No other replica takes over its
    /// calls, so it need not wait until the apiserver knows that it stops.
    pub(crate) fn daemon_flags(&self) -> [String; 4] {
        [
            "--webhook-shutdown-delay=0s".to_owned(),
            format!("--webhook-port={}", self.port),
            format!("--tls-cert-file={}", self.certificate.display()),
            format!("--tls-private-key-file={}", self.key.display()),
        ]
    }

    /// Serves v2 as an administrator does, once the daemon has installed the definition.
    pub(crate) async fn enable(&self, plugin: &Path, plane: &ControlPlane) -> Result<()> {
        let flags = [
            format!("--url=https://localhost:{}", self.port),
            format!("--ca-file={}", self.ca.display()),
            format!("--kubeconfig={}", plane.kubeconfig().display()),
            "--timeout=30s".to_owned(),
        ];
        let flags = flags.iter().map(String::as_str);
        let args: Vec<_> = ["conversion", "enable"].into_iter().chain(flags).collect();
        eventually(LIMIT, "v2 of CronTab to be served", || async {
            let command = plane.spawn("conversion", plugin, &args, &[])?;
            let status = command.wait(LIMIT).await?;
            ensure!(
                status.success(),
                "the command ended with {status}{}",
                command.log_tail()
            );
            Ok(())
        })
        .await
    }
}
