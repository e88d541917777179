//! The life of the Secret over years, and contents that cannot be used.

use std::collections::BTreeMap;

use expect_test::{Expect, expect};

use super::*;
use crate::issue::{AUTHORITY_LIFETIME, CERTIFICATE_LIFETIME};

const START: &str = "2026-01-01T00:00:00Z";
const HOUR: SignedDuration = SignedDuration::from_hours(1);
const DAY: SignedDuration = SignedDuration::from_hours(24);

/// The Secret and the ConfigMap, as an apiserver stores them.
struct Cluster {
    now: Timestamp,
    secret: BTreeMap<String, String>,
    config_map: BTreeMap<String, String>,
    names: BTreeSet<String>,
}

impl Cluster {
    /// Returns empty objects.
    fn new() -> Self {
        Self {
            now: START.parse().unwrap(),
            secret: BTreeMap::new(),
            config_map: BTreeMap::new(),
            names: BTreeSet::from(["portreeve.system.svc".to_owned()]),
        }
    }

    /// Returns objects after the first decision.
    fn issued() -> Self {
        let mut cluster = Self::new();
        cluster.reconcile();
        cluster
    }

    fn observed(&self) -> Observed {
        let metadata = |name: &str| Metadata {
            namespace: Some("system".into()),
            name: name.into(),
            uid: "uid".into(),
            resource_version: "1".into(),
            ..Metadata::default()
        };
        Observed {
            secret: Arc::new(CachedSecret {
                metadata: metadata("serving"),
                data: self.secret.clone(),
            }),
            config_map: Some((
                ObjectKey::namespaced("system", "ca"),
                Some(Arc::new(CachedConfigMap {
                    metadata: metadata("ca"),
                    data: self.config_map.clone(),
                })),
            )),
            names: self.names.clone(),
            fresh: FreshKeys::generate(),
        }
    }

    /// Decides, writes, and decides again, which must change nothing. Returns the first plan.
    fn reconcile(&mut self) -> Plan {
        let plan = decide(&self.observed(), self.now);
        for effect in &plan.effects {
            let Effect::Apply { object, .. } = effect else { continue };
            let data = serde_json::from_value(object.body["data"].clone()).unwrap();
            match &*object.resource.kind {
                "Secret" => self.secret = data,
                kind => {
                    assert_eq!(kind, "ConfigMap");
                    self.config_map = data;
                }
            }
        }
        let again = decide(&self.observed(), self.now);
        assert_eq!(again.effects, [], "the second plan is not empty");
        plan
    }

    fn set(&mut self, key: &str, text: &str) {
        self.secret.insert(key.to_owned(), BASE64.encode(text.as_bytes()));
    }

    fn text(&self, key: &str) -> String {
        self.observed().secret.text(key)
    }

    fn certificate(&self) -> Certificate {
        Certificate::read_all(&self.text(CERTIFICATE)).remove(0)
    }

    fn published(&self) -> Vec<Certificate> {
        Certificate::read_all(&self.config_map[AUTHORITIES])
    }

    /// Ensures that a client that read these CAs trusts the certificate.
    fn ensure_trusted_with(&self, published: &[Certificate]) {
        let certificate = self.certificate();
        let now = self.now;
        assert!(certificate.is_valid(now), "the certificate is not valid at {now}");
        assert!(has_key(&certificate, &self.text(CERTIFICATE_KEY)));
        let mut valid = published.iter().filter(|authority| authority.is_valid(now));
        assert!(
            valid.any(|authority| certificate.is_signed_by(authority)),
            "no CA of the client signed it at {now}"
        );
    }
}

fn check(plan: &Plan, expected: &Expect) {
    expected.assert_eq(&plan.to_string());
}

