//! crontab-controller and cronjob-controller: Jobs on a schedule, for our CronTab and for Kubernetes' CronJob, by one engine.
//!
//! `decide.rs` and `settle.rs` decide, on what `facts.rs` found out from Jobs and `slots.rs` from the clock; `crontab.rs` and
//! `cronjob.rs` say what the two kinds ask for and how their status is written.
//!
//! Architecture Invariant: no client, no async; the time is an argument of every decision.

mod cronjob;
mod crontab;
mod decide;
mod facts;
mod job;
mod kind;
mod recall;
mod settle;
mod slots;

use std::{iter, sync::Arc};

use jiff::Timestamp;
use kube::CustomResourceExt;
use portreeve_api::{CronTab, ObjectKey};
use portreeve_informer::{Change, Delta, Index, Informer, Projection, Watch, indexes};
use portreeve_reconcile::{BuildError, Controller, Descriptor, Effect, Plan, Reconciler, Rule, Setup};

use crate::{
    cronjob::SeenCronJob,
    crontab::SeenCronTab,
    decide::Observed,
    job::{JOBS, SeenJob},
    kind::Kind,
    recall::Recall,
};

/// What both controllers do to Jobs.
const JOB_RULE: Rule = Rule {
    groups: &["batch"],
    resources: &["jobs"],
    verbs: &["create", "delete", "get", "list", "watch"],
};

/// The plug of crontab-controller.
pub const CRONTAB: Descriptor = Descriptor {
    name: "crontab-controller",
    aliases: &["crontab"],
    on_by_default: true,
    crds: || vec![CronTab::crd()],
    rules: &[
        Rule {
            groups: &["stable.example.com"],
            resources: &["crontabs"],
            verbs: &["list", "watch"],
        },
        Rule {
            groups: &["stable.example.com"],
            resources: &["crontabs/status"],
            verbs: &["patch"],
        },
        // Asked for by clusters that enforce permissions on blockOwnerDeletion.
        Rule {
            groups: &["stable.example.com"],
            resources: &["crontabs/finalizers"],
            verbs: &["update"],
        },
        JOB_RULE,
    ],
    flags: || {
        vec![concurrency(
            "concurrent-crontab-syncs",
            "The number of CronTabs that are synced concurrently",
        )]
    },
    build: |setup| build::<SeenCronTab>(setup, "CronTabs", "concurrent-crontab-syncs", crontab::is_rescheduled),
};

/// The plug of cronjob-controller.
pub const CRONJOB: Descriptor = Descriptor {
    name: "cronjob-controller",
    aliases: &["cronjob"],
    // Where kube-controller-manager runs, that one does this work.
    on_by_default: false,
    crds: Vec::new,
    rules: &[
        Rule {
            groups: &["batch"],
            resources: &["cronjobs"],
            verbs: &["list", "watch"],
        },
        Rule {
            groups: &["batch"],
            resources: &["cronjobs/status"],
            verbs: &["patch"],
        },
        Rule {
            groups: &["batch"],
            resources: &["cronjobs/finalizers"],
            verbs: &["update"],
        },
        JOB_RULE,
    ],
    flags: || {
        vec![concurrency(
            "concurrent-cron-job-syncs",
            "The number of CronJobs that are synced concurrently",
        )]
    },
    build: |setup| build::<SeenCronJob>(setup, "CronJobs", "concurrent-cron-job-syncs", cronjob::is_rescheduled),
};

fn concurrency(flag: &'static str, help: &'static str) -> clap::Arg {
    clap::Arg::new(flag)
        .long(flag)
        .value_name("N")
        .help(help)
        .default_value("16")
        .value_parser(clap::value_parser!(u16).range(1..))
}

