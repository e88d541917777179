//! The table of sights and of the plans for them, each after the one before was carried out.

use expect_test::{ExpectFile, expect_file};
use portreeve_reconcile::{Effect, Next, Plan};

use super::{
    samples::{Sample, clock, readable},
    sights::{Sights, common, of_a_cronjob, of_a_crontab},
};
use crate::{cronjob::SeenCronJob, crontab::SeenCronTab};

fn brief(effect: &Effect) -> String {
    match effect {
        Effect::Create(object) => format!("create {}", readable(&object.key.name)),
        Effect::PatchStatus { .. } => "status".to_owned(),
        Effect::Delete { target, .. } => format!("delete {}", readable(&target.key.name)),
        Effect::Absent { key, .. } => format!("no {}?", readable(&key.name)),
        Effect::Event(_, note) => note.reason.to_owned(),
        Effect::Count { by, .. } => format!("count {by}"),
        Effect::Lag { since, .. } => format!("lag since {}", clock(*since)),
        Effect::Apply { .. } | Effect::Present { .. } => panic!("no schedule needs {effect}"),
    }
}

/// The effects, and when it is decided again.
fn line(plan: &Plan) -> String {
    let effects: Vec<_> = plan.effects.iter().map(brief).collect();
    let next = match plan.next {
        Next::OnChange => "-".to_owned(),
        Next::At(time) => clock(time),
    };
    format!("    {} [{next}]\n", effects.join(", "))
}

/// Each plan until there is nothing to do.
fn table<K: Sample>(sights: Sights<K>) -> String {
    let mut table = String::new();
    for (case, mut world) in sights {
        table += case;
        table += "\n";
        for round in 0..12 {
            world.sync();
            let plan = world.plan();
            let is_busy = world.step();
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

fn check<K: Sample>(sights: Sights<K>, expected: &ExpectFile) {
    expected.assert_eq(&table(sights));
}

#[test]
fn each_sight_of_a_crontab_has_its_plans() {
    check::<SeenCronTab>(common(), &expect_file!["plans/crontab.txt"]);
    check(of_a_crontab(), &expect_file!["plans/crontab-alone.txt"]);
}

#[test]
fn each_sight_of_a_cronjob_has_its_plans() {
    check::<SeenCronJob>(common(), &expect_file!["plans/cronjob.txt"]);
    check(of_a_cronjob(), &expect_file!["plans/cronjob-alone.txt"]);
}
