//! Mutating requests: the line at which each was received, the line of its response, and the
//! revision that the response reports.

use std::collections::HashMap;
use std::fmt;

use anyhow::{Context, Result};
use jiff::Timestamp;

use super::Revision;
use super::event::{Event, Object, ObjectReference, Stage};

const MUTATING: &[&str] = &["create", "update", "patch", "delete", "deletecollection"];

/// A position in the log, and its time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct LogPosition {
    /// The number of the line, from 1.
    pub(crate) line: usize,
    /// The time, for measurements only.
    pub(crate) at: Timestamp,
}

/// The object that a request targets.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Target {
    pub(crate) group: String,
    /// The resource with its subresource, such as `foos/status`.
    pub(crate) resource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            group,
            resource,
            namespace,
            name,
        } = self;
        let dot = if group.is_empty() { "" } else { "." };
        let slash = if namespace.is_empty() { "" } else { "/" };
        write!(f, "{resource}{dot}{group} {namespace}{slash}{name}")
    }
}

/// The response to a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    /// The response has the stored object. This request stored it at this revision, or an earlier
    /// request did and this one changed nothing.
    Stored {
        revision: Revision,
        /// The holder, when the object is a Lease.
        holder: String,
    },
    /// The request succeeded, but the response carries no revision or an old one. This happens when
    /// an object is removed at once: a DELETE returns a Status, a DELETE of a collection returns
    /// the former objects, and a write that removes the last finalizer returns the object as it was
    /// stored last.
    NoRevision {
        /// A revision that precedes the write.
        after: Revision,
    },
    /// The apiserver rejected the request, which changed nothing.
    Rejected { code: u16 },
    /// A server error, a panic, or no response: the request may have succeeded, or may still
    /// succeed.
    Unknown { code: u16 },
}

/// A mutating request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) sender: String,
    /// The last word of the user agent.
    pub(crate) component: String,
    pub(crate) verb: String,
    pub(crate) target: Target,
    pub(crate) is_dry_run: bool,
    pub(crate) received: LogPosition,
    /// `None` when the log or the apiserver ended before the response.
    pub(crate) completed: Option<LogPosition>,
    pub(crate) outcome: Outcome,
}

/// Returns the mutating requests of a log in the order in which they were received. The log may
/// begin amid requests, which are left out: that of a control plane is emptied when it is used
/// again.
///
/// # Errors
/// Returns an error when a line cannot be parsed, or completes a request that the log does not
/// contain.
pub(crate) fn requests(log: &str) -> Result<Vec<Request>> {
    let mut requests: Vec<Request> = Vec::new();
    let mut open: HashMap<String, usize> = HashMap::new();
    let mut began = None;
    for (index, text) in log.lines().enumerate() {
        let line = index + 1;
        let event: Event =
            serde_json::from_str(text).with_context(|| format!("failed to parse line {line} of the audit log"))?;
        let began = *began.get_or_insert(event.stage_timestamp);
        if !MUTATING.contains(&&*event.verb) {
            continue;
        }
        let position = LogPosition {
            line,
            at: event.stage_timestamp,
        };
        match event.stage {
            Stage::RequestReceived => {
                let audit_id = event.audit_id.clone();
                if let Some(request) = received(event, position) {
                    open.insert(audit_id, requests.len());
                    requests.push(request);
                }
            }
            Stage::ResponseStarted => {}
            Stage::ResponseComplete | Stage::Panic => {
                let Some(reference) = &event.object_ref else {
                    continue;
                };
                if !open.contains_key(&event.audit_id) && event.request_received_timestamp < began {
                    continue;
                }
                let request = open
                    .remove(&event.audit_id)
                    .and_then(|index| requests.get_mut(index))
                    .with_context(|| format!("line {line} completes a request that the log does not contain"))?;
                // The name of a created object may be only in the response.
                let named = event.response_object.as_ref().and_then(|it| it.metadata.name.clone());
                if let Some(name) = Some(reference.name.clone()).filter(|name| !name.is_empty()).or(named) {
                    request.target.name = name;
                }
                request.completed = Some(position);
                request.outcome = outcome(&event).with_context(|| format!("line {line} of the audit log"))?;
            }
        }
    }
    Ok(requests)
}

/// Returns a request without its response, or `None` for paths that are not resources.
fn received(event: Event, received: LogPosition) -> Option<Request> {
    let ObjectReference {
        api_group: group,
        mut resource,
        subresource,
        namespace,
        name,
    } = event.object_ref?;
    if !subresource.is_empty() {
        resource = format!("{resource}/{subresource}");
    }
    let sender = event.user.sender();
    let component = event.user_agent.rsplit(' ').next().unwrap_or_default().to_owned();
    Some(Request {
        sender,
        component,
        verb: event.verb,
        target: Target {
            group,
            resource,
            namespace,
            name,
        },
        is_dry_run: event.request_uri.contains("dryRun="),
        received,
        completed: None,
        outcome: Outcome::Unknown { code: 0 },
    })
}

fn outcome(event: &Event) -> Result<Outcome> {
    let code = event.response_status.as_ref().map_or(0, |status| status.code);
    Ok(match code {
        _ if event.stage == Stage::Panic => Outcome::Unknown { code },
        200..400 => match &event.response_object {
            Some(object) => outcome_of_success(object)?,
            None => Outcome::NoRevision { after: 0 },
        },
        400..500 => Outcome::Rejected { code },
        _ => Outcome::Unknown { code },
    })
}

fn outcome_of_success(object: &Object) -> Result<Outcome> {
    let revision = object.metadata.resource_version.as_deref().unwrap_or_default();
    if revision.is_empty() || object.kind == "Status" {
        return Ok(Outcome::NoRevision { after: 0 });
    }
    let revision: Revision = revision
        .parse()
        .with_context(|| format!("failed to parse the revision {revision:?}"))?;
    if object.kind.ends_with("List") {
        return Ok(Outcome::NoRevision { after: revision });
    }
    let is_removed = object.metadata.deletion_timestamp.is_some() && object.metadata.finalizers.is_empty();
    if is_removed {
        // Responses for some kinds, such as Pods, carry the revision of the removal.
        let after = revision.saturating_sub(1);
        return Ok(Outcome::NoRevision { after });
    }
    let holder = object.spec.holder_identity.clone().unwrap_or_default();
    Ok(Outcome::Stored { revision, holder })
}