#[test]
fn an_empty_secret_gets_a_ca_and_a_certificate() {
    let mut cluster = Cluster::new();
    check(
        &cluster.reconcile(),
        &expect![
            "apply Secret system/serving, apply ConfigMap system/ca, event CreatedCA on Secret system/serving, event IssuedCertificate on Secret system/serving; again at 2026-01-20T23:40:00Z"
        ],
    );
    cluster.ensure_trusted_with(&cluster.published());
    let certificate = cluster.certificate();
    assert_eq!(certificate.not_after.duration_since(cluster.now), CERTIFICATE_LIFETIME);
    assert_eq!(certificate.not_before, cluster.now - HOUR);
    assert_eq!(
        cluster.published()[0].not_after.duration_since(cluster.now),
        AUTHORITY_LIFETIME
    );
    assert_eq!(cluster.published().len(), 1);
    assert!(!cluster.config_map[AUTHORITIES].contains("PRIVATE"));
}

#[test]
fn clients_that_read_the_cas_every_hour_trust_every_certificate_for_years() {
    let mut cluster = Cluster::issued();
    let start = cluster.now;
    let mut known = cluster.published();
    let (mut authorities, mut certificates) = (1, 1);
    while cluster.now.duration_since(start) < AUTHORITY_LIFETIME * 4 {
        let plan = decide(&cluster.observed(), cluster.now);
        let Next::At(next) = plan.next else {
            panic!("{plan} does not continue")
        };
        assert!(next > cluster.now);
        // A client that read just before the decision reads again after an hour.
        cluster.now = next;
        let before = cluster.published();
        let plan = cluster.reconcile().to_string();
        authorities += usize::from(plan.contains("CreatedCA"));
        certificates += usize::from(plan.contains("IssuedCertificate"));
        cluster.ensure_trusted_with(&before);
        cluster.ensure_trusted_with(&cluster.published());
        known = known.into_iter().chain(cluster.published()).collect();
        assert!(cluster.published().len() <= 2);
    }
    // A CA every eight months, a certificate every twenty days and for each new CA.
    assert_eq!(authorities, 7);
    assert!((73..=80).contains(&certificates), "{certificates}");
}

#[test]
fn a_new_ca_is_published_for_an_hour_before_it_is_used() {
    let mut cluster = Cluster::issued();
    let old = cluster.published();
    cluster.now = old[0].renewal();
    // Renews the certificate first, so that only the CA is due.
    let key = KeyPair::from_pem(&cluster.text(AUTHORITY_KEY)).unwrap();
    let fresh = KeyPair::generate().unwrap();
    let issued = issue::certificate(&fresh, cluster.names.clone(), (&old[0], key), cluster.now).unwrap();
    cluster.set(CERTIFICATE, &issued.certificate.pem);
    cluster.set(CERTIFICATE_KEY, &issued.key);

    check(
        &cluster.reconcile(),
        &expect![
            "apply Secret system/serving, apply ConfigMap system/ca, event CreatedCA on Secret system/serving; again at 2026-09-01T08:40:00Z"
        ],
    );
    cluster.ensure_trusted_with(&old);
    assert_eq!(cluster.published().len(), 2);
    let between = cluster.published();
    cluster.now += HOUR;
    let plan = cluster.reconcile();
    assert!(plan.to_string().contains("IssuedCertificate"), "{plan}");
    cluster.ensure_trusted_with(&between[..1]);

    cluster.now = old[0].not_after;
    cluster.reconcile();
    assert_eq!(cluster.published().len(), 1, "the old CA is removed when it expires");
}

