//! The result of the audit checker.

use std::collections::BTreeMap;
use std::fmt;

use jiff::SignedDuration;

use super::Revision;
use super::request::{LogPosition, Target};
use super::terms::Term;

/// The result of checking one log.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// The requests of each replica, by pod.
    pub(crate) replicas: BTreeMap<String, WriteCounts>,
    /// The terms of all Leases. Those of one Lease are in order.
    pub(crate) terms: Vec<Term>,
    /// Writes whose sender did not hold the Lease. Empty if the fence works.
    pub(crate) violations: Vec<Violation>,
    /// Writes without a revision that the log proves neither legal nor illegal.
    pub(crate) undecided: Vec<Write>,
    /// Rejected requests, in the order in which they were received.
    pub(crate) rejected: Vec<Rejected>,
    /// Changes of a Lease that were rejected because another candidate had changed it first.
    pub(crate) lease_conflicts: usize,
}

/// The numbers of requests that a replica sent, except for Leases, Events and reviews.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct WriteCounts {
    /// Requests that changed something.
    pub(crate) written: usize,
    /// Requests that succeeded and changed nothing.
    pub(crate) unchanged: usize,
    /// Requests that the apiserver rejected with 4xx. They changed nothing.
    pub(crate) rejected: usize,
    /// Requests without a response, or with 5xx. Their effect is unknown, and the checker does not
    /// check them.
    pub(crate) unknown: usize,
    /// Dry runs.
    pub(crate) dry_runs: usize,
}

/// A write and its position in etcd's order.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) received: LogPosition,
    pub(crate) completed: LogPosition,
    pub(crate) pod: String,
    pub(crate) component: String,
    pub(crate) verb: String,
    pub(crate) target: Target,
    pub(crate) revision: WriteRevision,
}

/// The position of a write in etcd's order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WriteRevision {
    At(Revision),
    /// After the first revision, and before the second if it is known.
    Between(Revision, Option<Revision>),
}

/// A write by a replica that did not hold the Lease.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) write: Write,
    /// The Lease that guards the write, as `namespace/name`. Empty when no Lease guards its
    /// component.
    pub(crate) lease: String,
    /// The holder of the Lease. Empty when nobody held it.
    pub(crate) holder: String,
    /// The revision of the Lease's change that names the holder.
    pub(crate) since: Revision,
    /// The time from the holder's first write to this one. `None` when this write precedes that
    /// one in etcd's order.
    pub(crate) after_first: Option<SignedDuration>,
}

/// A request that the apiserver rejected.
#[derive(Clone, Debug)]
pub(crate) struct Rejected {
    pub(crate) line: usize,
    pub(crate) pod: String,
    pub(crate) component: String,
    pub(crate) verb: String,
    pub(crate) target: Target,
    pub(crate) code: u16,
}

impl Report {
    /// Returns the number of violations after the rightful holder's first write, which a fence on
    /// the server must prevent.
    pub(crate) fn late_writes(&self) -> usize {
        self.violations.iter().filter(|it| it.after_first.is_some()).count()
    }

    /// Returns each term with the next term of the same Lease.
    pub(crate) fn successions(&self) -> impl Iterator<Item = (&Term, &Term)> {
        let pairs = self.terms.iter().zip(self.terms.iter().skip(1));
        pairs.filter(|(former, next)| former.lease == next.lease)
    }

    /// Returns the times between the last write of a term and the first write of the next, when
    /// both terms have writes.
    pub(crate) fn gaps(&self) -> Vec<SignedDuration> {
        self.successions()
            .filter_map(|(former, next)| Some(next.writes.first?.duration_since(former.writes.last?)))
            .collect()
    }

    /// Returns whether the log proves every write legal.
    pub(crate) fn is_clean(&self) -> bool {
        self.violations.is_empty() && self.undecided.is_empty()
    }
}

impl fmt::Display for WriteRevision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(revision) => write!(f, "at {revision}"),
            Self::Between(after, None) => write!(f, "after {after}"),
            Self::Between(after, Some(before)) => write!(f, "between {after} and {before}"),
        }
    }
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            received: _,
            completed,
            pod,
            component,
            verb,
            target,
            revision,
        } = self;
        let line = completed.line;
        write!(f, "line {line}: {pod} ({component}): {verb} {target} {revision}")
    }
}

impl fmt::Display for WriteCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            written,
            unchanged,
            rejected,
            unknown,
            dry_runs,
        } = self;
        write!(f, "{written} written")?;
        let others = [
            (unchanged, "unchanged"),
            (rejected, "rejected"),
            (unknown, "unknown"),
            (dry_runs, "dry runs"),
        ];
        for (count, what) in others.into_iter().filter(|(count, _)| **count > 0) {
            write!(f, ", {count} {what}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            write,
            lease,
            holder,
            since,
            after_first,
        } = self;
        if lease.is_empty() {
            return write!(f, "{write}, which no Lease guards");
        }
        let holder = if holder.is_empty() { "nobody" } else { holder };
        write!(f, "{write}, but {holder} held {lease} since {since}; ")?;
        match after_first {
            Some(after) => write!(f, "{} ms after its first write", after.as_millis()),
            None => write!(f, "before its first write"),
        }
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            line,
            pod,
            component,
            verb,
            target,
            code,
        } = self;
        write!(f, "line {line}: {pod} ({component}): {verb} {target}: {code}")
    }
}

impl fmt::Display for Report {
    /// Writes every detail, so that a failed test can be diagnosed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            replicas,
            terms,
            violations,
            undecided,
            rejected,
            lease_conflicts,
        } = self;
        for term in terms {
            writeln!(f, "{term}")?;
        }
        for (pod, tally) in replicas {
            writeln!(f, "{pod}: {tally}")?;
        }
        for violation in violations {
            writeln!(f, "VIOLATION {violation}")?;
        }
        for write in undecided {
            writeln!(f, "UNDECIDED {write}")?;
        }
        for rejected in rejected {
            writeln!(f, "rejected {rejected}")?;
        }
        if *lease_conflicts > 0 {
            writeln!(f, "{lease_conflicts} conflicting changes of a Lease")?;
        }
        Ok(())
    }
}
