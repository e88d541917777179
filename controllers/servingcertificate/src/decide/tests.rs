//! The life of the Secret over years, and contents that cannot be used.

mod rotation;
mod simulation;

use std::collections::BTreeMap;

use expect_test::{Expect, expect};

use self::simulation::{Cluster, DAY, HOUR, MINUTE};
use super::*;

/// Settles the cluster, and compares the plans that write something or report it.
fn check(cluster: &mut Cluster, expected: &Expect) {
    let mut plans = Vec::new();
    loop {
        let mut is_changed = false;
        for key in 0..cluster.keys() {
            let plan = cluster.plan(key);
            if cluster.apply(&plan) {
                is_changed = true;
                plans.push(format!("{plan}\n"));
            }
        }
        if !is_changed {
            break;
        }
    }
    expected.assert_eq(&plans.concat());
}

#[test]
fn a_new_ca_is_published_before_the_first_certificate_is_issued() {
    let mut cluster = Cluster::new();
    check(
        &mut cluster,
        &expect![[r"
        apply Secret system/serving, event CreatedCA on Secret system/serving; again at 2026-01-01T00:01:00Z
        apply ConfigMap system/ca
        apply ValidatingWebhookConfiguration hooks
        apply CustomResourceDefinition foos
        apply Secret system/serving, event IssuedCertificate on Secret system/serving; again at 2026-01-21T00:00:00Z
    "]],
    );
    let certificate = cluster.served();
    assert_eq!(certificate.not_after.duration_since(cluster.now), DAY * 30);
    assert_eq!(certificate.not_before, cluster.now - HOUR);
    let stored = cluster.stored().remove(0);
    assert_eq!(stored.not_after.duration_since(cluster.now), DAY * 365);
    for bundle in cluster.bundles().into_values() {
        assert_eq!(bundle, stored.pem, "it has the CA, and nothing else such as a key");
    }
}

#[test]
fn a_new_ca_signs_after_the_grace_period() {
    let mut cluster = Cluster::issued();
    cluster.now = cluster.stored()[0].renewal();
    cluster.replace_leader(SignedDuration::ZERO);
    // Renews the certificate first, so that only the CA is due.
    let old = cluster.stored().remove(0);
    let key = KeyPair::from_pem(&cluster.text(AUTHORITY_KEY)).unwrap();
    let fresh = KeyPair::generate().unwrap();
    let names = cluster.settings.names.clone();
    let issued = issue::certificate(&fresh, names, &old, key, DAY * 30, cluster.now).unwrap();
    cluster.set(CERTIFICATE, &issued.certificate.pem);
    cluster.set(CERTIFICATE_KEY, &issued.key);
    check(
        &mut cluster,
        &expect![[r"
        apply Secret system/serving, event CreatedCA on Secret system/serving; again at 2026-09-26T08:00:00Z
        apply ConfigMap system/ca
        apply ValidatingWebhookConfiguration hooks
        apply CustomResourceDefinition foos
    "]],
    );
    for bundle in cluster.bundles().into_values() {
        assert_eq!(Certificate::read_all(&bundle).len(), 2);
    }
    // Another leader does not know how long the CA has been published.
    cluster.now += MINUTE / 2;
    cluster.replace_leader(MINUTE * 5);
    cluster.settle();
    cluster.now += MINUTE - SignedDuration::from_secs(1);
    check(&mut cluster, &expect![[""]]);
    cluster.now += SignedDuration::from_secs(1);
    check(
        &mut cluster,
        &expect![[r"
        apply Secret system/serving, event IssuedCertificate on Secret system/serving; again at 2026-09-21T08:06:30Z
    "]],
    );
    cluster.ensure_grace_period();
    assert!(!cluster.served().is_signed_by(&old));

    // All certificates of the old CA have expired, even if a clock was wrong by an hour.
    cluster.now = cluster.stored()[0].created() + DAY * 30 + HOUR + MINUTE * 5;
    check(
        &mut cluster,
        &expect![[r"
        apply Secret system/serving, event IssuedCertificate on Secret system/serving, event MissedCertificate on Secret system/serving; again at 2026-10-21T09:10:00Z
        apply ConfigMap system/ca
        apply ValidatingWebhookConfiguration hooks
        apply CustomResourceDefinition foos
    "]],
    );
    assert_eq!(cluster.stored().len(), 1);
}

/// Changes an issued Secret, settles, and returns the reasons of events. The certificate is trusted
/// throughout.
fn events_after(change: impl FnOnce(&mut Cluster)) -> String {
    let mut cluster = Cluster::issued();
    cluster.events.clear();
    change(&mut cluster);
    cluster.settle();
    let reasons = cluster.events.iter().filter_map(|event| event.split_once(':'));
    let reasons: Vec<_> = reasons.map(|(reason, _)| reason).collect();
    reasons.join(", ")
}

#[test]
fn what_cannot_be_used_is_replaced_at_once() {
    let issued = "IssuedCertificate";
    let missed = "IssuedCertificate, MissedCertificate";
    let both = "CreatedCA, IssuedCertificate, MissedCertificate";
    let other = Cluster::issued();

    assert_eq!(events_after(|_| ()), "");
    assert_eq!(events_after(|cluster| cluster.secret = Some(BTreeMap::new())), both);
    assert_eq!(
        events_after(|cluster| cluster.secret = None),
        missed,
        "no event precedes the Secret"
    );
    // Without the key of the CA, the certificate is still valid, and the CA stays published.
    assert_eq!(events_after(|cluster| cluster.set(AUTHORITY_KEY, "")), "CreatedCA");
    assert_eq!(
        events_after(|cluster| cluster.set(AUTHORITY_KEY, &other.text(AUTHORITY_KEY))),
        "CreatedCA"
    );
    assert_eq!(events_after(|cluster| cluster.set(AUTHORITIES, "nonsense")), both);
    assert_eq!(events_after(|cluster| cluster.set(CERTIFICATE, "nonsense")), missed);
    assert_eq!(
        events_after(|cluster| cluster.set(CERTIFICATE, "")),
        issued,
        "as requested"
    );
    assert_eq!(
        events_after(|cluster| cluster.set(CERTIFICATE_KEY, &other.text(CERTIFICATE_KEY))),
        missed
    );
    // Clients would reject the certificates of another CA, and a chain of a thousand of them.
    let key = KeyPair::generate().unwrap();
    let foreign = rcgen::CertificateParams::default();
    let foreign = foreign.self_signed(&key).unwrap().pem();
    assert_eq!(
        events_after(|cluster| {
            cluster.set(AUTHORITIES, &foreign);
            cluster.set(AUTHORITY_KEY, &key.serialize_pem());
        }),
        both
    );
    assert_eq!(
        events_after(|cluster| cluster.set(CERTIFICATE, &(cluster.text(CERTIFICATE) + &foreign))),
        missed
    );
    assert_eq!(
        events_after(|cluster| _ = cluster.settings.names.insert("a.example".to_owned())),
        issued
    );
    assert_eq!(events_after(|cluster| cluster.now += DAY * 30), missed);
    assert_eq!(events_after(|cluster| cluster.now += DAY * 365), both);
    assert_eq!(events_after(|cluster| cluster.wipe(1)), "", "the CA is published again");
}

#[test]
fn a_certificate_of_another_ca_is_replaced() {
    let mut cluster = Cluster::issued();
    let other = Cluster::issued();
    for key in [CERTIFICATE, CERTIFICATE_KEY] {
        cluster.set(key, &other.text(key));
    }
    cluster.settle();
    assert!(cluster.served().is_signed_by(&cluster.stored()[0]));
}

#[test]
fn other_names_wait_for_a_ca_that_is_not_published_yet() {
    let mut cluster = Cluster::issued();
    cluster.set(AUTHORITY_KEY, "");
    cluster.settings.names.insert("a.example".to_owned());
    cluster.settle();
    assert_eq!(cluster.served().names.len(), 1);
    cluster.run_to_next();
    assert_eq!(cluster.served().names.len(), 2);
    cluster.ensure_grace_period();
}

#[test]
fn a_lost_secret_leaves_bundles_as_they_are_until_certificates_have_expired() {
    let mut cluster = Cluster::issued();
    let old = cluster.stored().remove(0);
    cluster.secret = None;
    let creation = cluster.plan(0);
    expect!["apply Secret system/serving"].assert_eq(&creation.to_string());
    cluster.apply(&creation);
    assert_eq!(cluster.text(CERTIFICATE), "");
    cluster.now += MINUTE / 2;
    cluster.events.clear();
    cluster.settle();
    expect![[r"
        IssuedCertificate: Issued a certificate for portreeve.system.svc that expires at 2026-01-31T00:00:30Z
        MissedCertificate: The Secret has had no usable certificate for at least 30s: calls of validatingwebhookconfigurations/hooks, customresourcedefinitions/foos may have failed"]].assert_eq(&cluster.events.join("\n"));
    let is_everywhere = |cluster: &Cluster| cluster.bundles().values().all(|bundle| bundle.contains(&old.pem));
    assert!(is_everywhere(&cluster) && !cluster.text(AUTHORITIES).contains(&old.pem));

    // A bundle that somebody empties gets only the CA of the Secret. That is how to end the trust
    // in a CA.
    cluster.wipe(0);
    cluster.settle();
    assert!(!is_everywhere(&cluster));
    let mut lost = Cluster::issued();
    lost.secret = None;
    lost.settle();
    lost.now += DAY * 30 + HOUR * 2;
    lost.settle();
    for bundle in lost.bundles().into_values() {
        assert_eq!(bundle, lost.text(AUTHORITIES));
    }
}

#[test]
fn an_older_secret_is_used_without_ending_the_trust_in_the_newer_ca() {
    let mut cluster = Cluster::issued();
    let backup = cluster.secret.clone();
    cluster.now += DAY;
    cluster.set(AUTHORITY_KEY, "");
    cluster.run_to_next();
    cluster.ensure_grace_period();
    let newer = cluster.stored().remove(0);
    // A certificate that is renewed on day 21 is valid until day 51.
    cluster.run_to_next();
    cluster.now += DAY * 19;
    cluster.settle();
    assert!(cluster.served().is_signed_by(&newer) && cluster.stored().len() == 1);
    cluster.secret = backup;
    cluster.settle();
    assert!(!cluster.served().is_signed_by(&newer));
    for bundle in cluster.bundles().into_values() {
        assert!(bundle.contains(&newer.pem));
    }
}

#[test]
fn an_object_that_may_not_be_written_delays_no_other_and_no_certificate_for_ever() {
    let mut cluster = Cluster::issued();
    cluster.forbidden.insert(1);
    cluster.set(AUTHORITY_KEY, "");
    cluster.settle();
    let newest = cluster.stored().remove(0);
    for (name, bundle) in cluster.bundles() {
        assert_eq!(bundle.contains(&newest.pem), name.0 != 1, "{name:?}");
    }
    cluster.events.clear();
    let last = cluster.served().last_renewal();
    assert_eq!(last, cluster.served().created() + DAY * 25);
    cluster.now = last;
    cluster.settle();
    assert!(cluster.served().is_signed_by(&newest));
    assert!(cluster.events[1].starts_with("FailedPublish: "), "{:?}", cluster.events);
    expect!["FailedPublish: Issued a certificate that clients of validatingwebhookconfigurations/hooks reject, because the CA could not be published there in time"].assert_eq(&cluster.events[1]);

    // The first certificate waits for a minute.
    let mut cluster = Cluster::new();
    cluster.forbidden.insert(1);
    let next = cluster.settle();
    assert_eq!(next, Some(cluster.now + MINUTE));
    cluster.now += MINUTE;
    cluster.settle();
    assert!(cluster.served().is_valid(cluster.now));
}

#[test]
fn the_number_of_published_cas_is_limited() {
    let mut cluster = Cluster::issued();
    let old = cluster.served().pem.clone();
    for _ in 0..20 {
        cluster.now += SignedDuration::from_secs(1);
        cluster.set(AUTHORITY_KEY, "");
        cluster.settle();
    }
    assert_eq!(cluster.stored().len(), MAX_AUTHORITIES);
    assert_eq!(cluster.served().pem, old, "its CA was not removed");
}

#[test]
fn a_missing_object_is_reported_every_hour_and_delays_nothing() {
    let mut cluster = Cluster::new();
    cluster.objects[0].1 = serde_json::Value::Null;
    cluster.objects[1].1 = serde_json::Value::Null;
    cluster.settle();
    assert!(cluster.served().is_valid(cluster.now));
    let missing = |plan: &Plan| {
        let [Effect::Event(_, content)] = &plan.effects[..] else {
            panic!("{plan}");
        };
        content.message.clone()
    };
    let plan = cluster.plan(1);
    assert_eq!(plan.next, Next::At(cluster.now + HOUR), "the report is repeated");
    expect!["Cannot publish the CA: configmaps/system/ca does not exist; create it, and leave it empty"]
        .assert_eq(&missing(&plan));
    let plan = cluster.plan(2);
    expect!["Cannot publish the CA: validatingwebhookconfigurations/hooks does not exist; create it, or remove it from --tls-ca-bundles"].assert_eq(&missing(&plan));
    // The object appears, and gets the bundle at once.
    cluster.objects[1].1 = json!({ "webhooks": [{ "name": "c", "clientConfig": {} }] });
    cluster.settle();
    assert_eq!(cluster.bundles()[&(1, "c".to_owned())], cluster.text(AUTHORITIES));
}

#[test]
fn a_new_webhook_gets_the_bundle_and_a_definition_without_one_does_not() {
    let mut cluster = Cluster::issued();
    let webhooks = cluster.objects[1].1["webhooks"].as_array_mut().unwrap();
    webhooks.remove(0);
    webhooks.push(json!({ "name": "c", "clientConfig": {} }));
    cluster.objects[2].1 = json!({ "spec": { "conversion": { "strategy": "None" } } });
    check(
        &mut cluster,
        &expect![[r"
        apply ValidatingWebhookConfiguration hooks
    "]],
    );
    assert_eq!(
        cluster.objects[2].1["spec"]["conversion"],
        json!({ "strategy": "None" })
    );
    let names: Vec<_> = cluster.bundles().into_keys().map(|(_, name)| name).collect();
    assert_eq!(names, ["", "b", "c"]);
}

#[test]
fn a_secret_that_is_being_deleted_is_left_alone() {
    let mut observed = Cluster::new().observed();
    let mut secret = observed.secret.unwrap();
    Arc::get_mut(&mut secret).unwrap().metadata.deletion_timestamp = Some(Timestamp::UNIX_EPOCH);
    observed.secret = Some(secret);
    assert_eq!(decide(&observed, Timestamp::UNIX_EPOCH), Plan::nothing());
}

/// It would issue a CA that is not valid yet, or remove one that is valid.
#[test]
fn a_leader_with_a_wrong_clock_changes_nothing() {
    let mut cluster = Cluster::issued();
    let before = (cluster.secret.clone(), cluster.bundles());
    for offset in [DAY * 365, DAY * -365] {
        cluster.events.clear();
        cluster.replace_leader(offset);
        assert_eq!(cluster.settle(), Some(cluster.now + MINUTE));
        assert_eq!((cluster.secret.clone(), cluster.bundles()), before);
        assert!(
            cluster.events[0].starts_with("ClockDiffers: No certificate"),
            "{:?}",
            cluster.events
        );
    }
    cluster.replace_leader(HOUR);
    cluster.events.clear();
    cluster.settle();
    assert!(cluster.events.is_empty(), "{:?}", cluster.events);
}

#[test]
fn no_ca_is_removed_by_the_write_that_adds_another_one() {
    let mut cluster = Cluster::issued();
    cluster.set(AUTHORITY_KEY, "");
    cluster.settle();
    let pems = |cluster: &Cluster| {
        cluster
            .stored()
            .into_iter()
            .map(|authority| authority.pem)
            .collect::<Vec<_>>()
    };
    let old = pems(&cluster);
    assert_eq!(old.len(), 2);
    // Both have expired, so that only the addition of a third one keeps them.
    cluster.now = cluster.stored()[0].not_after + HOUR * 2;
    let plan = cluster.plan(0);
    cluster.apply(&plan);
    assert_eq!(pems(&cluster)[1..], old, "the third one was only added");
}
