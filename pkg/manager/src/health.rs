//! What the health endpoints say, from what informers and queues report.
//!
//! /livez fails for what is stuck, which a restart cures, and for nothing else: a daemon that moves is alive, however much there is to do,
//! and so is one whose apiserver is away. /readyz fails for what an operator must look at: a watch that is forbidden, stale or not
//! complete yet. A definition that is missing and an object that cannot be decoded are listed and fail nothing: one tenant's object must
//! not block a rollout. What controllers find counts as they say.
//!
//! What is looked at is gathered here, with the time; what follows from it is said in `verdict`.

mod verdict;

use std::sync::Arc;

use parking_lot::RwLock;
use portreeve_informer::Factory;
use portreeve_leader::Election;
use portreeve_reconcile::{Condition, Finding, Inspect, Page, Vital};
use portreeve_serving::{Check, Health, State};
use tokio::time::Instant;

use crate::BEAT;

pub(crate) use self::verdict::Limits;

/// How far the manager has come.
#[derive(Default)]
pub(crate) struct Progress {
    /// The apiserver has answered.
    pub(crate) reached: bool,
    /// Why it has not, so far.
    pub(crate) waiting_for: String,
    /// Every controller is built.
    pub(crate) started: bool,
    /// How many groups lead and are still installing their definitions.
    pub(crate) installing: u32,
    /// It is on its way out.
    pub(crate) stopping: bool,
    /// When the threads that do the work last had time for a task of no weight.
    pub(crate) beat: Option<Instant>,
    pub(crate) elections: Vec<Election>,
    pub(crate) controllers: Vec<&'static str>,
    pub(crate) vitals: Vec<Vital>,
    pub(crate) findings: Vec<Inspect>,
    pub(crate) pages: Vec<Page>,
}

pub(crate) fn providers(progress: &Arc<RwLock<Progress>>, informers: &Factory, limits: Limits) -> Health {
    let livez = Arc::clone(progress);
    let healthz = Arc::clone(progress);
    let readyz = Arc::clone(progress);
    let informers = informers.clone();
    Health {
        livez: Arc::new(move || alive(&livez.read(), limits)),
        healthz: Arc::new(move || alive(&healthz.read(), limits)),
        readyz: Arc::new(move || {
            let (mut checks, inspections) = {
                let progress = readyz.read();
                let mut checks = lifecycle(&progress);
                checks.extend(election(&progress.elections));
                // Controllers look at what is theirs without keeping anybody from the progress.
                (checks, progress.findings.clone())
            };
            let stale_after = informers.tuning().stale_after();
            // The reports first, so that none is younger than now.
            let reports = informers.reports();
            let now = Instant::now();
            checks.extend(reports.iter().map(|report| {
                let age = report.last_contact.map(|at| now.saturating_duration_since(at));
                Check {
                    name: format!("informer/{}", report.name.replace(' ', "_")),
                    state: verdict::watch(report, stale_after, age),
                }
            }));
            checks.extend(inspections.iter().flat_map(|inspect| inspect()).map(found));
            checks
        }),
    }
}

/// Where the manager is on its way from start to stop.
fn lifecycle(progress: &Progress) -> Vec<Check> {
    let startup = if progress.started && progress.installing > 0 {
        Check::failed("startup", "CustomResourceDefinitions are being installed")
    } else if progress.started {
        Check::ok("startup")
    } else if progress.reached {
        Check::failed("startup", "controllers are being built")
    } else {
        let reason = &progress.waiting_for;
        Check::failed("startup", format!("waiting for the apiserver: {reason}"))
    };
    let shutdown = if progress.stopping {
        Check::failed("shutdown", "the process is shutting down")
    } else {
        Check::ok("shutdown")
    };
    vec![startup, shutdown]
}

/// What a restart cures.
fn alive(progress: &Progress, limits: Limits) -> Vec<Check> {
    let age = progress.beat.map(|at| Instant::now().saturating_duration_since(at));
    let mut checks = vec![Check {
        name: "runtime".to_owned(),
        state: verdict::runtime(age.map(|age| age.saturating_sub(BEAT)), limits.item),
    }];
    checks.extend(workers(progress, limits));
    checks.extend(election(&progress.elections));
    checks
}

/// One check for all elections. A standby is as ready as a leader: it takes over at once.
fn election(elections: &[Election]) -> Option<Check> {
    if elections.is_empty() {
        return None;
    }
    let health: Result<Vec<_>, _> = elections.iter().map(Election::health).collect();
    Some(match health {
        Ok(notes) => Check::note("leaderElection", notes.join("; ")),
        Err(stuck) => Check::failed("leaderElection", stuck),
    })
}

/// One check for each controller, as kube-controller-manager has; these can fail.
fn workers(progress: &Progress, limits: Limits) -> Vec<Check> {
    let vitals_of = |name: &str| {
        let own = progress.vitals.iter().filter(move |vital| vital.controller == name);
        own.map(|vital| (vital.take)()).collect::<Vec<_>>()
    };
    let check = |name: &&'static str| Check {
        name: (*name).to_owned(),
        state: verdict::workers(&vitals_of(name), limits, progress.stopping),
    };
    progress.controllers.iter().map(check).collect()
}

/// What a controller found, as the endpoints print it.
fn found(finding: Finding) -> Check {
    let state = match finding.state {
        Condition::Fine => State::Ok,
        Condition::Note(note) => State::Note(note),
        Condition::Failed(reason) => State::Failed(reason),
    };
    Check {
        name: finding.name,
        state,
    }
}
