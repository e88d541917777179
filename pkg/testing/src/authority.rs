//! Certificate authorities, and the certificates that they issue.

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

/// A certificate authority. Each has its own key.
// Boxed, because it is large and every test of a control plane holds one.
#[derive(Debug)]
pub struct Authority(Box<CertifiedIssuer<'static, KeyPair>>);

/// A certificate and its private key, both in PEM.
#[derive(Clone, Debug)]
pub struct IssuedCertificate {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

impl Authority {
    /// Creates an authority.
    ///
    /// # Errors
    /// Returns an error if the certificate cannot be created.
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, "portreeve-testing");
        let issuer = KeyPair::generate().and_then(|key| CertifiedIssuer::self_signed(params, key));
        Ok(Self(Box::new(
            issuer.context("failed to create a certificate authority")?,
        )))
    }

    /// Returns the authority's own certificate in PEM.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Returns the authority's own certificate in DER.
    pub fn der(&self) -> Vec<u8> {
        self.0.der().to_vec()
    }

    /// Issues a certificate for a server on this machine.
    ///
    /// # Errors
    /// Returns an error if the certificate cannot be created.
    pub fn server_certificate(&self) -> Result<IssuedCertificate> {
        self.server_certificate_for(["127.0.0.1", "localhost"])
    }

    /// Issues a certificate for a server with these DNS names and IP addresses.
    ///
    /// # Errors
    /// Returns an error if a name is invalid or the certificate cannot be created.
    pub fn server_certificate_for<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<IssuedCertificate> {
        let names: Vec<_> = names.into_iter().map(str::to_owned).collect();
        let mut params = CertificateParams::new(names).context("failed to create the parameters of a certificate")?;
        params.distinguished_name.push(DnType::CommonName, "server");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(params)
    }

    /// Issues a certificate with which the apiserver authenticates a client as `user` in `group`.
    ///
    /// # Errors
    /// Returns an error if the certificate cannot be created.
    pub fn client_certificate(&self, user: &str, group: &str) -> Result<IssuedCertificate> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        params.distinguished_name.push(DnType::OrganizationName, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(params)
    }

    fn issue(&self, mut params: CertificateParams) -> Result<IssuedCertificate> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().context("failed to generate a key")?;
        let certificate = params
            .signed_by(&key, &*self.0)
            .context("failed to issue a certificate")?;
        Ok(IssuedCertificate {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}
