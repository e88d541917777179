//! Decides which writes were legal.

use std::fmt;

use anyhow::Result;

use super::Revision;
use super::bounds::Bounds;
use super::report::{Rejected, Report, Violation, Write, WriteRevision};
use super::request::{Outcome, Request, Target, requests};
use super::terms::{History, Term, pod};

/// The senders of the replicas, and the Leases that guard their writes.
#[derive(Clone, Debug)]
pub(crate) struct AuditChecker {
    /// The sender of each replica (a user, or `<user>/<pod>` when its token is bound to a Pod), and
    /// the pod that its identities begin with.
    pub(crate) replicas: Vec<(String, String)>,
    /// The Leases. The first that guards a request's component applies; a write that no Lease
    /// guards is a violation.
    pub(crate) leases: Vec<GuardedLease>,
}

/// A Lease and the controllers that it guards.
#[derive(Clone, Debug)]
pub(crate) struct GuardedLease {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The controllers, by the last word of their user agent. Empty for all.
    pub(crate) components: Vec<String>,
}

impl GuardedLease {
    /// Returns whether a request targets this Lease.
    pub(crate) fn matches(&self, target: &Target) -> bool {
        let is_lease = (&*target.group, &*target.resource) == ("coordination.k8s.io", "leases");
        is_lease && target.namespace == self.namespace && target.name == self.name
    }
}

impl fmt::Display for GuardedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The state of the check of one Lease.
struct LeaseCheck {
    lease: String,
    history: History,
    terms: Vec<Term>,
}

impl AuditChecker {
    /// Checks a log of complete lines.
    ///
    /// It decides on every successful write of a replica, except of Leases, Events and reviews:
    ///
    /// - The response carries the write's revision: the write is legal if the last change of the
    ///   Lease before it names the replica.
    /// - The response carries no revision, as for most deletions: the write is legal if the replica
    ///   held the Lease at every revision that the write can have, a violation if it held the Lease
    ///   at none, and undecided otherwise.
    /// - The response carries a revision that was reported before the request was received: the
    ///   request changed nothing, and is not checked.
    ///
    /// Requests without a response, or with 5xx, are not checked. Two processes of one pod are not
    /// distinguished.
    ///
    /// # Errors
    /// Returns an error when the log cannot be parsed, or when one of the Leases was deleted.
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
        for request in requests.iter().filter(|request| !is_exempt(request)) {
            let Some((_, pod)) = self.replicas.iter().find(|(sender, _)| *sender == request.sender) else {
                continue;
            };
            let guarded = self
                .leases
                .iter()
                .position(|lease| lease.components.is_empty() || lease.components.contains(&request.component));
            let lease_check = guarded.and_then(|index| lease_checks.get_mut(index));
            check_request(request, pod, &bounds, lease_check, &mut report);
        }
        let lease_conflicts = |request: &&Request| {
            let is_guarded = self.leases.iter().any(|guarded| guarded.matches(&request.target));
            is_guarded && request.outcome == Outcome::Rejected { code: 409 }
        };
        report.lease_conflicts = requests.iter().filter(lease_conflicts).count();
        report.terms = lease_checks
            .into_iter()
            .flat_map(|lease_check| lease_check.terms)
            .collect();
        report.measure_violations();
        Ok(report)
    }
}

/// Returns whether any replica may send this request at any time.
fn is_exempt(request: &Request) -> bool {
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
    let Some(completed) = request.completed else {
        tally.unknown += 1;
        return;
    };
    let received = request.received.line;
    let revision = match request.outcome {
        Outcome::Unknown { .. } => {
            tally.unknown += 1;
            return;
        }
        Outcome::Rejected { code } => {
            tally.rejected += 1;
            report.rejected.push(Rejected {
                line: completed.line,
                pod: pod.to_owned(),
                component: request.component.clone(),
                verb: request.verb.clone(),
                target: request.target.clone(),
                code,
            });
            return;
        }
        Outcome::Stored { revision, .. } if bounds.was_reported(revision, received) => {
            tally.unchanged += 1;
            return;
        }
        Outcome::Stored { revision, .. } => WriteRevision::At(revision),
        Outcome::NoRevision { after } => {
            WriteRevision::Between(after.max(bounds.before(received)), bounds.after(completed.line))
        }
    };
    tally.written += 1;
    let write = Write {
        received: request.received,
        completed,
        pod: pod.to_owned(),
        component: request.component.clone(),
        verb: request.verb.clone(),
        target: request.target.clone(),
        revision,
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
    /// Decides whether a successful write was legal.
    fn decide(&mut self, write: Write, report: &mut Report) {
        let changes = self.history.last_before(write.revision);
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
    /// Sets the time from the rightful holder's first write to each violation.
    fn measure_violations(&mut self) {
        for violation in &mut self.violations {
            let since = violation.since;
            let term = self.terms.iter().find(|term| {
                term.lease == violation.lease && term.first <= since && term.last.is_none_or(|last| since < last)
            });
            let Some(writes) = term.map(|term| &term.writes) else {
                continue;
            };
            let highest: Option<Revision> = match violation.write.revision {
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
