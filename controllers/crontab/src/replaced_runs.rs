//! The runs that a Job replaced although no status recorded them. Their Jobs are deleted, so an
//! annotation of the Job that replaced them is their record until a status can be written. It also
//! lists these Jobs, so that they are deleted even if the process ends first.
//!
//! Architecture Invariant: pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use portreeve_reconcile::Object;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::json;

use crate::{api::REPLACED_RUNS, origin::Origin};

/// The number of scheduled times that a Job records. Each schedule has the same share of it, and
/// its latest times are kept. Earlier ones are counted as missed.
const MOST_TIMES: usize = 1_000;

/// What a Job replaced: the value of its annotation.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ReplacedRuns {
    /// The scheduled times that no status recorded, by the name of their schedule.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    scheduled: BTreeMap<Box<str>, BTreeSet<Timestamp>>,
    /// The last value of the run-now annotation, if no status recorded it.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_now: Option<Box<str>>,
    /// The UIDs of the Jobs that were active. They are deleted afterwards.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    jobs: BTreeSet<Box<str>>,
}

impl ReplacedRuns {
    /// Collects these runs, in the order in which they started, and the UIDs of the Jobs to delete.
    pub(crate) fn of(runs: impl Iterator<Item = Origin>, jobs: impl Iterator<Item = Box<str>>) -> Self {
        let mut replaced = Self {
            jobs: jobs.collect(),
            ..Self::default()
        };
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
        let share = (count / self.scheduled.len().max(1)).max(1);
        for slots in self.scheduled.values_mut() {
            while slots.len() > share {
                slots.pop_first();
            }
        }
    }

    /// Writes this into the annotation of the Job that replaces the others.
    pub(crate) fn annotate(&self, job: &mut Object) {
        job.body["metadata"]["annotations"][REPLACED_RUNS] = json!(self).to_string().into();
    }

    /// Returns whether all runs have another record.
    pub(crate) fn is_empty(&self) -> bool {
        self.scheduled.is_empty() && self.run_now.is_none()
    }

    /// Returns whether the Job of this UID is to be deleted.
    pub(crate) fn includes_job(&self, uid: &str) -> bool {
        self.jobs.contains(uid)
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

/// Decodes the annotation. A value that somebody has made invalid records nothing. Times are
/// truncated to whole seconds, as in the status, which would never record a fraction.
pub(crate) fn decode<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Box<ReplacedRuns>>, D::Error> {
    let text = Option::<Box<str>>::deserialize(value)?;
    let replaced = text.and_then(|text| serde_json::from_str::<ReplacedRuns>(&text).ok());
    Ok(replaced.map(|mut replaced| {
        for slots in replaced.scheduled.values_mut() {
            let truncated = slots.iter().map(|slot| Timestamp::from_second(slot.as_second()));
            *slots = truncated.flatten().collect();
        }
        Box::new(replaced)
    }))
}
