//! The credentials of a control plane: certificates, the key of its service accounts, tokens and
//! kubeconfigs.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use kube::Config;
use rcgen::KeyPair;
use serde_json::json;

use crate::authority::Authority;

/// The files with which kube-apiserver starts. They are in a folder that only this user can enter,
/// so they need no further protection.
pub(crate) struct ServerFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) authority: PathBuf,
    pub(crate) service_account_key: PathBuf,
    pub(crate) service_account_public_key: PathBuf,
    pub(crate) tokens: PathBuf,
}

/// The identity of a client, and the server that it trusts.
#[derive(Clone, Debug)]
pub(crate) struct Credentials {
    pub(crate) url: String,
    ca_pem: String,
    ca_der: Vec<u8>,
    token: String,
}

/// Writes new credentials for the apiserver at `url` into `folder`, and returns the
/// administrator's. `authority` issues the certificates of the apiserver and of clients.
pub(crate) fn issue(folder: &Path, url: String, authority: &Authority) -> Result<(ServerFiles, Credentials)> {
    let server = authority.server_certificate()?;
    let service_account_key = KeyPair::generate().context("failed to generate the service account key")?;
    let token = random_token().context("failed to generate a token")?;
    let write = |name: &str, content: String| {
        let path = folder.join(name);
        fs::write(&path, content).with_context(|| format!("failed to write {}", path.display()))?;
        Ok::<_, anyhow::Error>(path)
    };
    let files = ServerFiles {
        certificate: write("apiserver.crt", server.certificate)?,
        key: write("apiserver.key", server.key)?,
        authority: write("ca.crt", authority.pem())?,
        service_account_key: write("service-account.key", service_account_key.serialize_pem())?,
        service_account_public_key: write("service-account.pub", service_account_key.public_key_pem())?,
        tokens: write("tokens.csv", format!("{token},admin,admin,\"system:masters\"\n"))?,
    };
    let access = Credentials {
        url,
        ca_pem: authority.pem(),
        ca_der: authority.der(),
        token,
    };
    Ok((files, access))
}

impl Credentials {
    /// Returns credentials for the same server with another token.
    pub(crate) fn with_token(&self, token: String) -> Self {
        Self { token, ..self.clone() }
    }

    pub(crate) fn config(&self) -> Result<Config> {
        let url = self
            .url
            .parse()
            .with_context(|| format!("failed to parse the URL {}", self.url))?;
        let mut config = Config::new(url);
        config.root_cert = Some(vec![self.ca_der.clone()]);
        config.auth_info.token = Some(self.token.clone().into());
        Ok(config)
    }

    /// Writes a kubeconfig as JSON, which is valid YAML.
    pub(crate) fn write_kubeconfig(&self, path: &Path) -> Result<()> {
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "portreeve", "cluster": {
                "server": self.url,
                "certificate-authority-data": ByteString(self.ca_pem.clone().into_bytes()),
            }}],
            "users": [{"name": "portreeve", "user": {"token": self.token}}],
            "contexts": [{"name": "portreeve", "context": {"cluster": "portreeve", "user": "portreeve"}}],
            "current-context": "portreeve",
        });
        fs::write(path, format!("{kubeconfig:#}\n")).with_context(|| format!("failed to write {}", path.display()))
    }
}

/// Returns a random token from the system's generator. It is an administrator's token, and other
/// users of this machine can reach the port.
fn random_token() -> std::io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}
