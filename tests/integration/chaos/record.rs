//! Conditions that must hold at all times: the audit log of the daemon's writes, and its health.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, mem,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use parking_lot::Mutex;
use portreeve_testing::ControlPlane;
use serde_json::Value;
use tokio::{task::JoinSet, time::interval};

use crate::fixtures::admin::Admin;

/// An audit policy that logs the metadata of writes, and the request bodies of deletions.
pub(super) const POLICY: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [
    {"level": "Request", "verbs": ["delete"]},
    {"level": "Metadata", "verbs": ["create", "patch", "update"]},
    {"level": "None"}]}"#;
/// The interval at which health is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// Checks that the daemon has created no object twice unless others deleted it in between, and that
/// each of its deletions carried preconditions.
pub(super) fn ensure_clean(plane: &ControlPlane) -> Result<()> {
    let mut created: BTreeMap<String, usize> = BTreeMap::new();
    let mut deleted_by_others: BTreeMap<String, usize> = BTreeMap::new();
    for write in all_writes(plane)? {
        let Write { verb, object, code, .. } = &write;
        match &**verb {
            "delete" if !write.is_ours() => {
                *deleted_by_others.entry(object.clone()).or_default() += usize::from(*code == 200);
            }
            _ if !write.is_ours() => {}
            "create" if *code == 201 && !object.starts_with("events ") => {
                *created.entry(object.clone()).or_default() += 1;
            }
            // The apiserver rejects such deletions before it reads the body, so the log has no
            // preconditions.
            "delete" if *code != 403 && *code != 401 => {
                ensure!(write.is_bound, "{object} was deleted without preconditions");
            }
            _ => {}
        }
    }
    let is_duplicate =
        |(object, times): &(&String, &usize)| **times > 1 + deleted_by_others.get(*object).copied().unwrap_or_default();
    let twice: Vec<_> = created.iter().filter(is_duplicate).collect();
    ensure!(twice.is_empty(), "created more than once: {twice:?}");
    ensure!(
        !created.is_empty(),
        "the audit log contains no creation: the audit policy is wrong"
    );
    Ok(())
}

/// A write in the audit log.
#[derive(Clone, Debug)]
pub(super) struct Write {
    verb: String,
    pub(super) namespace: String,
    object: String,
    /// The user agent: the program, its version, and the controller.
    pub(super) agent: String,
    code: u64,
    /// Whether the preconditions name a UID and a resourceVersion.
    is_bound: bool,
}

impl Write {
    /// Returns whether the daemon sent the write.
    fn is_ours(&self) -> bool {
        self.agent.starts_with("portreeve/")
    }
}

/// Returns all writes of the daemon so far, including rejected ones.
pub(super) fn writes(plane: &ControlPlane) -> Result<Vec<Write>> {
    let mut writes = all_writes(plane)?;
    writes.retain(Write::is_ours);
    Ok(writes)
}

fn all_writes(plane: &ControlPlane) -> Result<Vec<Write>> {
    let log = fs::read_to_string(plane.audit_log().context("the control plane has no audit log")?)?;
    // The apiserver may still be writing the last line.
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(events.map(|event| write_of(&event)).collect())
}

fn write_of(event: &Value) -> Write {
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let has_precondition = |field: &str| !text(&format!("/requestObject/preconditions/{field}")).is_empty();
    let object = ["resource", "namespace", "name"].map(|part| text(&format!("/objectRef/{part}")));
    let [resource, namespace, name] = object;
    Write {
        verb: text("/verb").to_owned(),
        namespace: namespace.to_owned(),
        object: format!("{resource} {namespace}/{name}"),
        agent: text("/userAgent").to_owned(),
        code: event
            .pointer("/responseStatus/code")
            .and_then(Value::as_u64)
            .unwrap_or_default(),
        is_bound: has_precondition("uid") && has_precondition("resourceVersion"),
    }
}

/// Polls `/livez` and `/readyz` of a daemon.
pub(super) struct HealthMonitor {
    history: Arc<Mutex<HealthHistory>>,
    _task: JoinSet<()>,
}

/// The failures that a [`HealthMonitor`] has observed.
#[derive(Default)]
struct HealthHistory {
    /// The first failure of `/livez`.
    livez_failure: Option<String>,
    /// The lines of `/readyz` that failed since the last [`HealthMonitor::take_failed_checks`].
    failed_checks: BTreeSet<String>,
}

impl HealthMonitor {
    pub(super) fn of(admin: Admin) -> Self {
        let history = Arc::<Mutex<HealthHistory>>::default();
        let mut task = JoinSet::new();
        task.spawn(poll_health(admin, Arc::clone(&history)));
        Self { history, _task: task }
    }

    /// Returns an error when `/livez` has failed at any time so far.
    pub(super) fn ensure_always_live(&self) -> Result<()> {
        let history = self.history.lock();
        let livez_failure = history.livez_failure.as_deref().unwrap_or_default();
        ensure!(livez_failure.is_empty(), "/livez has failed: {livez_failure}");
        Ok(())
    }

    /// Returns the lines of `/readyz` that have failed since the last call.
    pub(super) fn take_failed_checks(&self) -> BTreeSet<String> {
        mem::take(&mut self.history.lock().failed_checks)
    }

    /// Checks for the last time that `/livez` has never failed, before the daemon is stopped.
    pub(super) fn end(self) -> Result<()> {
        self.ensure_always_live()
    }
}

async fn poll_health(admin: Admin, history: Arc<Mutex<HealthHistory>>) {
    let mut ticks = interval(POLL_INTERVAL);
    loop {
        ticks.tick().await;
        let failure = match admin.get("/livez?verbose").await {
            Ok((StatusCode::OK, _)) => None,
            Ok((status, text)) => Some(format!("{status}: {text}")),
            Err(error) => Some(format!("{error:#}")),
        };
        let failed_checks = admin.failing("/readyz").await;
        let mut history = history.lock();
        history.livez_failure = history.livez_failure.take().or(failure);
        history.failed_checks.extend(failed_checks.into_iter().flatten());
    }
}
