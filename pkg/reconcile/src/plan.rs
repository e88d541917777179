//! The result of a decision: effects as data, and when to decide again.
//!
//! Architecture Invariant: pure. A plan can be compared and printed, and it is safe to stop after
//! any effect.

use std::{fmt, sync::Arc};

use jiff::Timestamp;
use portreeve_api::{Metadata, ObjectKey, Resource};
use serde_json::Value;

/// The version of an object that does not exist. etcd's first revision is that of the empty store,
/// so no object has it, and an [`Effect::Apply`] with it and an empty UID creates the object or
/// fails.
pub const ABSENT: &str = "1";

/// What to do about one key. Effects run in order, and the first one that fails ends the plan.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Plan {
    /// The effects; empty when nothing needs to change.
    pub effects: Vec<Effect>,
    /// When to decide again.
    pub next: Next,
}

impl Plan {
    /// Returns a plan without effects that waits for a change.
    pub fn nothing() -> Self {
        Self::of(Vec::new())
    }

    /// Returns a plan that runs these effects and then waits for a change.
    pub fn of(effects: Vec<Effect>) -> Self {
        Self {
            effects,
            next: Next::OnChange,
        }
    }

    /// Reduces the plan to the events before its first other effect that each process sends once.
    #[must_use]
    pub fn into_one_time_events(self) -> Self {
        let events = self.effects.into_iter().map_while(|effect| match effect {
            Effect::Event(target, content) => Some((target, content)),
            _ => None,
        });
        let one_time = events.filter(|(_, content)| content.report_once.is_some());
        Self::of(
            one_time
                .map(|(target, content)| Effect::Event(target, content))
                .collect(),
        )
    }
}

/// When to decide again if nothing changes before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Next {
    /// Only when something changes.
    OnChange,
    /// At this time.
    At(Timestamp),
}

/// One step of a plan. Every effect is safe to repeat: names are deterministic, and writes carry
/// the UID and version that the decision was based on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Effect {
    /// POST. If the object already exists, the cache was stale, and the key is observed again.
    Create(Object),
    /// Forced server-side apply, only on the object with this UID and version.
    Apply {
        /// The fields to own.
        object: Object,
        /// The UID of the object. Another object with the same name is not changed.
        uid: Arc<str>,
        /// The version that the decision was based on.
        version: Arc<str>,
    },
    /// Merge patch of the status subresource, only on the target's version.
    PatchStatus {
        /// The object.
        target: Target,
        /// The `status` to merge.
        status: Value,
    },
    /// GET, then PUT, only on the target's version. For a kind on which the role of
    /// kube-controller-manager permits `update` and not `patch`.
    Replace {
        /// The object.
        target: Target,
        /// The subresource to PUT, such as `status`; `None` for the object itself.
        subresource: Option<&'static str>,
        /// A merge patch for the object that was read.
        changes: Value,
    },
    /// DELETE, only of the object with the target's UID and version.
    Delete {
        /// The object.
        target: Target,
        /// What happens to its dependents.
        propagation: Propagation,
    },
    /// GET. Continues only if the object is gone or has another controller. Otherwise the cache was
    /// stale, and the key is observed again.
    RequireAbsent {
        /// The resource of the object.
        resource: Resource,
        /// The key of the object.
        key: ObjectKey,
        /// The UID of the object. Another object in its place counts as gone.
        uid: Arc<str>,
        /// The UID of its controller.
        controller: Arc<str>,
    },
    /// GET. Continues only if the object exists and is not being deleted. Otherwise the cache was
    /// stale, and the key is observed again. Use this before recreating a dependent, whose deletion
    /// may be part of its owner's.
    RequirePresent {
        /// The resource of the object.
        resource: Resource,
        /// The key of the object.
        key: ObjectKey,
        /// The UID of the object.
        uid: Arc<str>,
    },
    /// GET of an object that the reconciler remembers from an earlier request
    /// ([`Reconciler::observe_request`](crate::Reconciler::observe_request)). Continues if the
    /// answer confirms what it remembers. Otherwise the key is observed again.
    Read {
        /// The resource of the object.
        resource: Resource,
        /// The key of the object.
        key: ObjectKey,
    },
    /// LIST, in pages, of objects that the reconciler checks one by one
    /// ([`RequestState::Listed`](crate::RequestState::Listed)). Continues if each of them agrees
    /// with the decision, or if the apiserver does not serve the resource. Otherwise the key is
    /// observed again. Use this where an object that the cache does not show yet would do harm.
    List {
        /// The resource of the objects.
        resource: Resource,
        /// Their namespace; `None` for all.
        namespace: Option<Arc<str>>,
        /// A field selector. The empty string selects all objects.
        fields: &'static str,
    },
    /// An Event. It is queued and best-effort, and never fails or delays a plan.
    Event(Target, EventContent),
    /// Adds to a counter that the controller declared with
    /// [`KeyedController::counter`](crate::KeyedController::counter).
    Count {
        /// The counter.
        metric: &'static str,
        /// The increment.
        by: u64,
    },
    /// Observes the time elapsed since `since` once all previous effects are done. The controller
    /// declares the histogram with [`KeyedController::latency`](crate::KeyedController::latency).
    ObserveLatency {
        /// The histogram.
        metric: &'static str,
        /// The start of the measured time.
        since: Timestamp,
    },
}

