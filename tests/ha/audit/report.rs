//! What the judge found.

use std::collections::BTreeMap;
use std::fmt;

use jiff::SignedDuration;

use super::Revision;
use super::request::{LogPosition, Target};
use super::terms::Term;

/// The outcome of one run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// What each replica asked for, by its pod.
    pub(crate) replicas: BTreeMap<String, WriteCounts>,
    /// The terms of all Leases; those of one Lease in order.
    pub(crate) terms: Vec<Term>,
    /// Writes whose sender did not hold the Lease: none, if the fence holds.
    pub(crate) violations: Vec<Violation>,
    /// Writes without a revision of which the log does not prove that they were right, nor that they were wrong.
    pub(crate) undecided: Vec<Write>,
    /// Refused requests, in the order in which they came.
    pub(crate) refused: Vec<Refused>,
    /// Changes of a Lease that came too late: another candidate had changed it first.
    pub(crate) lease_conflicts: usize,
}

/// How many requests a replica sent, Leases, Events and reviews aside.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct WriteCounts {
    /// That changed something.
    pub(crate) written: usize,
    /// That were granted and changed nothing.
    pub(crate) unchanged: usize,
    /// 4xx: they changed nothing.
    pub(crate) refused: usize,
    /// 5xx, or no answer: nobody knows, and the checker proves nothing of them.
    pub(crate) unknown: usize,
    /// Asked for show.
    pub(crate) dry_runs: usize,
}

/// A write, and where it is in etcd's order.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) received: LogPosition,
    pub(crate) answered: LogPosition,
    pub(crate) pod: String,
    pub(crate) component: String,
    pub(crate) verb: String,
    pub(crate) target: Target,
    pub(crate) place: WriteRevision,
}

/// Where in etcd's order a write is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WriteRevision {
    At(Revision),
    /// After the first, and before the second if there is one.
    Between(Revision, Option<Revision>),
}

/// A write by somebody who did not hold the Lease.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) write: Write,
    /// The Lease that it needed, as `namespace/name`; empty when there is none for its component.
    pub(crate) lease: String,
    /// Who held it; empty for nobody.
    pub(crate) holder: String,
    /// The revision of the change of the Lease that says so.
    pub(crate) since: Revision,
    /// How much later it came than the first write of whoever held the Lease, by the clock; nothing when it is earlier in etcd's
    /// order.
    pub(crate) after_first: Option<SignedDuration>,
}

/// A request that was refused.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) line: usize,
    pub(crate) pod: String,
    pub(crate) component: String,
    pub(crate) verb: String,
    pub(crate) target: Target,
    pub(crate) code: u16,
}

impl Report {
    /// How many writes came after the first one of the rightful holder's: what a fence on the server has to prevent.
    pub(crate) fn late_writes(&self) -> usize {
        self.violations.iter().filter(|it| it.after_first.is_some()).count()
    }

    /// Each term with the next one of the same Lease.
    pub(crate) fn successions(&self) -> impl Iterator<Item = (&Term, &Term)> {
        let pairs = self.terms.iter().zip(self.terms.iter().skip(1));
        pairs.filter(|(former, next)| former.lease == next.lease)
    }

    /// The pauses between the last write of one term and the first of the next, where both wrote something.
    pub(crate) fn gaps(&self) -> Vec<SignedDuration> {
        self.successions()
            .filter_map(|(former, next)| Some(next.writes.first?.duration_since(former.writes.last?)))
            .collect()
    }

    /// Whether it is proved that every write was its sender's to send.
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
            answered,
            pod,
            component,
            verb,
            target,
            place,
        } = self;
        let line = answered.line;
        write!(f, "line {line}: {pod} ({component}): {verb} {target} {place}")
    }
}

impl fmt::Display for WriteCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            written,
            unchanged,
            refused,
            unknown,
            dry_runs,
        } = self;
        write!(f, "{written} written")?;
        let others = [
            (unchanged, "unchanged"),
            (refused, "refused"),
            (unknown, "unknown"),
            (dry_runs, "for show"),
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

impl fmt::Display for Refused {
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
    /// All that is needed to see why.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            replicas,
            terms,
            violations,
            undecided,
            refused,
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
        for refused in refused {
            writeln!(f, "refused {refused}")?;
        }
        if *lease_conflicts > 0 {
            writeln!(f, "{lease_conflicts} changes of a Lease came second")?;
        }
        Ok(())
    }
}
