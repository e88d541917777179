//! Decides on recorded CronTabs, CronJobs and Jobs and on mutations of them, at various times: no
//! object makes a decision panic.

use std::{fs, sync::Arc};

use portreeve_informer::Projection;
use portreeve_reconcile::{Effect, Next};
use portreeve_testing::Corpus;

use super::samples::at;
use crate::{
    cronjob::CachedCronJob,
    crontab::CachedCronTab,
    decide::{decide, refused},
    input::ObservedRuns,
    job::{CachedJob, JOBS},
    schedule_resource::{Observed, ScheduleResource},
};

/// The number of mutations of each folder.
const MUTATIONS: usize = 600;
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus");
/// The times of the decisions: before all times in the corpus, soon after them, and long after many
/// of them.
const TIMES: [&str; 3] = ["1969-12-31T23:59:59Z", "2026-11-22T01:31:00Z", "2026-11-29T00:00:00Z"];
/// An input whose length is a multiple of this number is decided on at `END`, near the maximum of
/// `Timestamp`. That is slow, because all times missed until then are counted.
const END_INTERVAL: usize = 32;
const END: &str = "9999-12-30T22:00:00Z";

fn read_sample<T: serde::de::DeserializeOwned>(file: &str) -> anyhow::Result<T> {
    Ok(serde_json::from_slice(&fs::read(format!("{FOLDER}/{file}"))?)?)
}

/// Decides at one of these times, chosen by the length of the input.
fn check<K: ScheduleResource>(input: &[u8], object: &Arc<K>, jobs: &[Arc<CachedJob>]) {
    let metadata = object.metadata();
    let now = at(if input.len().is_multiple_of(END_INTERVAL) {
        END
    } else {
        TIMES[input.len() % TIMES.len()]
    });
    let observed = Observed::new(Arc::clone(object), jobs.to_vec(), ObservedRuns::default());
    let plan = decide(&observed, now);
    if let Next::At(time) = plan.next {
        assert!(time > now, "{time} is not later than {now}");
    }
    let after_rejection = plan
        .effects
        .first()
        .map(|effect| refused(&observed, effect, "the write was rejected", now));
    for effect in [&plan]
        .into_iter()
        .chain(&after_rejection)
        .flat_map(|plan| &plan.effects)
    {
        assert!(!effect.to_string().is_empty());
        match effect {
            Effect::Create(job) => assert_eq!((&job.resource, &job.key.namespace), (&JOBS, &metadata.namespace)),
            Effect::Delete { target, .. } => {
                let own = jobs.iter().any(|job| job.metadata().uid == target.uid);
                assert!(own && target.resource == JOBS, "{effect}");
            }
            Effect::PatchStatus { target, .. } | Effect::Replace { target, .. } | Effect::Event(target, _) => {
                assert_eq!(target.uid, metadata.uid);
            }
            _ => {}
        }
    }
}

fn check_objects<K: ScheduleResource>(folder: &str) -> anyhow::Result<()> {
    let jobs: Vec<Arc<CachedJob>> = vec![read_sample("job/job")?, read_sample("job/job-finished")?];
    Corpus::read(format!("{FOLDER}/{folder}"))?.check(MUTATIONS, |input| {
        if let Ok(object) = serde_json::from_slice::<K>(input) {
            let object = Arc::new(object);
            check(input, &object, &jobs);
        }
    })
}

#[test]
fn no_decodable_crontab_makes_a_decision_panic() -> anyhow::Result<()> {
    check_objects::<CachedCronTab>("crontab")
}

#[test]
fn no_decodable_cronjob_makes_a_decision_panic() -> anyhow::Result<()> {
    check_objects::<CachedCronJob>("cronjob")
}

#[test]
fn no_decodable_job_makes_a_decision_panic() -> anyhow::Result<()> {
    let owner: Arc<CachedCronTab> = read_sample("crontab/crontab")?;
    Corpus::read(format!("{FOLDER}/job"))?.check(MUTATIONS, |input| {
        if let Ok(job) = serde_json::from_slice::<CachedJob>(input) {
            check(input, &owner, &[Arc::new(job)]);
        }
    })
}
