//! Bounds for the revisions of requests whose responses carry none. Such a revision is higher than
//! every revision that was reported before the request was received, and lower than those of
//! requests that were received after its response.
//!
//! The bounds hold because there is one apiserver. It logs a line before it handles a request and
//! another before it responds (`--audit-log-mode=blocking-strict`). So a request that is received
//! after the response to another has the higher revision.

use std::collections::HashMap;

use super::Revision;
use super::request::{Outcome, Request};

pub(crate) struct Bounds {
    /// For each line of a response, the highest revision that was reported up to this line.
    highest_up_to: Vec<(usize, Revision)>,
    /// For each line at which a write was received, the lowest revision of the writes that were
    /// received at this line or later.
    lowest_from: Vec<(usize, Revision)>,
    /// For each revision, how often it was reported, and the first line that reported it.
    reported: HashMap<Revision, (usize, usize)>,
}

impl Bounds {
    pub(crate) fn of(requests: &[Request]) -> Self {
        let revision = |request: &Request| match request.outcome {
            Outcome::Stored { revision, .. } if !request.is_dry_run => Some(revision),
            _ => None,
        };
        let mut highest_up_to: Vec<(usize, Revision)> = requests
            .iter()
            .filter_map(|request| Some((request.completed?.line, revision(request)?)))
            .collect();
        highest_up_to.sort_unstable();
        let mut reported: HashMap<Revision, (usize, usize)> = HashMap::new();
        for (line, revision) in &highest_up_to {
            reported.entry(*revision).or_insert((0, *line)).0 += 1;
        }
        let mut highest = 0;
        for (_, revision) in &mut highest_up_to {
            highest = highest.max(*revision);
            *revision = highest;
        }
        // A revision that was reported twice belongs to one of the two requests, and the log does
        // not say to which.
        let is_unambiguous = |revision: &Revision| reported.get(revision).is_some_and(|(times, _)| *times == 1);
        let mut lowest_from: Vec<(usize, Revision)> = requests
            .iter()
            .filter_map(|request| Some((request.received.line, revision(request).filter(is_unambiguous)?)))
            .collect();
        let mut lowest = Revision::MAX;
        for (_, revision) in lowest_from.iter_mut().rev() {
            lowest = lowest.min(*revision);
            *revision = lowest;
        }
        Self {
            highest_up_to,
            lowest_from,
            reported,
        }
    }

    /// Returns the highest revision that is known to precede a request received at `line`.
    pub(crate) fn before(&self, line: usize) -> Revision {
        let index = self.highest_up_to.partition_point(|(reported, _)| *reported < line);
        index.checked_sub(1).map_or(0, |last| self.highest_up_to[last].1)
    }

    /// Returns the lowest revision that is known to follow every request with a response at `line`.
    pub(crate) fn after(&self, line: usize) -> Option<Revision> {
        let index = self.lowest_from.partition_point(|(received, _)| *received <= line);
        self.lowest_from.get(index).map(|(_, revision)| *revision)
    }

    /// Returns whether a revision was reported before `line`. A request that is received at `line`
    /// and returns this revision changed nothing.
    ///
    /// When two requests overlap and one of them changed nothing, both count as writes of the
    /// revision. So the checker never misses a write; it reports a harmless request only when the
    /// Lease changes between the two.
    pub(crate) fn was_reported(&self, revision: Revision, line: usize) -> bool {
        self.reported.get(&revision).is_some_and(|(_, first)| *first < line)
    }
}