/// Changes an issued Secret, and returns the next plan. The certificate is trusted afterwards.
fn plan_after(change: impl FnOnce(&mut Cluster)) -> String {
    let mut cluster = Cluster::issued();
    change(&mut cluster);
    let plan = cluster.reconcile();
    cluster.ensure_trusted_with(&cluster.published());
    let events = plan.effects.iter().filter(|effect| matches!(effect, Effect::Event(..)));
    events.map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[test]
fn what_cannot_be_used_is_replaced() {
    let issued = "event IssuedCertificate on Secret system/serving";
    let both = format!("event CreatedCA on Secret system/serving, {issued}");
    let other = Cluster::issued();

    assert_eq!(plan_after(|_| ()), "");
    assert_eq!(plan_after(|cluster| cluster.secret.clear()), both);
    // Without the key of the CA, the certificate is still valid, and the CA stays published.
    assert_eq!(
        plan_after(|cluster| cluster.set(AUTHORITY_KEY, "")),
        "event CreatedCA on Secret system/serving"
    );
    assert_eq!(
        plan_after(|cluster| cluster.set(AUTHORITY_KEY, &other.text(AUTHORITY_KEY))),
        "event CreatedCA on Secret system/serving"
    );
    assert_eq!(plan_after(|cluster| cluster.set(AUTHORITIES, "nonsense")), both);
    assert_eq!(plan_after(|cluster| cluster.set(CERTIFICATE, "nonsense")), issued);
    assert_eq!(
        plan_after(|cluster| cluster.set(CERTIFICATE_KEY, &other.text(CERTIFICATE_KEY))),
        issued
    );
    assert_eq!(
        plan_after(|cluster| {
            cluster.set(CERTIFICATE, &other.text(CERTIFICATE));
            cluster.set(CERTIFICATE_KEY, &other.text(CERTIFICATE_KEY));
        }),
        issued,
        "a certificate of another CA"
    );
    // Clients would reject the certificates of another CA, and a chain of a thousand of them.
    let key = KeyPair::generate().unwrap();
    let foreign = rcgen::CertificateParams::default();
    let foreign = foreign.self_signed(&key).unwrap().pem();
    assert_eq!(
        plan_after(|cluster| {
            cluster.set(AUTHORITIES, &foreign);
            cluster.set(AUTHORITY_KEY, &key.serialize_pem());
        }),
        both
    );
    assert_eq!(
        plan_after(|cluster| cluster.set(CERTIFICATE, &(cluster.text(CERTIFICATE) + &foreign))),
        issued
    );
    assert_eq!(
        plan_after(|cluster| _ = cluster.names.insert("a.example".to_owned())),
        issued
    );
    assert_eq!(plan_after(|cluster| cluster.now += CERTIFICATE_LIFETIME), issued);
    assert_eq!(plan_after(|cluster| cluster.now += AUTHORITY_LIFETIME), both);
    // The clock was ahead when the Secret was written.
    assert_eq!(plan_after(|cluster| cluster.now -= DAY), both);
    assert_eq!(
        plan_after(|cluster| cluster.config_map.clear()),
        "",
        "the CA is published again"
    );
}

#[test]
fn a_ca_that_was_removed_from_the_secret_is_no_longer_published() {
    let mut cluster = Cluster::issued();
    let old = cluster.published().remove(0);
    cluster.secret.clear();
    cluster.reconcile();
    assert_eq!(cluster.published().len(), 1);
    assert!(cluster.published()[0].pem != old.pem);
}

#[test]
fn the_number_of_published_cas_is_limited() {
    let mut cluster = Cluster::issued();
    for _ in 0..5 {
        cluster.now += SignedDuration::from_secs(1);
        cluster.set(AUTHORITY_KEY, "");
        cluster.reconcile();
        cluster.ensure_trusted_with(&cluster.published());
    }
    assert_eq!(cluster.published().len(), MAX_AUTHORITIES);
}

#[test]
fn a_missing_config_map_is_reported_and_a_deleted_secret_left_alone() {
    let mut observed = Cluster::issued().observed();
    let now = START.parse().unwrap();
    observed.config_map = Some((ObjectKey::namespaced("system", "ca"), None));
    let plan = decide(&observed, now);
    let [Effect::Event(_, content)] = &plan.effects[..] else {
        panic!("{plan}");
    };
    expect!["Cannot publish the CA: configmap system/ca does not exist; create it, and leave it empty"]
        .assert_eq(&content.message);
    assert_eq!(plan.next, Next::At(now + HOUR), "the report is repeated");

    observed.config_map = None;
    assert_eq!(decide(&observed, now).effects, []);
    let mut secret = Cluster::new().observed().secret;
    Arc::get_mut(&mut secret).unwrap().metadata.deletion_timestamp = Some(now);
    observed.secret = secret;
    assert_eq!(decide(&observed, now), Plan::nothing());
}
