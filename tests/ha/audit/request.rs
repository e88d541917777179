//! Mutating requests: the line at which each came, the line at which it was answered, and what the answer says about etcd's order.

use std::collections::HashMap;
use std::fmt;

use anyhow::{Context, Result};
use jiff::Timestamp;

use super::Revision;
use super::event::{Event, Object, ObjectReference, Stage};

const MUTATING: &[&str] = &["create", "update", "patch", "delete", "deletecollection"];

/// A place in the log, and its time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct LogPosition {
    /// The number of the line, from 1.
    pub(crate) line: usize,
    /// For measuring only.
    pub(crate) at: Timestamp,
}

/// What a request is about.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Target {
    pub(crate) group: String,
    /// With its subresource: `foos/status`.
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

/// How a request was answered.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    /// With the object as it is stored: at this revision by this request, or by an earlier one when this one changed nothing.
    Stored {
        revision: Revision,
        /// Of a Lease.
        holder: String,
    },
    /// It was done, but the answer carries no revision, or an old one. So it is for an object that is removed at once: a DELETE is
    /// answered with a Status, a DELETE of a collection with the objects as they were, and a write that takes the last finalizer off
    /// with the object as it was stored last.
    NoRevision {
        /// A revision before the write's.
        after: Revision,
    },
    /// Nothing was changed.
    Refused { code: u16 },
    /// By an error of the server's, by a panic, or not at all: it may have been done, and may still be.
    Unknown { code: u16 },
}

/// A request that changes something if it is granted.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) sender: String,
    /// The last word of its user agent.
    pub(crate) component: String,
    pub(crate) verb: String,
    pub(crate) target: Target,
    pub(crate) is_dry_run: bool,
    pub(crate) received: LogPosition,
    /// Nothing when the log ends before the answer, or the apiserver did.
    pub(crate) answered: Option<LogPosition>,
    pub(crate) answer: Outcome,
}

/// The mutating requests of a log in the order in which they came.
///
/// # Errors
/// When a line cannot be read, or tells the end of a request whose beginning is not in the log.
pub(crate) fn requests(log: &str) -> Result<Vec<Request>> {
    let mut requests: Vec<Request> = Vec::new();
    let mut open: HashMap<String, usize> = HashMap::new();
    for (index, text) in log.lines().enumerate() {
        let line = index + 1;
        let event: Event =
            serde_json::from_str(text).with_context(|| format!("failed to read line {line} of the audit log"))?;
        if !MUTATING.contains(&&*event.verb) {
            continue;
        }
        let moment = LogPosition {
            line,
            at: event.stage_timestamp,
        };
        match event.stage {
            Stage::RequestReceived => {
                let audit_id = event.audit_id.clone();
                if let Some(request) = received(event, moment) {
                    open.insert(audit_id, requests.len());
                    requests.push(request);
                }
            }
            Stage::ResponseStarted => {}
            Stage::ResponseComplete | Stage::Panic => {
                let Some(reference) = &event.object_ref else {
                    continue;
                };
                let request = open
                    .remove(&event.audit_id)
                    .and_then(|place| requests.get_mut(place))
                    .with_context(|| format!("line {line} answers what was never received"))?;
                // The name of what is created may be in the answer only.
                let named = event.response_object.as_ref().and_then(|it| it.metadata.name.clone());
                if let Some(name) = Some(reference.name.clone()).filter(|name| !name.is_empty()).or(named) {
                    request.target.name = name;
                }
                request.answered = Some(moment);
                request.answer = answer(&event).with_context(|| format!("line {line} of the audit log"))?;
            }
        }
    }
    Ok(requests)
}

/// A request that is not answered yet; nothing for paths that are no resources.
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
        answered: None,
        answer: Outcome::Unknown { code: 0 },
    })
}

fn answer(event: &Event) -> Result<Outcome> {
    let code = event.response_status.as_ref().map_or(0, |status| status.code);
    Ok(match code {
        _ if event.stage == Stage::Panic => Outcome::Unknown { code },
        200..400 => match &event.response_object {
            Some(object) => done(object)?,
            None => Outcome::NoRevision { after: 0 },
        },
        400..500 => Outcome::Refused { code },
        _ => Outcome::Unknown { code },
    })
}

fn done(object: &Object) -> Result<Outcome> {
    let revision = object.metadata.resource_version.as_deref().unwrap_or_default();
    if revision.is_empty() || object.kind == "Status" {
        return Ok(Outcome::NoRevision { after: 0 });
    }
    let revision: Revision = revision.parse().with_context(|| format!("the revision {revision:?}"))?;
    if object.kind.ends_with("List") {
        return Ok(Outcome::NoRevision { after: revision });
    }
    let is_removed = object.metadata.deletion_timestamp.is_some() && object.metadata.finalizers.is_empty();
    if is_removed {
        // Some kinds (Pods) are answered with the revision of their removal.
        let after = revision.saturating_sub(1);
        return Ok(Outcome::NoRevision { after });
    }
    let holder = object.spec.holder_identity.clone().unwrap_or_default();
    Ok(Outcome::Stored { revision, holder })
}
