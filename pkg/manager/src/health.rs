//! What the health endpoints say, from what informers and queues report.
//!
//! /livez fails for stuck workers alone: a restart cures those, and nothing else. /readyz fails for what an operator must look at:
//! a watch that is forbidden, stale or not complete yet. A definition that is missing and an object that cannot be decoded are
//! listed and fail nothing: one tenant's object must not block a rollout. What controllers find counts as they say.

use std::{sync::Arc, time::Duration};

use parking_lot::RwLock;
use portreeve_client::Answer;
use portreeve_informer::{Factory, Report};
use portreeve_leader::Election;
use portreeve_reconcile::{Condition, Finding, Inspect, Page, Vital, Vitals};
use portreeve_serving::{Check, Health, State};
use tokio::time::Instant;

/// A reconcile may take as long as its calls, each of which has a limit; one that takes longer than this hangs.
const STUCK: Duration = Duration::from_mins(5);
/// How much longer than the idle limit a watch may be without contact: it is given the time to reconnect.
const GRACE: Duration = Duration::from_secs(30);
/// How many undecodable objects a line names.
const NAMED: usize = 3;

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
    pub(crate) elections: Vec<Election>,
    pub(crate) controllers: Vec<&'static str>,
    pub(crate) vitals: Vec<Vital>,
    pub(crate) findings: Vec<Inspect>,
    pub(crate) pages: Vec<Page>,
}

pub(crate) fn providers(progress: &Arc<RwLock<Progress>>, informers: &Factory) -> Health {
    let livez = Arc::clone(progress);
    let healthz = Arc::clone(progress);
    let readyz = Arc::clone(progress);
    let informers = informers.clone();
    Health {
        livez: Arc::new(move || alive(&livez.read())),
        healthz: Arc::new(move || alive(&healthz.read())),
        readyz: Arc::new(move || {
            let (mut checks, inspections) = {
                let progress = readyz.read();
                let mut checks = lifecycle(&progress);
                checks.extend(election(&progress.elections));
                // Controllers look at what is theirs without keeping anybody from the progress.
                (checks, progress.findings.clone())
            };
            let stale_after = informers.tuning().idle_limit + GRACE;
            let now = Instant::now();
            checks.extend(informers.reports().iter().map(|report| Check {
                name: format!("informer/{}", report.name.replace(' ', "_")),
                state: watch(report, stale_after, now),
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
fn alive(progress: &Progress) -> Vec<Check> {
    let mut checks = workers(progress);
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
fn workers(progress: &Progress) -> Vec<Check> {
    let vitals_of = |name: &str| {
        let own = progress.vitals.iter().filter(move |vital| vital.controller == name);
        own.map(|vital| (vital.take)()).collect::<Vec<_>>()
    };
    let check = |name: &&'static str| Check {
        name: (*name).to_owned(),
        state: worker(&vitals_of(name)),
    };
    progress.controllers.iter().map(check).collect()
}

fn worker(vitals: &[Vitals]) -> State {
    let longest = vitals.iter().filter_map(|vitals| vitals.longest_running).max();
    match longest {
        Some(longest) if longest > STUCK => State::Failed(format!(
            "an item has been in work for {} s, which no reconcile takes: a worker is stuck",
            longest.as_secs()
        )),
        _ => State::Ok,
    }
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

fn watch(report: &Report, stale_after: Duration, now: Instant) -> State {
    let age = report.last_contact.map(|at| now.saturating_duration_since(at));
    if let Some(trouble) = &report.trouble {
        match trouble.answer {
            Answer::NotFound => {
                return State::Note(format!(
                    "the resource is not served, waiting for its definition: {}",
                    trouble.message
                ));
            }
            Answer::Forbidden => return State::Failed(format!("forbidden: {}", trouble.message)),
            _ if !report.synced => return State::Failed(format!("not synced: {}", trouble.message)),
            _ => {}
        }
    }
    if !report.synced {
        return State::Failed("not synced: the first list is still under way".to_owned());
    }
    let trouble = report.trouble.as_ref().map(|trouble| trouble.message.as_str());
    if let Some(age) = age.filter(|age| *age > stale_after) {
        let reason = trouble.unwrap_or("the connection is silent");
        return State::Failed(format!("stale, last heard of {} s ago: {reason}", age.as_secs()));
    }
    let mut notes: Vec<String> = trouble
        .map(|trouble| format!("reconnecting: {trouble}"))
        .into_iter()
        .collect();
    if !report.undecodable.is_empty() {
        let count = report.undecodable.len();
        let shown = report.undecodable.iter().take(NAMED);
        let shown: Vec<_> = shown.map(|(key, error)| format!("{key}: {error}")).collect();
        notes.push(format!(
            "{count} objects cannot be decoded and are skipped: {}",
            shown.join("; ")
        ));
    }
    if notes.is_empty() {
        State::Ok
    } else {
        State::Note(notes.join("; "))
    }
}

#[cfg(test)]
mod tests;
