//! Where in etcd's order a request lies that does not say it itself: between what was answered before it came and what came after it
//! was answered.
//!
//! That holds because there is one apiserver, which writes a line before it begins a request and another before it answers
//! (`--audit-log-mode=blocking-strict`): a request that came when another was answered already has the higher revision.

use std::collections::HashMap;

use super::Revision;
use super::request::{Outcome, Request};

pub(crate) struct Bounds {
    /// For each line of an answer, the highest revision that was told up to there.
    told: Vec<(usize, Revision)>,
    /// For each line at which a write came, the lowest revision of a write that came there or later.
    to_come: Vec<(usize, Revision)>,
    /// For each revision, how often it was told, and the line at which it was told first.
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
        // What was told twice is the revision of one of the two, and nobody says here which.
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

    /// The highest revision that is known to be before anything that comes at that line.
    pub(crate) fn before(&self, line: usize) -> Revision {
        let place = self.told.partition_point(|(told, _)| *told < line);
        place.checked_sub(1).map_or(0, |last| self.told[last].1)
    }

    /// The lowest revision that is known to be after everything that was answered at that line.
    pub(crate) fn after(&self, line: usize) -> Option<Revision> {
        let place = self.to_come.partition_point(|(came, _)| *came <= line);
        self.to_come.get(place).map(|(_, revision)| *revision)
    }

    /// Whether a revision had been told before a request came at that line: whoever answers with it then has changed nothing.
    ///
    /// Of two that overlap, one of which changed nothing, both count as writes of that revision. So no write is ever missed; that a
    /// harmless one is blamed takes a change of the Lease between the two.
    pub(crate) fn was_reported(&self, revision: Revision, line: usize) -> bool {
        self.tellings.get(&revision).is_some_and(|(_, first)| *first < line)
    }
}
