//! Compares the plans of every case with snapshots, until the case has converged.

use expect_test::{ExpectFile, expect_file};
use portreeve_reconcile::{Effect, Next, Plan};

use super::{
    cases::{Cases, common_cases, cronjob_only, crontab_only},
    samples::{Sample, clock, readable},
};
use crate::{cronjob::CachedCronJob, crontab::CachedCronTab};

fn brief(effect: &Effect) -> String {
    match effect {
        Effect::Create(object) => format!("create {}", readable(&object.key.name)),
        Effect::PatchStatus { .. } | Effect::Replace { .. } => "status".to_owned(),
        Effect::Delete { target, .. } => format!("delete {}", readable(&target.key.name)),
        Effect::RequireAbsent { key, .. } => format!("no {}?", readable(&key.name)),
        Effect::Read { key, .. } => format!("read {}", readable(&key.name)),
        Effect::Event(_, note) => note.reason.to_owned(),
        Effect::Count { by, .. } => format!("count {by}"),
        Effect::ObserveLatency { since, .. } => format!("lag since {}", clock(*since)),
        Effect::Apply { .. } | Effect::RequirePresent { .. } | Effect::List { .. } => {
            panic!("no schedule needs {effect}")
        }
    }
}

/// Formats the effects of a plan and the time of the next decision.
fn line(plan: &Plan) -> String {
    let effects: Vec<_> = plan.effects.iter().map(brief).collect();
    let next = match plan.next {
        Next::OnChange => "-".to_owned(),
        Next::At(time) => clock(time),
    };
    format!("    {} [{next}]\n", effects.join(", "))
}

/// Formats the plans of each case until there is nothing to do.
fn table<K: Sample>(cases: Cases<K>) -> String {
    let mut table = String::new();
    for (case, mut simulation) in cases {
        table += case;
        table += "\n";
        for round in 0..12 {
            simulation.sync();
            let plan = simulation.plan();
            let is_busy = simulation.step();
            if is_busy || round == 0 {
                table += &line(&plan);
            }
            if !is_busy {
                break;
            }
        }
    }
    table
}

fn check<K: Sample>(cases: Cases<K>, expected: &ExpectFile) {
    expected.assert_eq(&table(cases));
}

#[test]
fn every_crontab_case_has_the_expected_plans() {
    check::<CachedCronTab>(common_cases(), &expect_file!["plans/crontab.txt"]);
    check(crontab_only(), &expect_file!["plans/crontab-alone.txt"]);
}

#[test]
fn every_cronjob_case_has_the_expected_plans() {
    check::<CachedCronJob>(common_cases(), &expect_file!["plans/cronjob.txt"]);
    check(cronjob_only(), &expect_file!["plans/cronjob-alone.txt"]);
}
