//! Assembles the health checks from the reports of informers and queues.
//!
//! `/livez` fails only for a stuck process, which a restart fixes. A busy daemon is alive, and so
//! is one whose apiserver is unavailable. `/readyz` fails for conditions that an operator must fix:
//! a watch that is forbidden, stale or not synced yet, or a Lease that this replica cannot read or
//! write. A missing CRD and an undecodable object are listed but fail nothing: one tenant's object
//! must not block a rollout. A controller's own check passes or fails as the controller reports.
//!
//! This module reads the state and the time. The `evaluate` module derives the result.

mod evaluate;

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use parking_lot::RwLock;
use portreeve_informer::{Factory, Report};
use portreeve_leader::{Election, HealthError, Heartbeat};
use portreeve_reconcile::{
    ActivityChecker, DebugPage, QueueHealthChecker, ReadinessCheck, ReadinessChecker, ReadinessStatus,
};
use portreeve_serving::{Check, HealthCheckers, HealthStatus};
use tokio::time::Instant;

pub(crate) use self::evaluate::Limits;
use crate::definitions::InstallProgress;

/// The progress and the components of the manager, as the health checks see them.
#[derive(Default)]
pub(crate) struct ManagerState {
    /// Whether the apiserver has responded.
    pub(crate) reached: bool,
    /// Why the apiserver has not responded so far.
    pub(crate) waiting_for: String,
    /// Whether every controller is built.
    pub(crate) started: bool,
    /// The controllers that run as soon as their CRDs are installed.
    pub(crate) installing: InstallProgress,
    /// Whether the manager is stopping.
    pub(crate) stopping: bool,
    pub(crate) elections: Vec<Election>,
    pub(crate) controllers: Vec<&'static str>,
    pub(crate) queue_health_checkers: Vec<QueueHealthChecker>,
    pub(crate) activity_checkers: Vec<ActivityChecker>,
    pub(crate) readiness_checkers: Vec<ReadinessChecker>,
    pub(crate) debug_pages: Vec<DebugPage>,
}

pub(crate) fn providers(
    state: &Arc<RwLock<ManagerState>>,
    informers: &Factory,
    heartbeat: &Heartbeat,
    limits: Limits,
) -> HealthCheckers {
    let (livez, livez_heartbeat) = (Arc::clone(state), heartbeat.clone());
    let (healthz, healthz_heartbeat) = (Arc::clone(state), heartbeat.clone());
    let readyz = Arc::clone(state);
    let informers = informers.clone();
    HealthCheckers {
        livez: Arc::new(move || alive(&livez.read(), &livez_heartbeat, limits)),
        healthz: Arc::new(move || alive(&healthz.read(), &healthz_heartbeat, limits)),
        readyz: Arc::new(move || {
            let (mut checks, inspections) = {
                let state = readyz.read();
                let mut checks = lifecycle(&state);
                checks.extend(definitions(&state.installing));
                checks.extend(election(&state.elections, Election::readiness));
                // The checks of controllers run without the lock on the state.
                (checks, state.readiness_checkers.clone())
            };
            let stale_after = informers.informer_config().stale_after();
            // The reports are read before the time, so that no age is negative.
            let reports = informers.reports();
            let now = Instant::now();
            checks.extend(reports.iter().map(|report| {
                let age = report.last_contact.map(|at| now.saturating_duration_since(at));
                let state = evaluate::watch(report, stale_after, age);
                informer_check(report, state)
            }));
            checks.extend(reports.iter().filter_map(conversion_check));
            checks.extend(inspections.iter().flat_map(|inspect| inspect()).map(found));
            checks
        }),
    }
}

/// Returns the check of a watch. Everybody may read names of checks, so the namespace and the
/// selectors of a watch are only in the reason, and their hash is in the name.
fn informer_check(report: &Report, state: HealthStatus) -> Check {
    let resource = report.resource.to_string();
    if report.name == resource {
        let name = format!("informer/{resource}");
        return Check { name, state };
    }
    let mut hasher = DefaultHasher::new();
    report.name.hash(&mut hasher);
    let hash = hasher.finish() & 0xffff_ffff;
    let explain = |reason| format!("{}: {reason}", report.name);
    Check {
        name: format!("informer/{resource}-{hash:08x}"),
        state: match state {
            HealthStatus::Ok => HealthStatus::Ok,
            HealthStatus::Note(note) => HealthStatus::Note(explain(note)),
            HealthStatus::Failed(reason) => HealthStatus::Failed(explain(reason)),
        },
    }
}

/// Returns the check of the conversion between the versions of a resource, if there is one. Without
/// it, the controllers continue, because their watches read the stored version.
fn conversion_check(report: &Report) -> Option<Check> {
    let conversion = report.conversion.as_ref()?;
    let name = format!("conversion/{}", report.resource.crd_name());
    Some(match conversion {
        Ok(()) => Check::ok(name),
        Err(failure) => Check::failed(name, failure.to_string()),
    })
}

/// The checks of startup and shutdown.
fn lifecycle(state: &ManagerState) -> Vec<Check> {
    let startup = if state.started && state.installing.is_installing() {
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

/// One check for each CRD that `--install-crds` cannot install. A state of the cluster does not
/// fail it, because a rollout would not change that state.
fn definitions(installing: &InstallProgress) -> Vec<Check> {
    let blocked = installing.blocked().into_iter();
    blocked
        .map(|(definition, (obstacle, controllers))| {
            let name = format!("definition/{definition}");
            let reason = format!("{}. Waiting: {}", obstacle.explain(&definition), controllers.join(", "));
            if obstacle.fails_readiness() {
                Check::failed(name, reason)
            } else {
                Check::note(name, reason)
            }
        })
        .collect()
}

/// The checks that fail only when a restart helps.
fn alive(state: &ManagerState, heartbeat: &Heartbeat, limits: Limits) -> Vec<Check> {
    let mut checks = vec![Check {
        name: "runtime".to_owned(),
        state: evaluate::runtime(heartbeat.silence(), limits.item),
    }];
    checks.extend(workers(state, limits));
    checks.extend(election(&state.elections, Election::health));
    checks
}

/// One check for all elections. A standby that could lead is as ready as a leader, because it can
/// take over immediately.
fn election(elections: &[Election], check: fn(&Election) -> Result<String, HealthError>) -> Option<Check> {
    if elections.is_empty() {
        return None;
    }
    let health: Result<Vec<_>, _> = elections.iter().map(check).collect();
    Some(match health {
        Ok(notes) => Check::note("leaderElection", notes.join("; ")),
        Err(error) => Check::failed("leaderElection", error.to_string()),
    })
}

/// One check for each controller, as in kube-controller-manager. Unlike there, these checks can
/// fail.
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
        state: evaluate::workers(&health_of(name), limits, state.stopping),
    };
    state.controllers.iter().map(check).collect()
}

/// Converts a controller's check for the endpoints.
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
