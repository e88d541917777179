//! crontab-controller and cronjob-controller start Jobs on a schedule, for our CronTab and for
//! Kubernetes' CronJob. Both controllers share one engine.
//!
//! A decision is a pipeline of values: `input.rs` has what it reads, `assess.rs` computes what
//! follows from it, and `starts.rs` or `status.rs` builds the plan. `decide.rs` composes them.
//! `crontab.rs` and `cronjob.rs` read the spec of each kind and write its Jobs and its status.
//!
//! # Decisions
//!
//! - The Job is the record of its run. Its name and annotation contain the scheduled time, and the
//!   status follows from the Jobs, so a crash between the two writes leaves nothing to repair.
//! - One structure, that of v2, serves both versions of CronTab. The controller reads the stored
//!   version, so it needs the conversion webhook only while objects are stored in both. Jobs always
//!   refer to v1 of their owner and keep it when v2 is withdrawn.
//! - The status records the format of Job names before the first Job (`job_names.rs`): a schedule
//!   that changed its format could start a run once under each name.
//! - The first status records the run-now annotation as done, because an object without a status
//!   may be restored or copied.
//! - A Job counts from the answer to its creation on (`unseen_jobs.rs`). After 30 s without a watch
//!   event it is read again. A new leader has no such memory, because its lists contain all Jobs.
//! - Missed runs count from the last recorded run, the creation, or the last change of the
//!   schedule, whichever is latest. CronTab's status records the change; for CronJob the process
//!   remembers it.
//! - `Schedule::latest` computes the latest missed time exactly; Kubernetes estimates it.
//! - The backoff of a failure does not delay the next run: a failed plan keeps its next time.
//! - Changes of Jobs are routine, since most are our own. Schedules and due times are urgent.
//!
//! Architecture Invariant: this crate has no client and no async code. Every decision takes the
//! time as an argument.

mod admission;
pub mod api;
mod assess;
mod conversion;
mod cronjob;
mod crontab;
mod decide;
mod effects;
mod input;
mod job;
mod job_names;
mod job_summary;
mod missed;
mod observed_runs;
mod origin;
mod replaced_runs;
mod schedule_resource;
mod scheduled_times;
mod starts;
mod status;
mod unseen_jobs;

use std::sync::Arc;

use jiff::Timestamp;
use portreeve_api::ObjectKey;
use portreeve_informer::{Change, Delta, Index, Informer, Projection, Watch, indexes};
use portreeve_reconcile::{
    BuildError, Clock, Context, Descriptor, Effect, KeyedController, Plan, Reconciler, Registrations, RequestState,
    Rule,
};

use crate::{
    cronjob::CachedCronJob,
    crontab::CachedCronTab,
    job::{CachedJob, JOBS},
    job_names::JobNames,
    observed_runs::RunTracker,
    schedule_resource::{Observed, ScheduleResource},
};

/// The verbs on Jobs that both controllers need.
const JOB_RULE: Rule = Rule {
    groups: &["batch"],
    resources: &["jobs"],
    verbs: &["create", "delete", "get", "list", "watch"],
};

/// The descriptor of crontab-controller.
pub const CRONTAB: Descriptor = Descriptor {
    name: "crontab-controller",
    log_target: module_path!(),
    aliases: &["crontab"],
    on_by_default: true,
    in_testenv: false,
    crds: &[include_str!("../crds.yaml")],
    policies: &[
        include_str!("../policies/limits.yaml"),
        include_str!("../policies/defaults.yaml"),
    ],
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
        // Required by clusters that enforce permissions on blockOwnerDeletion.
        Rule {
            groups: &["stable.example.com"],
            resources: &["crontabs/finalizers"],
            verbs: &["update"],
        },
        JOB_RULE,
    ],
    webhooks: admission::webhooks,
    flags: || {
        vec![concurrency(
            "concurrent-crontab-syncs",
            "The number of CronTabs that are allowed to sync concurrently",
        )]
    },
    build: |ctx| build::<CachedCronTab>(ctx, "crontab", "concurrent-crontab-syncs"),
};

