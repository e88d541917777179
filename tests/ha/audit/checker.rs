//! The judgement.

use std::fmt;

use anyhow::Result;

use super::Revision;
use super::bounds::Bounds;
use super::report::{Refused, Report, Violation, Write, WriteRevision};
use super::request::{Outcome, Request, Target, requests};
use super::terms::{History, Term, pod};

/// Who may write what.
#[derive(Clone, Debug)]
pub(crate) struct AuditChecker {
    /// Who sends for each replica (a user, or `<user>/<pod>` when its token is bound to a Pod), and the pod that its identities begin
    /// with.
    pub(crate) replicas: Vec<(String, String)>,
    /// The Leases. A request belongs to the first that guards its component; what none guards is a violation.
    pub(crate) leases: Vec<GuardedLease>,
}

/// One Lease and what it guards.
#[derive(Clone, Debug)]
pub(crate) struct GuardedLease {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The controllers, by the last word of their user agent; none for all.
    pub(crate) components: Vec<String>,
}

impl GuardedLease {
    /// Whether this is the Lease that a request is about.
    pub(crate) fn is(&self, target: &Target) -> bool {
        let is_lease = (&*target.group, &*target.resource) == ("coordination.k8s.io", "leases");
        is_lease && target.namespace == self.namespace && target.name == self.name
    }
}

impl fmt::Display for GuardedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A Lease whose writes are being checked.
struct LeaseCheck {
    lease: String,
    history: History,
    terms: Vec<Term>,
}

impl AuditChecker {
    /// Judges a log of whole lines.
    ///
    /// What is proved of each write of a replica's that was answered with success, Leases, Events and reviews aside:
    ///
    /// - If the answer carries the write's revision: the last change of the Lease before it names the replica.
    /// - If it carries none, as for most deletions: the replica held the Lease at every revision that it can have had, or at none (a
    ///   violation), or the log does not tell (undecided).
    /// - If it carries a revision that was known before the request came: it changed nothing, and nothing is judged.
    ///
    /// Nothing is proved of requests that were answered with 5xx or never, and two processes of one pod are not told apart.
    ///
    /// # Errors
    /// When the log cannot be read, or one of the Leases was deleted.
    pub(crate) fn check(&self, log: &str) -> Result<Report> {
        let requests = requests(log)?;
        let bounds = Bounds::of(&requests);
        let lease_checks = self.leases.iter().map(|guarded| {
            let history = History::of(guarded, &requests)?;
            let terms = history.terms(guarded);
            anyhow::Ok(LeaseCheck {
                lease: guarded.to_string(),
                history,
                terms,
            })
        });
        let mut lease_checks = lease_checks.collect::<Result<Vec<_>>>()?;
        let mut report = Report::default();
        for request in requests.iter().filter(|request| !is_set_aside(request)) {
            let Some((_, pod)) = self.replicas.iter().find(|(sender, _)| *sender == request.sender) else {
                continue;
            };
            let guarded = self
                .leases
                .iter()
                .position(|lease| lease.components.is_empty() || lease.components.contains(&request.component));
            let lease_check = guarded.and_then(|place| lease_checks.get_mut(place));
            check_request(request, pod, &bounds, lease_check, &mut report);
        }
        let lease_conflicts = |request: &&Request| {
            let is_guarded = self.leases.iter().any(|guarded| guarded.is(&request.target));
            is_guarded && request.answer == Outcome::Refused { code: 409 }
        };
        report.lease_conflicts = requests.iter().filter(lease_conflicts).count();
        report.terms = lease_checks
            .into_iter()
            .flat_map(|lease_check| lease_check.terms)
            .collect();
        report.date();
        Ok(report)
    }
}

/// What every replica may write at any time.
fn is_set_aside(request: &Request) -> bool {
    let resource = request.target.resource.as_str();
    ["events", "leases"].contains(&resource) || resource.ends_with("reviews")
}

fn check_request(
    request: &Request,
    pod: &str,
    bounds: &Bounds,
    lease_check: Option<&mut LeaseCheck>,
    report: &mut Report,
) {
    let tally = report.replicas.entry(pod.to_owned()).or_default();
    if request.is_dry_run {
        tally.dry_runs += 1;
        return;
    }
    let Some(answered) = request.answered else {
        tally.unknown += 1;
        return;
    };
    let came = request.received.line;
    let place = match request.answer {
        Outcome::Unknown { .. } => {
            tally.unknown += 1;
            return;
        }
        Outcome::Refused { code } => {
            tally.refused += 1;
            report.refused.push(Refused {
                line: answered.line,
                pod: pod.to_owned(),
                component: request.component.clone(),
                verb: request.verb.clone(),
                target: request.target.clone(),
                code,
            });
            return;
        }
        Outcome::Stored { revision, .. } if bounds.was_reported(revision, came) => {
            tally.unchanged += 1;
            return;
        }
        Outcome::Stored { revision, .. } => WriteRevision::At(revision),
        Outcome::NoRevision { after } => {
            WriteRevision::Between(after.max(bounds.before(came)), bounds.after(answered.line))
        }
    };
    tally.written += 1;
    let write = Write {
        received: request.received,
        answered,
        pod: pod.to_owned(),
        component: request.component.clone(),
        verb: request.verb.clone(),
        target: request.target.clone(),
        place,
    };
    match lease_check {
        Some(lease_check) => lease_check.decide(write, report),
        None => report.violations.push(Violation {
            write,
            lease: String::new(),
            holder: String::new(),
            since: 0,
            after_first: None,
        }),
    }
}

impl LeaseCheck {
    /// Decides on a write that was done.
    fn decide(&mut self, write: Write, report: &mut Report) {
        let changes = self.history.last_before(write.place);
        let held = changes.iter().copied().flatten();
        let rightful = held.filter(|change| pod(&change.holder) == write.pod).count();
        let last = changes.last().copied().flatten();
        match last {
            Some(last) if rightful == changes.len() => {
                let term = self.terms.iter_mut().rev().find(|term| term.first <= last.revision);
                if let Some(term) = term {
                    term.writes.count(&write, last);
                }
            }
            _ if rightful > 0 => report.undecided.push(write),
            last => report.violations.push(Violation {
                write,
                lease: self.lease.clone(),
                holder: last.map(|change| change.holder.clone()).unwrap_or_default(),
                since: last.map_or(0, |change| change.revision),
                after_first: None,
            }),
        }
    }
}

impl Report {
    /// Says of each violation how much later than the rightful holder's first write it came.
    fn date(&mut self) {
        for violation in &mut self.violations {
            let since = violation.since;
            let term = self.terms.iter().find(|term| {
                term.lease == violation.lease && term.first <= since && term.last.is_none_or(|last| since < last)
            });
            let Some(writes) = term.map(|term| &term.writes) else {
                continue;
            };
            let highest: Option<Revision> = match violation.write.place {
                WriteRevision::At(revision) => Some(revision),
                WriteRevision::Between(_, before) => before,
            };
            let is_earlier = writes
                .first_revision
                .is_none_or(|first| highest.is_some_and(|highest| highest < first));
            if !is_earlier {
                violation.after_first = writes
                    .first
                    .map(|first| violation.write.received.at.duration_since(first));
            }
        }
    }
}
