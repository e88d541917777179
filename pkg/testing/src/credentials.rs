//! The credentials of a control plane: certificates, the key of its service accounts, tokens and
//! kubeconfigs.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use kube::Config;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use serde_json::json;

/// The files with which kube-apiserver starts. They are in a folder that only this user can enter,
/// so they need no further protection.
pub(crate) struct ServerFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
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
/// administrator's.
pub(crate) fn issue(folder: &Path, url: String) -> Result<(ServerFiles, Credentials)> {
    let (ca, certificate, key) = certificates().context("failed to create certificates")?;
    let service_account_key = KeyPair::generate().context("failed to generate the service account key")?;
    let token = random_token().context("failed to generate a token")?;
    let write = |name: &str, content: String| {
        let path = folder.join(name);
        fs::write(&path, content).with_context(|| format!("failed to write {}", path.display()))?;
        Ok::<_, anyhow::Error>(path)
    };
    let files = ServerFiles {
        certificate: write("apiserver.crt", certificate)?,
        key: write("apiserver.key", key)?,
        service_account_key: write("service-account.key", service_account_key.serialize_pem())?,
        service_account_public_key: write("service-account.pub", service_account_key.public_key_pem())?,
        tokens: write("tokens.csv", format!("{token},admin,admin,\"system:masters\"\n"))?,
    };
    let access = Credentials {
        url,
        ca_pem: ca.pem(),
        ca_der: ca.der().to_vec(),
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

/// Creates a certificate authority for this control plane, and a certificate and key for its
/// apiserver.
fn certificates() -> Result<(CertifiedIssuer<'static, KeyPair>, String, String), rcgen::Error> {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    authority
        .distinguished_name
        .push(DnType::CommonName, "portreeve-testing");
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;

    let mut server = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()])?;
    server.distinguished_name.push(DnType::CommonName, "kube-apiserver");
    server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    let certificate = server.signed_by(&key, &authority)?;
    Ok((authority, certificate.pem(), key.serialize_pem()))
}

/// Returns a random token from the system's generator. It is an administrator's token, and other
/// users of this machine can reach the port.
fn random_token() -> std::io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}
