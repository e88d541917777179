//! Rotations with crashes and clocks that differ. The cluster checks after each write that no
//! client loses trust.

use proptest::prelude::*;

use super::super::*;
use super::simulation::{Cluster, DAY, HOUR, MINUTE};

/// By how much the leaders' clocks are ahead.
const OFFSETS: [SignedDuration; 3] = [
    SignedDuration::from_mins(-5),
    SignedDuration::ZERO,
    SignedDuration::from_mins(5),
];

#[test]
fn twenty_cas_rotate_under_changing_leaders() {
    let mut cluster = Cluster::issued();
    let mut leaders = 0;
    while cluster.authorities < 21 {
        let served = cluster.served().pem.clone();
        cluster.run_to_next();
        assert!(cluster.served().is_valid(cluster.now));
        if cluster.served().pem != served {
            cluster.ensure_grace_period();
            cluster.replace_leader(OFFSETS[leaders % OFFSETS.len()]);
            leaders += 1;
        }
        assert!(cluster.stored().len() <= 2);
    }
    // A certificate every twenty days.
    assert!((240..300).contains(&leaders), "{leaders} certificates");
    let unexpected = cluster
        .events
        .iter()
        .find(|event| !event.starts_with("CreatedCA") && !event.starts_with("Issued"));
    assert_eq!(unexpected, None);
}

/// Rotates with a crash at the write with this number: before it, or after it. The next leader has
/// another clock.
fn rotate(crash: usize, is_written: bool, offset: SignedDuration, is_reversed: bool) -> usize {
    let mut cluster = Cluster::issued();
    cluster.now = cluster.stored()[0].renewal();
    cluster.replace_leader(SignedDuration::ZERO);
    let old = cluster.stored().remove(0);
    let mut writes = 0;
    let mut is_idle = false;
    while cluster.stored().iter().any(|authority| authority.pem == old.pem) {
        if is_idle {
            let next = cluster.settle().unwrap();
            cluster.now = next;
        }
        is_idle = true;
        for key in 0..cluster.keys() {
            let key = if is_reversed { cluster.keys() - 1 - key } else { key };
            let plan = cluster.plan(key);
            if !plan.effects.iter().any(|effect| matches!(effect, Effect::Apply { .. })) {
                continue;
            }
            is_idle = false;
            let is_crash = writes == crash;
            writes += 1;
            if !is_crash || is_written {
                cluster.apply(&plan);
            }
            if is_crash {
                cluster.replace_leader(offset);
            }
        }
    }
    cluster.settle();
    assert!(!cluster.served().is_signed_by(&old));
    writes
}

#[test]
fn no_crash_during_a_rotation_ends_the_trust_of_a_client() {
    let writes = rotate(usize::MAX, true, SignedDuration::ZERO, false);
    assert!(writes >= 9, "{writes}");
    for crash in 0..writes {
        for offset in OFFSETS {
            rotate(crash, true, offset, false);
            rotate(crash, false, offset, true);
        }
    }
}

/// The certificate is in the last sixth of its lifetime, in which no grace period delays its
/// renewal. The leader stops between its write of a new CA to the Secret and those to the bundles.
#[test]
fn a_successor_publishes_the_ca_before_it_replaces_a_certificate_that_soon_expires() {
    let mut cluster = Cluster::issued();
    cluster.now += DAY * 25;
    cluster.set(AUTHORITY_KEY, "");
    let plan = cluster.plan(0);
    cluster.apply(&plan);
    cluster.replace_leader(SignedDuration::ZERO);
    let newest = cluster.stored().remove(0);
    cluster.settle();
    cluster.check();
    for bundle in cluster.bundles().into_values() {
        assert!(bundle.contains(&newest.pem));
    }
    cluster.run_to_next();
    assert!(cluster.served().is_signed_by(&newest));
}

/// Clients whose clocks differ too accept certificates of an hour.
#[test]
fn certificates_of_an_hour_are_valid_for_clocks_that_differ_by_minutes() {
    let mut cluster = Cluster::new();
    cluster.settings.authority_lifetime = HOUR * 3;
    cluster.settings.certificate_lifetime = HOUR;
    cluster.settle();
    for leader in 0..100 {
        cluster.replace_leader(OFFSETS[leader % 2 * 2]);
        cluster.run_to_next();
        for clock in OFFSETS {
            let served = cluster.served();
            assert!(
                served.is_valid(cluster.now + clock),
                "{} at {}",
                served.not_after,
                cluster.now
            );
        }
    }
    assert!(cluster.authorities > 10, "{}", cluster.authorities);
    assert!(
        cluster.events.iter().all(|event| !event.starts_with("Missed")),
        "{:?}",
        cluster.events
    );
}