/// The descriptor of cronjob-controller.
pub const CRONJOB: Descriptor = Descriptor {
    name: "cronjob-controller",
    log_target: module_path!(),
    aliases: &["cronjob"],
    // Most clusters run kube-controller-manager, which already has this controller.
    on_by_default: false,
    in_testenv: true,
    crds: &[],
    policies: &[],
    rules: &[
        // These are in the role of kube-controller-manager's cronjob-controller.
        Rule {
            groups: &["batch"],
            resources: &["cronjobs"],
            verbs: &["get", "list", "watch"],
        },
        Rule {
            groups: &["batch"],
            resources: &["cronjobs/status"],
            verbs: &["update"],
        },
        Rule {
            groups: &["batch"],
            resources: &["cronjobs/finalizers"],
            verbs: &["update"],
        },
        JOB_RULE,
    ],
    webhooks: Vec::new,
    flags: || {
        vec![concurrency(
            "concurrent-cron-job-syncs",
            "The number of cron job objects that are allowed to sync concurrently",
        )]
    },
    build: |ctx| build::<CachedCronJob>(ctx, "cronjob", "concurrent-cron-job-syncs"),
};

fn concurrency(flag: &'static str, help: &'static str) -> clap::Arg {
    clap::Arg::new(flag)
        .long(flag)
        .value_name("N")
        .help(help)
        .default_value("16")
        .value_parser(clap::value_parser!(u16).range(1..))
}

fn build<K: ScheduleResource>(
    ctx: &Context<'_>,
    queue: &'static str,
    workers: &'static str,
) -> Result<Registrations, BuildError> {
    let workers = ctx.flag::<u16>(workers)?;
    let objects: Informer<K> = ctx.informer(Watch::all(K::RESOURCE).decoding(K::VERSIONS));
    let jobs: Informer<CachedJob> = ctx.informer(Watch::all(JOBS));
    let run_tracker = RunTracker::default();
    let reconciler = CronReconciler {
        objects: objects.clone(),
        jobs: jobs.clone(),
        jobs_by_controller: jobs.index("controller", indexes::by_controller),
        jobs_by_name: jobs.index("schedule", |job: &CachedJob| {
            let prefixes = job_names::prefixes(job.name()).into_iter();
            prefixes
                .map(|prefix| namespaced_name(&job.metadata().key().with_name(prefix)))
                .collect()
        }),
        run_tracker: run_tracker.clone(),
        clock: Arc::clone(&ctx.shared.clock),
    };
    let by_job_names = objects.index("job names", |object: &K| {
        let (metadata, schedules) = (object.metadata(), object.schedule_names());
        let names = JobNames {
            owner: &metadata.name,
            format: object.job_name_format(),
        };
        let prefixes = names.prefixes(schedules.iter().map(|name| &**name)).into_iter();
        prefixes
            .map(|prefix| namespaced_name(&metadata.key().with_name(prefix)))
            .collect()
    });
    let (clock, schedules) = (Arc::clone(&ctx.shared.clock), objects.clone());
    let mut controller = KeyedController::new(ctx, queue, reconciler)
        .workers(workers.into())
        .latency(
            K::SKEW_METRIC,
            "Seconds between the scheduled time of a run and the creation of its Job.",
            K::SKEW_BUCKETS,
        )?;
    if let Some(metric) = K::MISSED_METRIC {
        controller = controller.counter(
            metric,
            "Number of scheduled runs that were missed and will never start.",
        )?;
    }
    let (job_run_tracker, job_clock) = (run_tracker.clone(), Arc::clone(&clock));
    let controller = controller
        .watch(&objects, move |delta| {
            run_tracker.observe_schedule(delta, clock.now());
            [delta.key()]
        })
        // Most changes of Jobs are our own creates and deletes. In the routine lane they wait until
        // all due Jobs are created.
        .watch_routine(&jobs, move |delta| {
            job_run_tracker.observe_job(delta, &schedules, job_clock.now());
            schedules_for_job(delta, &by_job_names)
        });
    Ok(controller.build())
}

