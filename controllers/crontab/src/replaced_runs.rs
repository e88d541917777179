//! The runs that a Job replaced although no status recorded them. Their Jobs are deleted, so an
//! annotation of the Job that replaced them is their record until a status can be written.
//!
//! Architecture Invariant: pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use portreeve_api::REPLACED_RUNS;
use portreeve_reconcile::Object;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::json;

use crate::origin::Origin;

/// The number of scheduled times that a Job records, the latest ones. Earlier ones are counted as
/// missed.
const MOST_TIMES: usize = 1_000;

/// The runs that a Job replaced: the value of its annotation.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ReplacedRuns {
    /// The scheduled times, by the name of their schedule.
    scheduled: BTreeMap<Box<str>, BTreeSet<Timestamp>>,
    /// The last value of the run-now annotation.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_now: Option<Box<str>>,
}

impl ReplacedRuns {
    /// Collects these runs, in the order in which they started.
    pub(crate) fn of(runs: impl Iterator<Item = Origin>) -> Self {
        let mut replaced = Self::default();
        for run in runs {
            match run {
                Origin::Scheduled(schedule, slot) => _ = replaced.scheduled.entry(schedule).or_default().insert(slot),
                Origin::RunNow(value) => replaced.run_now = Some(value),
                Origin::Manual | Origin::Unknown => {}
            }
        }
        replaced.keep_the_latest(MOST_TIMES);
        replaced
    }

    fn keep_the_latest(&mut self, count: usize) {
        let mut times: Vec<_> = self.scheduled.values().flatten().copied().collect();
        if let Some(excess) = times.len().checked_sub(count + 1) {
            times.sort_unstable();
            let earliest_kept = times[excess + 1];
            for slots in self.scheduled.values_mut() {
                slots.retain(|slot| *slot >= earliest_kept);
            }
        }
    }

    /// Writes these runs into the annotation of the Job that replaces them.
    pub(crate) fn annotate(&self, job: &mut Object) {
        job.body["metadata"]["annotations"][REPLACED_RUNS] = json!(self).to_string().into();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.scheduled.is_empty() && self.run_now.is_none()
    }

    pub(crate) fn contains(&self, run: &Origin) -> bool {
        match run {
            Origin::Scheduled(schedule, slot) => {
                let slots = self.scheduled.get(schedule);
                slots.is_some_and(|slots| slots.contains(slot))
            }
            Origin::RunNow(value) => self.run_now.as_ref() == Some(value),
            Origin::Manual | Origin::Unknown => false,
        }
    }

    /// Iterates over the runs, the times of a schedule in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Origin> {
        let scheduled = self.scheduled.iter().flat_map(|(schedule, slots)| {
            let run = move |slot: &Timestamp| Origin::Scheduled(schedule.clone(), *slot);
            slots.iter().map(run)
        });
        scheduled.chain(self.run_now.clone().map(Origin::RunNow))
    }
}

/// Decodes the annotation. A value that somebody has made invalid records nothing.
pub(crate) fn decode<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Box<ReplacedRuns>>, D::Error> {
    let text = Option::<Box<str>>::deserialize(value)?;
    Ok(text.and_then(|text| serde_json::from_str(&text).ok()).map(Box::new))
}