fn build<K: Kind>(
    setup: &mut Setup<'_>,
    queue: &'static str,
    workers: &'static str,
    is_rescheduled: fn(&Arc<K>, &Arc<K>) -> bool,
) -> Result<Box<dyn Controller>, BuildError> {
    let workers = setup.flag::<u16>(workers)?;
    let objects: Informer<K> = setup.informer(Watch::all(K::RESOURCE));
    let jobs: Informer<SeenJob> = setup.informer(Watch::all(JOBS));
    let recall = Recall::default();
    let scheduler = Scheduler {
        objects: objects.clone(),
        owned: jobs.index("controller", indexes::by_controller),
        namesakes: jobs.index("schedule", |job: &SeenJob| {
            let prefixes = prefixes(job.name()).into_iter();
            prefixes
                .map(|prefix| scoped(&job.metadata().key().sibling(prefix)))
                .collect()
        }),
        recall: recall.clone(),
    };
    let (clock, known) = (Arc::clone(&setup.shared.clock), objects.clone());
    let mut controller = setup.keyed(queue, scheduler).workers(workers.into()).lag(
        K::SKEW,
        "Time between when a job is scheduled to be run, and when it is created",
    )?;
    if let Some(metric) = K::MISSED {
        controller = controller.counter(metric, "Number of scheduled runs that never started, and never will")?;
    }
    let (recall_runs, clock_of_runs) = (recall.clone(), Arc::clone(&clock));
    let controller = controller
        .watch(&objects, move |delta| {
            recall.note(delta, is_rescheduled, clock.now());
            [delta.key()]
        })
        // What our own creates and deletes cause waits until everything that is due was created.
        .watch_routinely(&jobs, move |delta| {
            recall_runs.note_job(delta, &known, clock_of_runs.now());
            concerned(delta, &known)
        });
    Ok(controller.build())
}

/// The names of schedules that a Job's name may be derived from: `<name>-<minutes>`, `<name>-run-<hash>`.
fn prefixes(job: &str) -> Vec<&str> {
    let by_time = job.rsplit_once('-').map(|(prefix, _)| prefix);
    let by_hand = by_time.and_then(|prefix| prefix.strip_suffix("-run"));
    by_time.into_iter().chain(by_hand).collect()
}

/// What the names of this schedule's Jobs begin with: its name, and what is left of it where it is too long.
fn used_prefixes(schedule: &str) -> impl Iterator<Item = &str> {
    let cut = Some(job::stem(schedule)).filter(|stem| *stem != schedule);
    iter::once(schedule).chain(cut)
}

/// A key as an index has it.
fn scoped(key: &ObjectKey) -> Box<str> {
    key.to_string().into_boxed_str()
}

/// The schedules that a change of a Job concerns: the one that controls it, the one that did before, and those whose names it could
/// block.
fn concerned<K: Kind>(delta: &Delta<SeenJob>, objects: &Informer<K>) -> Vec<ObjectKey> {
    let job = delta.change.object();
    let before = match &delta.change {
        Change::Updated { old, .. } => Some(old),
        Change::Added(_) | Change::Deleted { .. } => None,
    };
    let owners = [Some(job), before].into_iter().flatten().filter_map(|job| {
        let owner = job.metadata().controller();
        owner.filter(|owner| *owner.kind == *K::RESOURCE.kind)
    });
    let owners: Vec<_> = owners.map(|owner| delta.key().sibling(&*owner.name)).collect();
    if !owners.is_empty() {
        return owners;
    }
    let keys = prefixes(job.name())
        .into_iter()
        .map(|prefix| delta.key().sibling(prefix));
    keys.filter(|key| objects.get(key).is_some()).collect()
}

struct Scheduler<K> {
    objects: Informer<K>,
    /// Jobs by the UID of their controller.
    owned: Index<SeenJob>,
    /// Jobs by the schedules that they may be named for.
    namesakes: Index<SeenJob>,
    recall: Recall,
}

impl<K: Kind> Reconciler for Scheduler<K> {
    type Observed = Observed<K>;

    fn observe(&self, key: &ObjectKey) -> Option<Observed<K>> {
        let object = self.objects.get(key)?;
        let uid = Arc::clone(&object.metadata().uid);
        let jobs = self.owned.get(&uid);
        let is_ours = |job: &Arc<SeenJob>| job.metadata().controller().is_some_and(|owner| *owner.uid == *uid);
        let prefixes = used_prefixes(&key.name);
        let namesakes = prefixes.flat_map(|prefix| self.namesakes.get(&scoped(&key.sibling(prefix))));
        let foreign = namesakes.filter(|job| !is_ours(job));
        Some(Observed {
            taken: foreign.map(|job| Arc::clone(&job.metadata().name)).collect(),
            recalled: self.recall.get(&uid),
            object,
            jobs,
        })
    }

    fn decide(&self, seen: &Observed<K>, now: Timestamp) -> Plan {
        decide::decide(seen, now)
    }

    fn refused(&self, seen: &Observed<K>, effect: &Effect, why: &str, now: Timestamp) -> Plan {
        decide::refused(seen, effect, why, now)
    }
}