/// Formats a key as the indexes store it.
fn namespaced_name(key: &ObjectKey) -> Box<str> {
    key.to_string().into_boxed_str()
}

/// Returns the schedules that a change of a Job affects: its controllers before and after the
/// change. If no schedule controls it, these are the schedules whose next Job name it may take.
/// `by_job_names` is an index of the schedules by the prefixes of their Jobs' names.
fn schedules_for_job<K: ScheduleResource>(delta: &Delta<CachedJob>, by_job_names: &Index<K>) -> Vec<ObjectKey> {
    let job = delta.change.object();
    let old = match &delta.change {
        Change::Updated { old, .. } => Some(old),
        Change::Added(_) | Change::Deleted { .. } => None,
    };
    let owners = [Some(job), old].into_iter().flatten().filter_map(|job| {
        let owner = job.metadata().controller();
        owner.filter(|owner| *owner.kind == *K::RESOURCE.kind)
    });
    let owners: Vec<_> = owners.map(|owner| delta.key().with_name(&*owner.name)).collect();
    if !owners.is_empty() {
        return owners;
    }
    let prefixes = job_names::prefixes(job.name()).into_iter();
    let schedules = prefixes.flat_map(|prefix| by_job_names.get(&namespaced_name(&delta.key().with_name(prefix))));
    schedules.map(|schedule| schedule.metadata().key()).collect()
}

struct CronReconciler<K> {
    objects: Informer<K>,
    jobs: Informer<CachedJob>,
    /// Jobs by their namespace and the UID of their controller.
    jobs_by_controller: Index<CachedJob>,
    /// Jobs by the schedules that their names may be derived from.
    jobs_by_name: Index<CachedJob>,
    run_tracker: RunTracker,
    clock: Arc<dyn Clock>,
}

impl<K: ScheduleResource> Reconciler for CronReconciler<K> {
    type Observed = Observed<K>;

    fn observe(&self, key: &ObjectKey) -> Option<Observed<K>> {
        let object = self.objects.get(key)?;
        let uid = Arc::clone(&object.metadata().uid);
        // The order matters: the tracker forgets a Job once the cache has it.
        let runs = self.run_tracker.get(&uid, self.clock.now());
        let unseen = runs.unseen.existing().map(|job| job.metadata().key());
        let shown: Vec<_> = unseen.filter_map(|job| self.jobs.get(&job)).collect();
        self.run_tracker.observe_shown(&uid, &shown);
        let jobs = self.jobs_by_controller.get(&indexes::controlled_by(object.metadata()));
        let mut observed = Observed::new(Arc::clone(&object), jobs, runs);
        let schedules = object.schedule_names();
        for prefix in observed.names().prefixes(schedules.iter().map(|name| &**name)) {
            let jobs_by_name = self.jobs_by_name.get(&namespaced_name(&key.with_name(prefix)));
            let foreign = jobs_by_name.iter().filter(|job| !job.is_controlled_by(&uid));
            let names = foreign.map(|job| Arc::clone(&job.metadata().name));
            observed.taken_names.extend(names);
        }
        Some(observed)
    }

    fn decide(&self, observed: &Observed<K>, now: Timestamp) -> Plan {
        decide::decide(observed, now)
    }

    fn refused(&self, observed: &Observed<K>, effect: &Effect, why: &str, now: Timestamp) -> Plan {
        let uid = &observed.object.metadata().uid;
        if effect.status_target().is_some_and(|target| target.uid == *uid) {
            // Later runs start at once, without waiting for another attempt to write the status.
            self.run_tracker.observe_refused_status(uid);
        }
        decide::refused(observed, effect, why, now)
    }

    fn observe_request(&self, observed: &Observed<K>, effect: &Effect, state: RequestState<'_>) -> bool {
        let now = self.clock.now();
        self.run_tracker
            .observe_request(&*observed.object, effect, state, now, &self.objects, &self.jobs)
    }
}
