//! What must hold at every moment: the audit log of what the daemon wrote, and its health.

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

use crate::{health::failing, support::admin::Admin};

/// Whatever is written, and deletions with what they ask for.
pub(super) const POLICY: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [
    {"level": "Request", "verbs": ["delete"]},
    {"level": "Metadata", "verbs": ["create", "patch", "update"]},
    {"level": "None"}]}"#;
/// How often health is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// Makes sure that the daemon has created nothing twice but what others have deleted, and deleted nothing but what it had seen.
pub(super) fn ensure_clean(plane: &ControlPlane) -> Result<()> {
    let mut created: BTreeMap<String, usize> = BTreeMap::new();
    let mut missed: BTreeMap<String, usize> = BTreeMap::new();
    for write in everybodys(plane)? {
        let Write { verb, object, code, .. } = &write;
        match &**verb {
            "delete" if !write.is_ours() => *missed.entry(object.clone()).or_default() += usize::from(*code == 200),
            _ if !write.is_ours() => {}
            "create" if *code == 201 && !object.starts_with("events ") => {
                *created.entry(object.clone()).or_default() += 1;
            }
            // Of what is refused for want of a right, nobody reads the body.
            "delete" if *code != 403 && *code != 401 => ensure!(write.is_bound, "{object} was deleted unseen"),
            _ => {}
        }
    }
    let is_one_too_many =
        |(object, times): &(&String, &usize)| **times > 1 + missed.get(*object).copied().unwrap_or_default();
    let twice: Vec<_> = created.iter().filter(is_one_too_many).collect();
    ensure!(twice.is_empty(), "created more than once: {twice:?}");
    ensure!(!created.is_empty(), "nothing was created: the policy is wrong");
    Ok(())
}

/// What somebody has asked for.
#[derive(Clone, Debug)]
pub(super) struct Write {
    verb: String,
    pub(super) namespace: String,
    object: String,
    /// The program, its version, and which controller of it.
    pub(super) agent: String,
    code: u64,
    /// It says which object it means, and in which version.
    is_bound: bool,
}

impl Write {
    /// Whether it is the daemon's.
    fn is_ours(&self) -> bool {
        self.agent.starts_with("portreeve/")
    }
}

/// Everything that the daemon has written so far, or tried to.
pub(super) fn writes(plane: &ControlPlane) -> Result<Vec<Write>> {
    let mut writes = everybodys(plane)?;
    writes.retain(Write::is_ours);
    Ok(writes)
}

fn everybodys(plane: &ControlPlane) -> Result<Vec<Write>> {
    let log = fs::read_to_string(plane.audit_log().context("it has an audit log")?)?;
    // The last line may be half written.
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(events.map(|event| write_of(&event)).collect())
}

fn write_of(event: &Value) -> Write {
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let says = |field: &str| !text(&format!("/requestObject/preconditions/{field}")).is_empty();
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
        is_bound: says("uid") && says("resourceVersion"),
    }
}

/// Asks a daemon again and again whether it is alive and ready.
pub(super) struct HealthMonitor {
    found: Arc<Mutex<Found>>,
    _task: JoinSet<()>,
}

#[derive(Default)]
struct Found {
    /// Why it was not alive.
    fault: Option<String>,
    /// The lines of `/readyz` that failed.
    red: BTreeSet<String>,
}

impl HealthMonitor {
    pub(super) fn of(admin: Admin) -> Self {
        let found = Arc::<Mutex<Found>>::default();
        let mut task = JoinSet::new();
        task.spawn(poll_health(admin, Arc::clone(&found)));
        Self { found, _task: task }
    }

    /// Fails when it was not alive at any time so far.
    pub(super) fn ensure_always_live(&self) -> Result<()> {
        let found = self.found.lock();
        let fault = found.fault.as_deref().unwrap_or_default();
        ensure!(fault.is_empty(), "/livez has failed: {fault}");
        Ok(())
    }

    /// The lines of `/readyz` that have failed since this was asked last.
    pub(super) fn take_failed_checks(&self) -> BTreeSet<String> {
        mem::take(&mut self.found.lock().red)
    }

    /// Makes sure of it for the last time, before the daemon is stopped.
    pub(super) fn end(self) -> Result<()> {
        self.ensure_always_live()
    }
}

async fn poll_health(admin: Admin, found: Arc<Mutex<Found>>) {
    let mut beat = interval(POLL_INTERVAL);
    loop {
        beat.tick().await;
        let dead = match admin.get("/livez?verbose").await {
            Ok((StatusCode::OK, _)) => None,
            Ok((status, text)) => Some(format!("{status}: {text}")),
            Err(error) => Some(format!("{error:#}")),
        };
        let red = failing(&admin, "/readyz").await;
        let mut found = found.lock();
        found.fault = found.fault.take().or(dead);
        found.red.extend(red.into_iter().flatten());
    }
}
