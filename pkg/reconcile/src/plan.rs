//! What a decision consists of: effects as data, and when to decide again.
//!
//! Architecture Invariant: values only. A plan can be compared, printed, and stopped after any prefix.

use std::{fmt, sync::Arc};

use jiff::Timestamp;
use portreeve_api::{Metadata, ObjectKey, Resource};
use serde_json::Value;

/// What to do about one key. Effects run in order; the first that fails ends the plan.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Plan {
    /// What to do; empty when everything is as it should be.
    pub effects: Vec<Effect>,
    /// When to decide again.
    pub next: Next,
}

impl Plan {
    /// Nothing to do until something changes.
    pub fn nothing() -> Self {
        Self::of(Vec::new())
    }

    /// Do this, then wait for a change.
    pub fn of(effects: Vec<Effect>) -> Self {
        Self {
            effects,
            next: Next::OnChange,
        }
    }
}

/// When to decide again, should nothing change before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Next {
    /// Not before something changes.
    OnChange,
    /// At that time.
    At(Timestamp),
}

/// One change of the world. Every one is safe to repeat: names are deterministic, writes carry the UID and version that the
/// decision was based on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Effect {
    /// POST. If it exists already, the key is observed again: the cache had not seen it yet.
    Create(Object),
    /// Server-side apply, forced, on the object of that UID and version alone.
    Apply {
        /// The fields to own.
        object: Object,
        /// Which object; another one of the same name is left alone.
        uid: Arc<str>,
        /// The version that was decided on.
        version: Arc<str>,
    },
    /// Merge patch of the status subresource, on the version that was decided on.
    PatchStatus {
        /// Which object.
        target: Target,
        /// The `status` to merge.
        status: Value,
    },
    /// DELETE, on that UID and version alone.
    Delete {
        /// Which object.
        target: Target,
        /// What becomes of its dependents.
        propagation: Propagation,
    },
    /// GET. Goes on only if the object is gone, or has another controller: while it is there after all, the cache was behind, and the
    /// key is observed again.
    RequireAbsent {
        /// Where it lived.
        resource: Resource,
        /// What it was called.
        key: ObjectKey,
        /// Which one of that name; another one in its place is as good as none.
        uid: Arc<str>,
        /// The UID of its controller.
        controller: Arc<str>,
    },
    /// GET. Goes on only if the object is there and stays: while it is gone, or going, the cache was behind, and the key is observed
    /// again. For what is made anew for its owner, which may be why it was deleted.
    RequirePresent {
        /// Where it lives.
        resource: Resource,
        /// What it is called.
        key: ObjectKey,
        /// Which one of that name.
        uid: Arc<str>,
    },
    /// An Event. Queued and best-effort: never fails or delays a plan.
    Event(Target, EventContent),
    /// Adds to a counter that the controller has declared with [`KeyedController::counter`](crate::KeyedController::counter).
    Count {
        /// The counter.
        metric: &'static str,
        /// How much is added.
        by: u64,
    },
    /// Observes how long ago `since` is, now that the effects before this one are done, in a histogram that the controller has
    /// declared with [`KeyedController::latency`](crate::KeyedController::latency).
    ObserveLatency {
        /// The histogram.
        metric: &'static str,
        /// When it should have been.
        since: Timestamp,
    },
}

/// A whole manifest.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Object {
    /// Where it lives.
    pub resource: Resource,
    /// What it is called.
    pub key: ObjectKey,
    /// The manifest, with apiVersion, kind and metadata.
    pub body: Value,
}

/// An object that exists, as it was when the decision was made.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Target {
    /// Where it lives.
    pub resource: Resource,
    /// What it is called.
    pub key: ObjectKey,
    /// Which one of that name.
    pub uid: Arc<str>,
    /// In which version.
    pub version: Arc<str>,
}

impl Target {
    /// The object that has this metadata.
    pub fn of(resource: &Resource, metadata: &Metadata) -> Self {
        Self {
            resource: resource.clone(),
            key: metadata.key(),
            uid: Arc::clone(&metadata.uid),
            version: Arc::clone(&metadata.resource_version),
        }
    }
}

/// What becomes of the dependents of a deleted object.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Propagation {
    /// They are collected after it is gone.
    Background,
    /// It stays until those that block it are gone.
    Foreground,
    /// They stay.
    Orphan,
}

/// What an Event says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EventContent {
    /// Whether somebody should look.
    pub type_: EventSeverity,
    /// Why, in CamelCase: what dashboards count.
    pub reason: &'static str,
    /// What was being done, in CamelCase.
    pub action: &'static str,
    /// The sentence.
    pub message: String,
    /// What it is about, for a note that every decision makes anew because no status remembers it: of each object, reason and
    /// subject a process sends one. `None`: whenever it is decided.
    pub report_once: Option<String>,
}

impl EventContent {
    /// A note that says what was expected.
    pub fn normal(reason: &'static str, action: &'static str, message: impl Into<String>) -> Self {
        Self {
            type_: EventSeverity::Normal,
            reason,
            action,
            message: message.into(),
            report_once: None,
        }
    }

    /// A note that somebody should look at.
    pub fn warning(reason: &'static str, action: &'static str, message: impl Into<String>) -> Self {
        Self {
            type_: EventSeverity::Warning,
            ..Self::normal(reason, action, message)
        }
    }

    /// The same, once for each subject.
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
    /// As expected.
    Normal,
    /// Somebody should look.
    Warning,
}

/// One line for the log: what, on which object.
impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create(object) => write!(f, "create {} {}", object.resource.kind, object.key),
            Self::Apply { object, .. } => write!(f, "apply {} {}", object.resource.kind, object.key),
            Self::PatchStatus { target, .. } => write!(f, "patch status of {} {}", target.resource.kind, target.key),
            Self::Delete { target, .. } => write!(f, "delete {} {}", target.resource.kind, target.key),
            Self::RequireAbsent { resource, key, .. } => write!(f, "make sure that {} {key} is gone", resource.kind),
            Self::RequirePresent { resource, key, .. } => write!(f, "make sure that {} {key} is there", resource.kind),
            Self::Event(target, note) => {
                write!(f, "event {} on {} {}", note.reason, target.resource.kind, target.key)
            }
            Self::Count { metric, by } => write!(f, "count {by} in {metric}"),
            Self::ObserveLatency { metric, since } => write!(f, "observe the time since {since} in {metric}"),
        }
    }
}

/// Effects joined by commas, or `nothing`.
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
