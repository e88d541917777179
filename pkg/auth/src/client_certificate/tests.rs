//! Tests with certificates that rcgen issues.

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    PKCS_ECDSA_P256_SHA256, date_time_ymd,
};

use super::*;

const JUNE_2030: UnixTime = UnixTime::since_unix_epoch(Duration::from_hours(529_584));

struct Ca {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Ca {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            pem,
            issuer: Issuer::new(params, key),
        }
    }

    fn bundle(&self) -> CaBundle {
        CaBundle::parse(&self.pem).unwrap()
    }

    /// Issues a certificate for a client, with changes.
    fn issue(
        &self,
        subject: &[(DnType, &str)],
        change: impl FnOnce(&mut CertificateParams),
    ) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in subject {
            params.distinguished_name.push(kind.clone(), *value);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = date_time_ymd(2030, 1, 1);
        params.not_after = date_time_ymd(2031, 1, 1);
        change(&mut params);
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        params.signed_by(&key, &self.issuer).unwrap().der().clone()
    }

    fn client(&self) -> CertificateDer<'static> {
        let subject = [(DnType::CommonName, "alice"), (DnType::OrganizationName, "developers")];
        self.issue(&subject, |_| {})
    }
}

fn failure(result: Result<Subject, CertificateError>) -> String {
    portreeve_client::error_chain(&result.unwrap_err())
}

#[test]
fn a_verified_certificate_names_user_and_groups() {
    let ca = Ca::new("one");
    let user = ca
        .bundle()
        .verify(&[ca.client()], JUNE_2030)
        .unwrap()
        .into_user()
        .unwrap();
    assert_eq!(
        (user.name.as_str(), user.groups.as_slice()),
        ("alice", &["developers".to_owned()][..])
    );
    let id = &user.extra["authentication.kubernetes.io/credential-id"][0];
    assert!(
        id.starts_with("X509SHA256=") && id.len() == "X509SHA256=".len() + 64,
        "{id}"
    );
}

#[test]
fn other_certificates_are_rejected() {
    let (ca, other) = (Ca::new("one"), Ca::new("other"));
    let bundle = ca.bundle();
    let verify = |chain: &[CertificateDer<'_>]| failure(bundle.verify(chain, JUNE_2030));
    let check = |chain: &[CertificateDer<'_>], word: &str| {
        let failure = verify(chain);
        assert!(failure.contains(word), "{failure:?} does not contain {word:?}");
    };
    check(&[other.client()], "UnknownIssuer");
    check(&[], "parse");
    check(&[CertificateDer::from_slice(b"no certificate")], "BadEncoding");
    let alice = [(DnType::CommonName, "alice")];
    let expired = ca.issue(&alice, |params| params.not_after = date_time_ymd(2030, 2, 1));
    check(&[expired], "expired");
    let long = vec![ca.client(); LONGEST_CHAIN + 1];
    check(&long, "6 certificates, more than 5");
    assert!(bundle.verify(&long[1..], JUNE_2030).is_ok());
    let server = ca.issue(&alice, |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    check(&[server], "extended key usage");
}

#[test]
fn a_certificate_without_a_common_name_is_no_user() {
    let ca = Ca::new("one");
    let nameless = ca.issue(&[(DnType::OrganizationName, "system:masters")], |_| {});
    let subject = ca.bundle().verify(&[nameless], JUNE_2030).unwrap();
    assert_eq!(subject.into_user(), None);
}

#[test]
fn a_bundle_must_contain_certificates() {
    let error = |pem: &str| portreeve_client::error_chain(&CaBundle::parse(pem).unwrap_err());
    assert!(error("").contains("no certificate"));
    assert!(error("secret").contains("no certificate"));
    let truncated = "-----BEGIN CERTIFICATE-----\nsecret";
    assert_eq!(error(truncated), "it is not valid PEM");
    let two = format!("{}{}", Ca::new("one").pem, Ca::new("other").pem);
    assert!(CaBundle::parse(&two).is_ok());
}

#[test]
fn a_changed_certificate_is_parsed_but_never_accepted() {
    let ca = Ca::new("one");
    let (bundle, client) = (ca.bundle(), ca.client());
    for index in 0..client.len() {
        for bit in [0, 3, 7] {
            let mut changed = client.to_vec();
            changed[index] ^= 1 << bit;
            let changed = CertificateDer::from(changed);
            // Whatever a trusted CA has signed: this must not panic.
            _ = Subject::parse(&changed);
            let verified = bundle.verify(&[changed], JUNE_2030);
            assert!(verified.is_err(), "byte {index}, bit {bit}");
        }
        let truncated = CertificateDer::from(client[..index].to_vec());
        _ = Subject::parse(&truncated);
        assert!(bundle.verify(&[truncated], JUNE_2030).is_err(), "{index} bytes");
    }
}
