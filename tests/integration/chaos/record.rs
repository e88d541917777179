//! What must hold at every moment: the audit log of what the daemon wrote, and its pulse.

use std::{collections::BTreeMap, fs, time::Duration};

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use portreeve_testing::ControlPlane;
use serde_json::Value;
use tokio::{sync::watch, task::JoinSet, time::interval};

use crate::support::admin::Admin;

/// Whatever is written, and deletions with what they ask for.
pub(super) const POLICY: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [
    {"level": "Request", "verbs": ["delete"]},
    {"level": "Metadata", "verbs": ["create", "patch", "update"]},
    {"level": "None"}]}"#;
/// How often the pulse is felt.
const BEAT: Duration = Duration::from_millis(300);

/// Makes sure that the daemon has created nothing twice, and deleted nothing but what it had seen.
pub(super) fn ensure_clean(plane: &ControlPlane) -> Result<()> {
    let mut created: BTreeMap<String, usize> = BTreeMap::new();
    for write in writes(plane)? {
        let Write { verb, object, code, .. } = &write;
        match &**verb {
            "create" if *code == 201 && !object.starts_with("events ") => {
                *created.entry(object.clone()).or_default() += 1;
            }
            // Of what is refused for want of a right, nobody reads the body.
            "delete" if *code != 403 && *code != 401 => ensure!(write.is_bound, "{object} was deleted unseen"),
            _ => {}
        }
    }
    let twice: Vec<_> = created.iter().filter(|(_, times)| **times > 1).collect();
    ensure!(twice.is_empty(), "created more than once: {twice:?}");
    ensure!(!created.is_empty(), "nothing was created: the policy is wrong");
    Ok(())
}

/// What the daemon has asked for.
#[derive(Debug)]
pub(super) struct Write {
    verb: String,
    object: String,
    code: u64,
    /// It says which object it means, and in which version.
    is_bound: bool,
}

/// Everything that the daemon has written so far, or tried to.
pub(super) fn writes(plane: &ControlPlane) -> Result<Vec<Write>> {
    let log = fs::read_to_string(plane.audit_log().context("it has an audit log")?)?;
    // The last line may be half written.
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(events.filter_map(|event| write_of(&event)).collect())
}

fn write_of(event: &Value) -> Option<Write> {
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let says = |field: &str| !text(&format!("/requestObject/preconditions/{field}")).is_empty();
    let object = ["resource", "namespace", "name"].map(|part| text(&format!("/objectRef/{part}")));
    let [resource, namespace, name] = object;
    text("/userAgent").starts_with("portreeve/").then(|| Write {
        verb: text("/verb").to_owned(),
        object: format!("{resource} {namespace}/{name}"),
        code: event
            .pointer("/responseStatus/code")
            .and_then(Value::as_u64)
            .unwrap_or_default(),
        is_bound: says("uid") && says("resourceVersion"),
    })
}

/// Asks again and again whether a daemon is alive.
pub(super) struct Pulse {
    fault: watch::Receiver<Option<String>>,
    _task: JoinSet<()>,
}

impl Pulse {
    pub(super) fn of(admin: Admin) -> Self {
        let (found, fault) = watch::channel(None);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut beat = interval(BEAT);
            loop {
                beat.tick().await;
                let wrong = match admin.get("/livez?verbose").await {
                    Ok((StatusCode::OK, _)) => continue,
                    Ok((status, text)) => format!("{status}: {text}"),
                    Err(error) => format!("{error:#}"),
                };
                found.send_replace(Some(wrong));
            }
        });
        Self { fault, _task: task }
    }

    /// Fails when it was not alive at any time so far.
    pub(super) fn ensure_steady(&self) -> Result<()> {
        let fault = self.fault.borrow();
        ensure!(
            fault.is_none(),
            "/livez has failed: {}",
            fault.as_deref().unwrap_or_default()
        );
        Ok(())
    }

    /// The same, before the daemon is stopped.
    pub(super) fn end(self) -> Result<()> {
        self.ensure_steady()
    }
}
