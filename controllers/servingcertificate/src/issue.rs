//! Creates CAs and the certificates that they sign.

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256,
};

use crate::certificate::{AUTHORITY_NAME, BACKDATED, Certificate};

/// New keys, in case the decision needs them. They are created before it, so that it does not
/// depend on randomness.
pub(crate) struct FreshKeys {
    /// For a CA.
    pub(crate) authority: Result<KeyPair, rcgen::Error>,
    /// For a certificate.
    pub(crate) certificate: Result<KeyPair, rcgen::Error>,
}

impl FreshKeys {
    pub(crate) fn generate() -> Self {
        let generate = || KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256);
        Self {
            authority: generate(),
            certificate: generate(),
        }
    }
}

/// A certificate and its key in PEM.
pub(crate) struct Issued {
    pub(crate) certificate: Certificate,
    pub(crate) key: String,
}

/// Creates a CA with this key.
pub(crate) fn authority(key: &KeyPair, lifetime: SignedDuration, now: Timestamp) -> Option<Issued> {
    // Two CAs must not have the same subject.
    let mut params = authority_params(&format!("{AUTHORITY_NAME}{}", now.as_millisecond()));
    set_lifetime(&mut params, now, now.checked_add(lifetime).ok()?)?;
    let certificate = params.self_signed(key).ok()?;
    Some(Issued {
        certificate: Certificate::read(certificate.der())?,
        key: key.serialize_pem(),
    })
}

/// Creates a certificate for these names, signed by the CA. It does not outlive the CA.
pub(crate) fn certificate(
    key: &KeyPair,
    names: impl IntoIterator<Item = String>,
    authority: &Certificate,
    authority_key: KeyPair,
    lifetime: SignedDuration,
    now: Timestamp,
) -> Option<Issued> {
    let names: Vec<_> = names.into_iter().collect();
    let mut params = CertificateParams::new(names).ok()?;
    params.distinguished_name.push(DnType::CommonName, "portreeve");
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let end = now.checked_add(lifetime).ok()?.min(authority.not_after);
    set_lifetime(&mut params, now, end)?;
    let issuer = Issuer::new(authority_params(&authority.common_name), authority_key);
    let certificate = params.signed_by(key, &issuer).ok()?;
    Some(Issued {
        certificate: Certificate::read(certificate.der())?,
        key: key.serialize_pem(),
    })
}

/// Returns what all CAs have in common. Only certificates of servers are below them.
fn authority_params(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

fn set_lifetime(params: &mut CertificateParams, now: Timestamp, end: Timestamp) -> Option<()> {
    let since_1970 = |time: Timestamp| u64::try_from(time.as_second()).ok();
    let time = |seconds| rcgen::date_time_ymd(1970, 1, 1) + std::time::Duration::from_secs(seconds);
    params.not_before = time(since_1970(now.checked_sub(BACKDATED).ok()?)?);
    params.not_after = time(since_1970(end)?);
    Some(())
}
