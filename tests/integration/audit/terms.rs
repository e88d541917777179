//! The history of a Lease: its holders, and the revisions of their terms.

use std::fmt;

use anyhow::{Result, ensure};
use jiff::{SignedDuration, Timestamp};

use super::Revision;
use super::checker::GuardedLease;
use super::report::{Write, WriteRevision};
use super::request::{Outcome, Request};

/// One change of the Lease.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) revision: Revision,
    /// The holder from this revision on. Empty for nobody.
    pub(crate) holder: String,
    received: Timestamp,
    completed: Timestamp,
}

/// The uninterrupted time of a holder.
#[derive(Clone, Debug)]
pub(crate) struct Term {
    /// The Lease, as `namespace/name`.
    pub(crate) lease: String,
    /// The identity: `<pod>_<uuid>`.
    pub(crate) holder: String,
    /// The revision at which the holder acquired the Lease.
    pub(crate) first: Revision,
    /// The revision at which the Lease named another holder or nobody.
    pub(crate) last: Option<Revision>,
    /// When the apiserver had stored the acquisition.
    pub(crate) acquired: Timestamp,
    /// When the apiserver received the last renewal. A release is not a renewal.
    pub(crate) renewed: Timestamp,
    /// When the apiserver had stored another holder or nobody.
    pub(crate) ended: Option<Timestamp>,
    /// Whether the Lease named nobody after this term.
    pub(crate) is_released: bool,
    /// The legal writes of the holder.
    pub(crate) writes: Writes,
}

/// The number and times of a term's writes, for measurements only.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writes {
    pub(crate) count: usize,
    /// When the apiserver received the first write.
    pub(crate) first: Option<Timestamp>,
    /// When the apiserver responded to the last write.
    pub(crate) last: Option<Timestamp>,
    /// The lowest revision of the writes.
    pub(crate) first_revision: Option<Revision>,
    /// The longest time from a renewal to a write before the next renewal.
    pub(crate) longest_since_renewal: SignedDuration,
}

impl Term {
    /// Returns the holder's pod.
    pub(crate) fn pod(&self) -> &str {
        pod(&self.holder)
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            lease,
            holder,
            first,
            last,
            is_released,
            writes,
            ..
        } = self;
        let end = last.map_or("now".to_owned(), |last| last.to_string());
        let how = if *is_released { " (released)" } else { "" };
        write!(
            f,
            "{lease}: {holder} from {first} to {end}{how}, {} writes",
            writes.count
        )
    }
}

/// Returns the pod's name in an identity: everything before the last `_`.
pub(crate) fn pod(identity: &str) -> &str {
    identity.rsplit_once('_').map_or(identity, |(pod, _)| pod)
}

/// Every change of one Lease, in order.
#[derive(Debug)]
pub(crate) struct History(Vec<Change>);

impl History {
    /// Collects the changes of a Lease.
    ///
    /// # Errors
    /// Returns an error when the Lease was deleted, because its holder is then undefined.
    pub(crate) fn of(guarded: &GuardedLease, requests: &[Request]) -> Result<Self> {
        let of_lease = requests
            .iter()
            .filter(|request| !request.is_dry_run && guarded.matches(&request.target));
        let mut changes = Vec::new();
        for request in of_lease {
            let is_deletion = matches!(request.outcome, Outcome::NoRevision { .. });
            ensure!(
                !is_deletion,
                "the Lease {guarded} was deleted at line {}",
                request.received.line
            );
            if let (Outcome::Stored { revision, holder }, Some(completed)) = (&request.outcome, request.completed) {
                changes.push(Change {
                    revision: *revision,
                    holder: holder.clone(),
                    received: request.received.at,
                    completed: completed.at,
                });
            }
        }
        // Of requests that report the same revision, all but one changed nothing.
        changes.sort_by_key(|change| (change.revision, change.received));
        changes.dedup_by_key(|change| change.revision);
        Ok(Self(changes))
    }

    /// Returns the last change before a write for every revision that the write can have: one
    /// change when the revision is known. `None` means the time before the first change.
    pub(crate) fn last_before(&self, revision: WriteRevision) -> Vec<Option<&Change>> {
        let (after, before) = match revision {
            WriteRevision::At(revision) => (revision.saturating_sub(1), revision.saturating_add(1)),
            WriteRevision::Between(after, before) => (after, before.unwrap_or(Revision::MAX)),
        };
        let starts = std::iter::once(None).chain(self.0.iter().map(Some));
        let ends = self.0.iter().map(|change| change.revision).chain([Revision::MAX]);
        let periods = starts.zip(ends);
        // Each revision belongs to one change, so a period without a free revision contains no
        // write.
        let has_room = |(start, end): &(Option<&Change>, Revision)| {
            let start = start.map_or(0, |change| change.revision);
            start.max(after).saturating_add(1) < before.min(*end)
        };
        periods.filter(has_room).map(|(start, _)| start).collect()
    }

    /// Returns the terms of the history, without their writes.
    pub(crate) fn terms(&self, guarded: &GuardedLease) -> Vec<Term> {
        let mut terms: Vec<Term> = Vec::new();
        for change in &self.0 {
            let mut present = terms.last_mut().filter(|term| term.last.is_none());
            if let Some(term) = &mut present {
                if term.holder == change.holder {
                    term.renewed = change.received;
                    continue;
                }
                term.last = Some(change.revision);
                term.ended = Some(change.completed);
                term.is_released = change.holder.is_empty();
            }
            if !change.holder.is_empty() {
                terms.push(Term {
                    lease: guarded.to_string(),
                    holder: change.holder.clone(),
                    first: change.revision,
                    last: None,
                    acquired: change.completed,
                    renewed: change.received,
                    ended: None,
                    is_released: false,
                    writes: Writes::default(),
                });
            }
        }
        terms
    }
}

impl Writes {
    /// Counts a write that follows this renewal of the Lease.
    pub(crate) fn count(&mut self, write: &Write, renewal: &Change) {
        self.count += 1;
        self.first = self.first.into_iter().chain([write.received.at]).min();
        self.last = self.last.into_iter().chain([write.completed.at]).max();
        if let WriteRevision::At(revision) = write.revision {
            self.first_revision = self.first_revision.into_iter().chain([revision]).min();
        }
        let since = write.received.at.duration_since(renewal.received);
        self.longest_since_renewal = self.longest_since_renewal.max(since);
    }
}