#[test]
fn certificates_of_seconds_rotate_in_time() {
    let mut cluster = Cluster::new();
    let second = SignedDuration::from_secs(1);
    cluster.settings.authority_lifetime = second * 12;
    cluster.settings.certificate_lifetime = second * 6;
    cluster.settings.grace_period = second;
    cluster.settle();
    let start = cluster.now;
    while cluster.authorities < 21 {
        cluster.run_to_next();
        assert!(cluster.served().is_valid(cluster.now));
        assert!(cluster.stored().len() <= 3);
    }
    let each = cluster.now.duration_since(start) / 20;
    assert!(each >= second * 7 && each <= second * 8, "{each}");
    assert!(
        cluster.events.iter().all(|event| !event.starts_with("Missed")),
        "{:?}",
        cluster.events
    );
}

/// What happens to the cluster.
#[derive(Clone, Debug)]
enum Happening {
    /// The leader decides about a key, and crashes before or after the write. The next one's clock
    /// is ahead by this many minutes.
    Crash(usize, bool, i64),
    /// Time passes until the next decision is due.
    Next,
    /// Time passes.
    Hours(i64),
    /// Somebody empties the bundles of an object.
    Wipe(usize),
    DeleteSecret,
    /// Somebody removes a key from the Secret.
    RemoveKey(&'static str),
    RemoveWebhook,
    AddWebhook(u8),
}

const KEYS: [&str; 4] = [AUTHORITIES, AUTHORITY_KEY, CERTIFICATE, CERTIFICATE_KEY];

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        6 => (0..4_usize, any::<bool>(), -5..=5_i64).prop_map(|(key, is_written, offset)| Happening::Crash(key, is_written, offset)),
        6 => Just(Happening::Next),
        2 => (1..1000_i64).prop_map(Happening::Hours),
        1 => (0..3_usize).prop_map(Happening::Wipe),
        1 => Just(Happening::DeleteSecret),
        2 => prop::sample::select(&KEYS[..]).prop_map(Happening::RemoveKey),
        1 => Just(Happening::RemoveWebhook),
        1 => any::<u8>().prop_map(Happening::AddWebhook),
    ]
}

fn happen(cluster: &mut Cluster, happening: &Happening) {
    match happening {
        Happening::Crash(key, is_written, offset) => {
            let plan = cluster.plan(*key);
            if *is_written {
                cluster.apply(&plan);
            }
            cluster.replace_leader(MINUTE * i32::try_from(*offset).unwrap());
        }
        Happening::Next => cluster.run_to_next(),
        Happening::Hours(hours) => {
            cluster.settle();
            cluster.now += HOUR * i32::try_from(*hours).unwrap();
        }
        // Only the bundle itself still trusts a CA that is not in the Secret.
        Happening::Wipe(index) => {
            cluster.settle();
            let served = cluster.served();
            if cluster.stored().iter().any(|authority| served.is_signed_by(authority)) {
                cluster.wipe(*index);
                cluster.settle();
            }
        }
        Happening::DeleteSecret => cluster.secret = None,
        Happening::RemoveKey(key) => {
            if let Some(secret) = &mut cluster.secret {
                secret.remove(*key);
            }
        }
        Happening::RemoveWebhook => {
            let webhooks = cluster.objects[1].1["webhooks"].as_array_mut().unwrap();
            webhooks.truncate(1);
        }
        Happening::AddWebhook(number) => {
            let webhooks = cluster.objects[1].1["webhooks"].as_array_mut().unwrap();
            let name = format!("{number}");
            if webhooks.iter().all(|webhook| webhook["name"] != name) {
                webhooks.push(json!({ "name": name, "clientConfig": {} }));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_happens_no_client_loses_trust(happenings in prop::collection::vec(happening(), 1..40)) {
        let mut cluster = Cluster::issued();
        for happening in &happenings {
            happen(&mut cluster, happening);
            cluster.check();
        }
        cluster.settle();
        cluster.now += DAY;
        cluster.settle();
        prop_assert!(cluster.served().is_valid(cluster.leader_time()));
        for bundle in cluster.bundles().into_values() {
            prop_assert!(!bundle.is_empty());
        }
    }
}
