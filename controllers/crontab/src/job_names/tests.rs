//! Tests of the names of Jobs in both formats, and of the prefixes that find them.

use proptest::prelude::*;

use super::*;

/// Minutes from the epoch to 10:00 on 10 March 2026.
const MINUTES_AT_TEN: i64 = 29_552_280;
const HASHED: Option<JobNameFormat> = Some(JobNameFormat::Hashed);

fn at(text: &str) -> Timestamp {
    text.parse().expect("the text is a time")
}

#[test]
fn names_of_scheduled_runs_never_change() {
    let (name, hash) = ("backup", "736ef2ad");
    for (time, minutes) in [
        ("2026-03-10T10:00:00Z", MINUTES_AT_TEN),
        ("2026-03-10T10:00:59Z", MINUTES_AT_TEN),
        ("2026-03-10T10:01:00Z", MINUTES_AT_TEN + 1),
        ("1969-12-31T23:59:59Z", -1),
    ] {
        for (format, expected) in [
            (None, format!("{name}-{minutes}")),
            (HASHED, format!("{name}-{hash}-t{minutes}")),
        ] {
            let names = JobNames { owner: name, format };
            assert_eq!(names.scheduled("default", at(time)), expected);
            assert_eq!(super::minutes(name, "default", &expected), Some(minutes), "{expected}");
            assert_eq!(super::minutes("other", "default", &expected), None, "{expected}");
        }
    }
}

#[test]
fn long_names_are_truncated() {
    let (forty_three, fifty_two) = ("n".repeat(43), "n".repeat(52));
    let cut_at_dash = format!("{}-.nnnnnn", "n".repeat(42));
    for (owner, expected) in [
        (
            &*forty_three,
            format!("{forty_three}-{:08x}", schedule_hash(&forty_three, "default")),
        ),
        (&fifty_two, format!("{forty_three}-02c7d533")),
        (&cut_at_dash, format!("{}-29abfc34", "n".repeat(42))),
    ] {
        let names = JobNames { owner, format: HASHED };
        let last = Timestamp::from_second(60 * 999_999_999).unwrap_or(Timestamp::MAX);
        for (name, rest) in [
            (names.scheduled("default", at("2026-03-10T10:00:00Z")), "-t29552280"),
            (names.scheduled("default", last), "-t999999999"),
            (names.run_now("1"), "-r340ca71c"),
        ] {
            assert_eq!(name, format!("{expected}{rest}"));
            assert!(name.len() <= 63, "{name} is the value of a label");
        }
    }
    let other = format!("{}xx", "n".repeat(50));
    assert_ne!(
        hashed_prefix(&fifty_two, "default"),
        hashed_prefix(&other, "default"),
        "the hash covers the whole name"
    );
}

#[test]
fn names_of_requested_runs_never_change() {
    let (fifty, fifty_two) = ("n".repeat(50), "n".repeat(52));
    let cut_at_dash = format!("{}--{}", "n".repeat(48), "n".repeat(2));
    for (owner, value, expected) in [
        ("backup", "1", "backup-run-340ca71c".to_owned()),
        ("backup", "", "backup-run-811c9dc5".to_owned()),
        (&fifty, "1", format!("{fifty}-run-340ca71c")),
        (&fifty_two, "1", format!("{fifty}-run-ba1cd32d")),
        (&cut_at_dash, "1", format!("{}-run-f4c3568b", "n".repeat(48))),
    ] {
        let name = JobNames { owner, format: None }.run_now(value);
        assert_eq!(name, expected);
        assert!(name.len() <= 63, "{name} is the value of a label");
    }
    let names = JobNames {
        owner: "backup",
        format: HASHED,
    };
    assert_eq!(names.run_now("1"), "backup-736ef2ad-r340ca71c");
}

#[test]
fn minutes_are_only_in_names_of_the_owner() {
    for (job, expected) in [
        ("a-29552280", Some(MINUTES_AT_TEN)),
        ("a-a299e94a-t29552280", Some(MINUTES_AT_TEN)),
        ("a-a299e94b-t29552280", None),
        ("a-a299e94a-29552280", None),
        ("a-a299e94a-r29552280", None),
        ("a-a299e94a-t", None),
        ("a-a299e94at29552280", None),
        ("a-run-29552280", None),
        ("aa299e94a-t29552280", None),
        ("a-ä", None),
        ("a-ääääääää-t1", None),
        ("a", None),
    ] {
        assert_eq!(minutes("a", "default", job), expected, "{job}");
    }
}

#[test]
fn prefixes_give_the_schedules_that_may_use_a_name() {
    for (job, expected) in [
        ("a-29552280", &["a"][..]),
        ("a-run-340ca71c", &["a-run", "a"]),
        ("a-a299e94a-t29552280", &["a-a299e94a"]),
        ("a-a299e94a-r340ca71c", &["a-a299e94a"]),
        ("a-b-29552280", &["a-b"]),
        ("a-t1", &["a"]),
        ("a", &[]),
    ] {
        assert_eq!(prefixes(job), expected, "{job}");
    }
}

/// Checks test vectors that the authors of FNV published.
#[test]
fn hash_is_fnv_1a() {
    for (text, expected) in [("", 0x811c_9dc5), ("a", 0xe40c_292c), ("foobar", 0xbf9c_f968)] {
        assert_eq!(fnv1a(&[text.as_bytes()]), expected, "{text}");
    }
    assert_eq!(fnv1a(&[b"foo", b"", b"bar"]), fnv1a(&[b"foobar"]));
    assert_eq!(
        fnv1a(&[b"costarring"]),
        fnv1a(&[b"liquid"]),
        "other tests rely on this collision"
    );
}

/// Generates names of objects.
fn owners() -> impl Strategy<Value = String> {
    "[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?([.][a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?)?|a(-[0-9a-f]{8})?(-run|-t|-r)?"
}

proptest! {
    #[test]
    fn no_cronjob_creates_a_hashed_name(
        owner in owners(),
        cron_job in owners(),
        value in ".{0,9}",
        minutes in 0..100_000_000_i64,
    ) {
        let names = JobNames { owner: &owner, format: HASHED };
        let slot = Timestamp::from_second(60 * minutes).expect("the time is in range");
        for name in [names.scheduled("default", slot), names.run_now(&value)] {
            // A CronJob's names end with digits.
            let (_, last) = name.rsplit_once('-').expect("the name has a dash");
            prop_assert!(last.parse::<u64>().is_err(), "{name}");
            // The other format of a CronTab's names differs too.
            let others = JobNames { owner: &cron_job, format: None };
            prop_assert_ne!(&name, &others.run_now(&value));
            prop_assert!(name.len() <= 63 && !name.contains(".-"), "{name}");
        }
    }

    #[test]
    fn names_are_found_by_their_prefixes(
        owner in owners(),
        value in ".{0,9}",
        minutes in 0..100_000_000_i64,
        is_hashed: bool,
    ) {
        let names = JobNames { owner: &owner, format: is_hashed.then_some(JobNameFormat::Hashed) };
        let slot = Timestamp::from_second(60 * minutes).expect("the time is in range");
        for name in [names.scheduled("default", slot), names.run_now(&value)] {
            let found = prefixes(&name);
            prop_assert!(names.prefixes(["default"].into_iter()).iter().any(|prefix| found.contains(&&**prefix)), "{name}: {found:?}");
        }
        prop_assert_eq!(super::minutes(&owner, "default", &names.scheduled("default", slot)), Some(minutes));
    }
}
