//! The audit checker under test: logs with and without violations. `model` generates most of them,
//! and `audit_log` has the kinds of writes of a real apiserver.

mod effects;
mod model;
mod script;

use expect_test::{Expect, expect};
use jiff::SignedDuration;

use crate::audit::{AuditChecker, GuardedLease};

/// Two replicas and one Lease.
fn audit_checker() -> AuditChecker {
    AuditChecker {
        replicas: ["a", "b"].map(|pod| (format!("user-{pod}"), pod.to_owned())).to_vec(),
        leases: vec![guarded("lock", &[])],
    }
}

fn guarded(name: &str, components: &[&str]) -> GuardedLease {
    GuardedLease {
        namespace: "system".to_owned(),
        name: name.to_owned(),
        components: components.iter().map(|&component| component.to_owned()).collect(),
    }
}

fn check(script: &str, expected: &Expect) {
    check_in(&audit_checker(), script, expected);
}

fn check_in(audit_checker: &AuditChecker, script: &str, expected: &Expect) {
    let verdict = match audit_checker.check(&script::log(script)) {
        Ok(report) => report.to_string(),
        Err(error) => format!("{error:#}\n"),
    };
    expected.assert_eq(&verdict);
}

#[test]
fn a_write_after_another_replica_took_the_lease_is_a_violation() {
    check(
        "a lease a_1 @10
         a create deployments/web @11
         b lease b_1 @12
         a create deployments/early @13
         b create deployments/first @14
         a create deployments/late @15",
        &expect![[r"
            system/lock: a_1 from 10 to 12, 1 writes
            system/lock: b_1 from 12 to now, 1 writes
            a: 3 written
            b: 1 written
            VIOLATION line 8: a (foo-controller): create deployments.apps system/early at 13, but b_1 held system/lock since 12; before its first write
            VIOLATION line 12: a (foo-controller): create deployments.apps system/late at 15, but b_1 held system/lock since 12; 2 ms after its first write
        "]],
    );
}

#[test]
fn a_deletion_that_overlaps_a_change_of_the_lease_is_undecided() {
    check(
        "a lease a_1 @10
         1> a delete deployments/one
         b lease b_1 @12
         <1 gone",
        &expect![[r"
            system/lock: a_1 from 10 to 12, 0 writes
            system/lock: b_1 from 12 to now, 0 writes
            a: 1 written
            UNDECIDED line 6: a (foo-controller): delete deployments.apps system/one after 10
        "]],
    );
}

#[test]
fn a_deletion_with_no_free_revision_in_another_term_is_decided() {
    // 11 is the only free revision, and it precedes the change of the Lease.
    check(
        "a lease a_1 @10
         1> a delete deployments/one
         b lease b_1 @12
         <1 gone
         b create deployments/two @13",
        &expect![[r"
            system/lock: a_1 from 10 to 12, 1 writes
            system/lock: b_1 from 12 to now, 1 writes
            a: 1 written
            b: 1 written
        "]],
    );
}

#[test]
fn two_overlapping_requests_with_the_same_revision_both_count_as_writes() {
    check(
        "a lease a_1 @10
         1> a patch deployments/web
         2> b patch deployments/web
         <2 @11
         <1 @11",
        &expect![[r"
            system/lock: a_1 from 10 to now, 1 writes
            a: 1 written
            b: 1 written
            VIOLATION line 5: b (foo-controller): patch deployments.apps system/web at 11, but a_1 held system/lock since 10; 1 ms after its first write
        "]],
    );
}

#[test]
fn rejected_unknown_and_dry_run_requests_are_counted_separately() {
    check(
        "a lease a_1 @10
         b create deployments/web 409
         b patch deployments/web 403
         b patch deployments/web 503
         b patch deployments/web panic
         b patch? deployments/web @10
         1> b patch deployments/web",
        &expect![[r"
            system/lock: a_1 from 10 to now, 0 writes
            b: 0 written, 2 rejected, 3 unknown, 1 dry runs
            rejected line 4: b (foo-controller): create deployments.apps system/web: 409
            rejected line 6: b (foo-controller): patch deployments.apps system/web: 403
        "]],
    );
}

#[test]
fn each_lease_guards_its_own_controllers() {
    let audit_checker = AuditChecker {
        leases: vec![
            guarded("lock", &["foo-controller"]),
            guarded("other", &["crontab-controller"]),
        ],
        ..audit_checker()
    };
    check_in(
        &audit_checker,
        "a lease a_1 @10
         b lease:other b_1 @11
         a/foo-controller create deployments/right @12
         b/crontab-controller create jobs/right @13
         a/crontab-controller create jobs/wrong @14
         b/foo-controller create deployments/wrong @15
         a/somebody-else create deployments/unguarded @16",
        &expect![[r"
            system/lock: a_1 from 10 to now, 1 writes
            system/other: b_1 from 11 to now, 1 writes
            a: 3 written
            b: 2 written
            VIOLATION line 10: a (crontab-controller): create jobs.apps system/wrong at 14, but b_1 held system/other since 11; 2 ms after its first write
            VIOLATION line 12: b (foo-controller): create deployments.apps system/wrong at 15, but a_1 held system/lock since 10; 6 ms after its first write
            VIOLATION line 14: a (somebody-else): create deployments.apps system/unguarded at 16, which no Lease guards
        "]],
    );
}

#[test]
fn check_returns_an_error_when_a_lease_is_deleted_or_the_log_is_incomplete() {
    check(
        "a lease a_1 @10\n admin delete leases/lock gone",
        &expect![[r"
        the Lease system/lock was deleted at line 3
    "]],
    );
    let whole = script::log("a lease a_1 @10");
    let completion = whole.lines().last().unwrap();
    let error = audit_checker().check(completion).unwrap_err();
    expect!["line 1 completes a request that the log does not contain"].assert_eq(&format!("{error:#}"));
    let half = &whole[..whole.len() - 10];
    assert!(audit_checker().check(half).is_err());
}

#[test]
fn times_are_measured_from_the_request_to_the_response() {
    // The lines are a millisecond apart.
    let report = audit_checker().check(&script::log(
        "a lease a_1 @10
         a create deployments/one @11
         a lease a_1 @12
         1> a create deployments/two
         a create deployments/three @13
         <1 @14
         b lease b_1 @15
         b create deployments/four @16",
    ));
    let report = report.unwrap();
    let longest: Vec<_> = report
        .terms
        .iter()
        .map(|term| term.writes.longest_since_renewal.as_millis())
        .collect();
    assert_eq!(longest, [3, 2]);
    assert_eq!(report.gaps(), [SignedDuration::from_millis(3)]);
}