impl Effect {
    /// Returns the object whose status this effect writes.
    pub fn status_target(&self) -> Option<&Target> {
        match self {
            Self::PatchStatus { target, .. }
            | Self::Replace {
                target,
                subresource: Some("status"),
                ..
            } => Some(target),
            _ => None,
        }
    }
}

/// A whole manifest.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Object {
    /// The resource of the object.
    pub resource: Resource,
    /// The key of the object.
    pub key: ObjectKey,
    /// The manifest, with apiVersion, kind and metadata.
    pub body: Value,
}

/// An existing object, in the version that the decision was based on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Target {
    /// The resource of the object.
    pub resource: Resource,
    /// The key of the object.
    pub key: ObjectKey,
    /// The UID of the object.
    pub uid: Arc<str>,
    /// The resourceVersion of the object.
    pub version: Arc<str>,
}

impl Target {
    /// Returns the target for the object with this metadata.
    pub fn of(resource: &Resource, metadata: &Metadata) -> Self {
        Self {
            resource: resource.clone(),
            key: metadata.key(),
            uid: Arc::clone(&metadata.uid),
            version: Arc::clone(&metadata.resource_version),
        }
    }
}

/// What happens to the dependents of a deleted object.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Propagation {
    /// They are collected after the object is gone.
    Background,
    /// The object stays until its blocking dependents are gone.
    Foreground,
    /// They stay.
    Orphan,
}

/// The content of an Event.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EventContent {
    /// Whether the Event needs attention.
    pub type_: EventSeverity,
    /// The machine-readable cause, in CamelCase.
    pub reason: &'static str,
    /// The action that was taken, in CamelCase.
    pub action: &'static str,
    /// The human-readable message.
    pub message: String,
    /// If set, each process sends the Event once per object, reason and this text. Use it when no
    /// status field prevents repetition. With `None`, the Event is sent every time.
    pub report_once: Option<String>,
}

impl EventContent {
    /// Returns the content of a normal Event.
    pub fn normal(reason: &'static str, action: &'static str, message: impl Into<String>) -> Self {
        Self {
            type_: EventSeverity::Normal,
            reason,
            action,
            message: message.into(),
            report_once: None,
        }
    }

    /// Returns the content of a warning Event.
    pub fn warning(reason: &'static str, action: &'static str, message: impl Into<String>) -> Self {
        Self {
            type_: EventSeverity::Warning,
            ..Self::normal(reason, action, message)
        }
    }

    /// Limits the Event to one per subject.
    #[must_use]
    pub fn report_once(self, subject: impl Into<String>) -> Self {
        Self {
            report_once: Some(subject.into()),
            ..self
        }
    }
}

/// The two types of Events.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EventSeverity {
    /// Everything is as expected.
    Normal,
    /// The Event needs attention.
    Warning,
}

/// One line for the log with the action and the object.
impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create(object) => write!(f, "create {} {}", object.resource.kind, object.key),
            Self::Apply { object, .. } => write!(f, "apply {} {}", object.resource.kind, object.key),
            Self::PatchStatus { target, .. } => write!(f, "patch status of {} {}", target.resource.kind, target.key),
            Self::Replace {
                target, subresource, ..
            } => {
                let of = subresource.map(|name| format!("{name} of ")).unwrap_or_default();
                write!(f, "replace {of}{} {}", target.resource.kind, target.key)
            }
            Self::Delete { target, .. } => write!(f, "delete {} {}", target.resource.kind, target.key),
            Self::RequireAbsent { resource, key, .. } => write!(f, "check that {} {key} does not exist", resource.kind),
            Self::RequirePresent { resource, key, .. } => write!(f, "check that {} {key} exists", resource.kind),
            Self::Read { resource, key } => write!(f, "read {} {key}", resource.kind),
            Self::List {
                resource, namespace, ..
            } => match namespace {
                Some(namespace) => write!(f, "list {} in {namespace}", resource.plural),
                None => write!(f, "list {}", resource.plural),
            },
            Self::Event(target, note) => {
                write!(f, "event {} on {} {}", note.reason, target.resource.kind, target.key)
            }
            Self::Count { metric, by } => write!(f, "count {by} in {metric}"),
            Self::ObserveLatency { metric, since } => write!(f, "observe the time since {since} in {metric}"),
        }
    }
}

/// The effects separated by commas, or `nothing`, followed by the time of the next decision.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for effect in &self.effects {
            write!(f, "{separator}{effect}")?;
            separator = ", ";
        }
        if self.effects.is_empty() {
            f.write_str("nothing")?;
        }
        match self.next {
            Next::OnChange => Ok(()),
            Next::At(time) => write!(f, "; again at {time}"),
        }
    }
}
