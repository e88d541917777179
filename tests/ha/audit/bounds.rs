//! Bounds for the revisions of requests whose responses carry none: above every revision reported
//! before the request came, and below those of requests that came after its response.
//!
//! The bounds hold because the one apiserver logs a line before it handles a request and another
//! before it responds (`--audit-log-mode=blocking-strict`): a request that comes after another's
//! response has the higher revision.

use std::collections::HashMap;

use super::Revision;
use super::request::{Outcome, Request};

pub(crate) struct Bounds {
    /// For each line of a response, the highest revision that was reported up to there.
    told: Vec<(usize, Revision)>,
    /// For each line at which a write came, the lowest revision of a write that came at this line
    /// or later.
    to_come: Vec<(usize, Revision)>,
    /// For each revision, how often it was reported, and the line that reported it first.
    tellings: HashMap<Revision, (usize, usize)>,
}

impl Bounds {
    pub(crate) fn of(requests: &[Request]) -> Self {
        let revision = |request: &Request| match request.answer {
            Outcome::Stored { revision, .. } if !request.is_dry_run => Some(revision),
            _ => None,
        };
        let mut told: Vec<(usize, Revision)> = requests
            .iter()
            .filter_map(|request| Some((request.answered?.line, revision(request)?)))
            .collect();
        told.sort_unstable();
        let mut tellings: HashMap<Revision, (usize, usize)> = HashMap::new();
        for (line, revision) in &told {
            tellings.entry(*revision).or_insert((0, *line)).0 += 1;
        }
        let mut highest = 0;
        for (_, revision) in &mut told {
            highest = highest.max(*revision);
            *revision = highest;
        }
        // A revision that was reported twice belongs to one of the two requests, and the log does
        // not say to which.
        let is_its_own = |revision: &Revision| tellings.get(revision).is_some_and(|(times, _)| *times == 1);
        let mut to_come: Vec<(usize, Revision)> = requests
            .iter()
            .filter_map(|request| Some((request.received.line, revision(request).filter(is_its_own)?)))
            .collect();
        let mut lowest = Revision::MAX;
        for (_, revision) in to_come.iter_mut().rev() {
            lowest = lowest.min(*revision);
            *revision = lowest;
        }
        Self {
            told,
            to_come,
            tellings,
        }
    }

    /// Returns the highest revision that is known to precede a request that comes at `line`.
    pub(crate) fn before(&self, line: usize) -> Revision {
        let place = self.told.partition_point(|(told, _)| *told < line);
        place.checked_sub(1).map_or(0, |last| self.told[last].1)
    }

    /// Returns the lowest revision that is known to follow every request with a response at `line`.
    pub(crate) fn after(&self, line: usize) -> Option<Revision> {
        let place = self.to_come.partition_point(|(came, _)| *came <= line);
        self.to_come.get(place).map(|(_, revision)| *revision)
    }

    /// Returns whether a revision was reported before `line`. A request that comes at `line` and
    /// returns this revision changed nothing.
    ///
    /// When two requests overlap and one of them changed nothing, both count as writes of the
    /// revision. So the checker never misses a write; it reports a harmless request only when the
    /// Lease changes between the two.
    pub(crate) fn was_reported(&self, revision: Revision, line: usize) -> bool {
        self.tellings.get(&revision).is_some_and(|(_, first)| *first < line)
    }
}
