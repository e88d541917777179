//! Random histories with known violations: the audit checker reports these violations and no
//! others.
//!
//! Each history is a sequence of changes in etcd, by replicas that hold the Lease and replicas that
//! do not. The log has the form of the apiserver's: a request's first line is anywhere before its
//! change, its second line is anywhere after it, and requests that change nothing are interspersed.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use proptest::prelude::*;

use super::{audit_checker, script};
use crate::audit::report::Write;

/// A step of a history.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The Lease gets another holder, or none.
    Lease(Option<usize>),
    /// A replica writes, and the response reports the revision.
    Write(usize),
    /// A replica deletes, and the response reports no revision.
    Delete(usize),
    /// A replica repeats a write, which changes nothing.
    Repeat(usize),
}

const PODS: [&str; 2] = ["a", "b"];

fn step() -> impl Strategy<Value = Step> {
    let pod = 0..PODS.len();
    prop_oneof![
        1 => proptest::option::of(pod.clone()).prop_map(Step::Lease),
        4 => pod.clone().prop_map(Step::Write),
        2 => pod.clone().prop_map(Step::Delete),
        1 => pod.prop_map(Step::Repeat),
    ]
}

/// A step, and the numbers of steps by which its first line is early and its second line is late.
type Timed = (Step, usize, usize);

#[derive(Default)]
struct Simulation {
    script: String,
    /// The step numbers of the legal writes.
    legal: BTreeSet<usize>,
    /// The step numbers of the illegal writes.
    illegal: BTreeSet<usize>,
    /// The illegal writes whose responses report their revision.
    reported: BTreeSet<usize>,
}

fn simulation(steps: &[Timed]) -> Simulation {
    let mut holder = None;
    let mut simulation = Simulation::default();
    // Each line with its time in thirds of a step, so that a change lies after first lines and
    // before second lines.
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut last_write = None;
    for (index, &(step, early, late)) in steps.iter().enumerate() {
        let revision = 100 + index as u64;
        let (begins, ends) = ((3 * index).saturating_sub(3 * early), 3 * index + 2 + 3 * late);
        let (request, outcome) = match step {
            Step::Lease(next) => {
                holder = next;
                let identity = next.map_or("-".to_owned(), |pod| format!("{}_{index}", PODS[pod]));
                (format!("admin lease {identity}"), format!("@{revision}"))
            }
            Step::Write(pod) => {
                last_write = Some((revision, ends));
                (format!("{} patch foos/{index}", PODS[pod]), format!("@{revision}"))
            }
            Step::Delete(pod) => (format!("{} delete foos/{index}", PODS[pod]), "gone".to_owned()),
            Step::Repeat(pod) => {
                // Repeat only a write that has completed, because the checker counts overlapping
                // requests both as writes.
                let Some((revision, _)) = last_write.filter(|(_, ended)| *ended < begins) else {
                    continue;
                };
                (format!("{} patch foos/{index}", PODS[pod]), format!("@{revision}"))
            }
        };
        if let Step::Write(pod) | Step::Delete(pod) = step {
            let is_legal = holder == Some(pod);
            let writes = if is_legal {
                &mut simulation.legal
            } else {
                &mut simulation.illegal
            };
            writes.insert(index);
            if !is_legal && matches!(step, Step::Write(_)) {
                simulation.reported.insert(index);
            }
        }
        lines.push((begins, format!("{index}> {request}")));
        lines.push((ends, format!("<{index} {outcome}")));
    }
    lines.sort_by_key(|(when, _)| *when);
    for (_, line) in lines {
        writeln!(simulation.script, "{line}").unwrap();
    }
    simulation
}

/// Returns the numbers of the steps of these writes.
fn steps_of<'a>(writes: impl Iterator<Item = &'a Write>) -> BTreeSet<usize> {
    writes.filter_map(|write| write.target.name.parse().ok()).collect()
}

proptest! {
    #[test]
    fn the_checker_reports_every_illegal_write_and_no_legal_one(
        steps in proptest::collection::vec((step(), 0_usize..4, 0_usize..4), 1..60)
    ) {
        let simulation = simulation(&steps);
        let report = audit_checker().check(&script::log(&simulation.script)).unwrap();
        let violations = steps_of(report.violations.iter().map(|violation| &violation.write));
        let undecided = steps_of(report.undecided.iter());
        prop_assert!(violations.is_subset(&simulation.illegal), "{}\n{report}", simulation.script);
        prop_assert!(violations.is_superset(&simulation.reported), "{}\n{report}", simulation.script);
        let reported_or_undecided: BTreeSet<_> = violations.union(&undecided).copied().collect();
        prop_assert!(reported_or_undecided.is_superset(&simulation.illegal), "{}\n{report}", simulation.script);
        let counted: usize = report.terms.iter().map(|term| term.writes.count).sum();
        prop_assert_eq!(counted, simulation.legal.difference(&undecided).count(), "{}\n{}", simulation.script, report);
    }

    #[test]
    fn sequential_requests_are_never_undecided(steps in proptest::collection::vec(step(), 1..60)) {
        let steps: Vec<Timed> = steps.into_iter().map(|step| (step, 0, 0)).collect();
        let simulation = simulation(&steps);
        let report = audit_checker().check(&script::log(&simulation.script)).unwrap();
        prop_assert!(report.undecided.is_empty(), "{}\n{report}", simulation.script);
        let violations = steps_of(report.violations.iter().map(|violation| &violation.write));
        prop_assert_eq!(violations, simulation.illegal);
    }
}
