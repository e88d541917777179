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
use portreeve_reconcile::{DebugPage, QueueHealthChecker, ReadinessCheck, ReadinessChecker, ReadinessStatus};
use portreeve_serving::{Check, HealthCheckers, HealthStatus};
use tokio::time::Instant;

use crate::HEARTBEAT_INTERVAL;

pub(crate) use self::verdict::Limits;

/// How far the manager has come.
#[derive(Default)]
pub(crate) struct ManagerState {
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
    pub(crate) last_heartbeat: Option<Instant>,
    pub(crate) elections: Vec<Election>,
    pub(crate) controllers: Vec<&'static str>,
    pub(crate) queue_health_checkers: Vec<QueueHealthChecker>,
    pub(crate) readiness_checkers: Vec<ReadinessChecker>,
    pub(crate) pages: Vec<DebugPage>,
}

pub(crate) fn providers(state: &Arc<RwLock<ManagerState>>, informers: &Factory, limits: Limits) -> HealthCheckers {
    let livez = Arc::clone(state);
    let healthz = Arc::clone(state);
    let readyz = Arc::clone(state);
    let informers = informers.clone();
    HealthCheckers {
        livez: Arc::new(move || alive(&livez.read(), limits)),
        healthz: Arc::new(move || alive(&healthz.read(), limits)),
        readyz: Arc::new(move || {
            let (mut checks, inspections) = {
                let state = readyz.read();
                let mut checks = lifecycle(&state);
                checks.extend(election(&state.elections));
                // Controllers look at what is theirs without keeping anybody from the state.
                (checks, state.readiness_checkers.clone())
            };
            let stale_after = informers.informer_config().stale_after();
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
fn lifecycle(state: &ManagerState) -> Vec<Check> {
    let startup = if state.started && state.installing > 0 {
        Check::failed("startup", "CustomResourceDefinitions are being installed")
    } else if state.started {
        Check::ok("startup")
    } else if state.reached {
        Check::failed("startup", "controllers are being built")
    } else {
        let reason = &state.waiting_for;
        Check::failed("startup", format!("waiting for the apiserver: {reason}"))
    };
    let shutdown = if state.stopping {
        Check::failed("shutdown", "the process is shutting down")
    } else {
        Check::ok("shutdown")
    };
    vec![startup, shutdown]
}

/// What a restart cures.
fn alive(state: &ManagerState, limits: Limits) -> Vec<Check> {
    let age = state
        .last_heartbeat
        .map(|at| Instant::now().saturating_duration_since(at));
    let mut checks = vec![Check {
        name: "runtime".to_owned(),
        state: verdict::runtime(age.map(|age| age.saturating_sub(HEARTBEAT_INTERVAL)), limits.item),
    }];
    checks.extend(workers(state, limits));
    checks.extend(election(&state.elections));
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
fn workers(state: &ManagerState, limits: Limits) -> Vec<Check> {
    let health_of = |name: &str| {
        let own = state
            .queue_health_checkers
            .iter()
            .filter(move |checker| checker.controller == name);
        own.map(|checker| (checker.check)()).collect::<Vec<_>>()
    };
    let check = |name: &&'static str| Check {
        name: (*name).to_owned(),
        state: verdict::workers(&health_of(name), limits, state.stopping),
    };
    state.controllers.iter().map(check).collect()
}

/// What a controller found, as the endpoints print it.
fn found(check: ReadinessCheck) -> Check {
    let state = match check.state {
        ReadinessStatus::Ok => HealthStatus::Ok,
        ReadinessStatus::Note(note) => HealthStatus::Note(note),
        ReadinessStatus::Failed(reason) => HealthStatus::Failed(reason),
    };
    Check {
        name: check.name,
        state,
    }
}
