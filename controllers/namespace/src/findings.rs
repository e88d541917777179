//! What an attempt has found in a namespace, and the conditions that say so.
//!
//! The conditions are those of kube-controller-manager, word for word, because tools and
//! Kubernetes' own tests compare their messages. Once a namespace has been terminating for a while,
//! details follow those words: see [`Findings::conditions`].
//!
//! Architecture Invariant: pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use portreeve_api::Resource;
use serde_json::{Value, json};

use crate::content::Content;

/// The types of the conditions, in the order in which they are written.
const TYPES: [&str; 5] = [
    "NamespaceDeletionDiscoveryFailure",
    "NamespaceDeletionGroupVersionParsingFailure",
    "NamespaceDeletionContentFailure",
    "NamespaceContentRemaining",
    "NamespaceFinalizersRemaining",
];
/// The maximum length of a message, in bytes. Tenants choose what it quotes.
const MAX_MESSAGE: usize = 8 * 1024;
/// The number of objects that a message names.
const NAMED: usize = 10;

/// What an attempt has found in a namespace.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Findings {
    /// Why resources may be hidden: group versions that cannot be discovered, and others.
    pub(crate) hidden: Vec<String>,
    /// What is left, by resource.
    pub(crate) content: BTreeMap<Name, Content>,
    /// Why the content of a resource cannot be read or deleted.
    pub(crate) failures: BTreeMap<Name, String>,
}

/// A resource as messages name it: `deployments.apps`, and `pods.` in the core group.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Name(String);

impl Name {
    pub(crate) fn of(resource: &Resource) -> Self {
        Self(format!("{}.{}", resource.plural, resource.group))
    }

    /// Returns the name without the dot of the core group.
    pub(crate) fn plain(&self) -> &str {
        self.0.trim_end_matches('.')
    }
}

/// One condition, without its time.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Condition {
    type_: &'static str,
    status: bool,
    reason: &'static str,
    message: String,
}

impl Findings {
    /// Returns whether the namespace is proven empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.hidden.is_empty() && self.failures.is_empty() && self.content.values().all(Content::is_empty)
    }

    /// Returns the number of objects that are left.
    pub(crate) fn count(&self) -> usize {
        self.content.values().map(|content| content.count).sum()
    }

    /// Returns the objects that are left, at most ten, each with its resource.
    pub(crate) fn samples(&self) -> Vec<String> {
        let samples = self.content.iter().flat_map(|(name, content)| {
            let samples = content.samples.iter();
            samples.map(move |sample| format!("{} {sample}", name.plain()))
        });
        samples.take(NAMED).collect()
    }

    /// Returns why the namespace is not finalized, as one text.
    pub(crate) fn summary(&self) -> String {
        let hidden = self.hidden.iter().cloned();
        let failures = self
            .failures
            .iter()
            .map(|(name, why)| format!("{}: {why}", name.plain()));
        let left = self.left();
        let samples = (!left.is_empty()).then(|| {
            let more = self.count().saturating_sub(NAMED);
            let more = if more > 0 {
                format!("; and {more} more")
            } else {
                String::new()
            };
            format!("left: {}{more}", self.samples().join("; "))
        });
        let parts: Vec<_> = hidden.chain(failures).chain(samples).collect();
        cut(parts.join("; "))
    }

    /// Returns the number of objects of each resource, as kube-controller-manager writes it.
    fn left(&self) -> Vec<String> {
        let left = self.content.iter().filter(|(_, content)| !content.is_empty());
        left.map(|(name, content)| format!("{} has {} resource instances", name.0, content.count))
            .collect()
    }

    /// Returns the conditions of a namespace after this attempt, or `None` if they stay as they
    /// are. Conditions of other types are kept, and so are the times of those whose status stays
    /// the same.
    ///
    /// With `details`, a message also names objects, after the words of kube-controller-manager.
    pub(crate) fn conditions(&self, before: &[Value], details: bool, now: Timestamp) -> Option<Vec<Value>> {
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let mut after = before.to_vec();
        for condition in self.decided(details) {
            let existing = after.iter_mut().find(|known| known["type"] == condition.type_);
            let status = if condition.status { "True" } else { "False" };
            let since = existing
                .as_deref()
                .filter(|known| known["status"] == status)
                .and_then(|known| known.get("lastTransitionTime").cloned())
                .unwrap_or_else(|| json!(now));
            let value = json!({
                "type": condition.type_,
                "status": status,
                "lastTransitionTime": since,
                "reason": condition.reason,
                "message": condition.message,
            });
            match existing {
                Some(known) => *known = value,
                None => after.push(value),
            }
        }
        (after != before).then_some(after)
    }

    fn decided(&self, details: bool) -> [Condition; 5] {
        let [discovery, parsing, deletion, remaining, finalizers] = TYPES;
        [
            self.discovery(discovery),
            Condition::holds_not(
                parsing,
                "ParsedGroupVersions",
                "All legacy kube types successfully parsed",
            ),
            self.deletion(deletion),
            self.remaining(remaining, details),
            self.finalizers(finalizers),
        ]
    }

    fn discovery(&self, type_: &'static str) -> Condition {
        if self.hidden.is_empty() {
            return Condition::holds_not(type_, "ResourcesDiscovered", "All resources successfully discovered");
        }
        let message = format!(
            "Discovery failed for some groups, {} failing: {}",
            self.hidden.len(),
            self.hidden.join(", ")
        );
        Condition::holds(type_, "DiscoveryFailed", message)
    }

    fn deletion(&self, type_: &'static str) -> Condition {
        if self.failures.is_empty() {
            let message = "All content successfully deleted, may be waiting on finalization";
            return Condition::holds_not(type_, "ContentDeleted", message);
        }
        let failures: Vec<_> = self
            .failures
            .iter()
            .map(|(name, why)| format!("{}: {why}", name.plain()))
            .collect();
        let message = format!(
            "Failed to delete all resource types, {} remaining: {}",
            failures.len(),
            failures.join(", ")
        );
        Condition::holds(type_, "ContentDeletionFailed", message)
    }

    fn remaining(&self, type_: &'static str, details: bool) -> Condition {
        let left = self.left();
        if left.is_empty() {
            return Condition::holds_not(type_, "ContentRemoved", "All content successfully removed");
        }
        let mut message = format!("Some resources are remaining: {}", left.join(", "));
        if details {
            message.push_str(". Among them: ");
            message.push_str(&self.samples().join("; "));
        }
        Condition::holds(type_, "SomeResourcesRemain", message)
    }

    fn finalizers(&self, type_: &'static str) -> Condition {
        let mut numbers = BTreeMap::<&str, usize>::new();
        for (finalizer, number) in self.content.values().flat_map(|content| &content.finalizers) {
            *numbers.entry(finalizer).or_default() += number;
        }
        if numbers.is_empty() {
            let message = "All content-preserving finalizers finished";
            return Condition::holds_not(type_, "ContentHasNoFinalizers", message);
        }
        let numbers = numbers
            .iter()
            .map(|(finalizer, number)| format!("{finalizer} in {number} resource instances"));
        let message = format!(
            "Some content in the namespace has finalizers remaining: {}",
            numbers.collect::<Vec<_>>().join(", ")
        );
        Condition::holds(type_, "SomeFinalizersRemain", message)
    }
}

impl Condition {
    fn holds(type_: &'static str, reason: &'static str, message: String) -> Self {
        Self {
            type_,
            status: true,
            reason,
            message: cut(message),
        }
    }

    fn holds_not(type_: &'static str, reason: &'static str, message: &str) -> Self {
        Self {
            type_,
            status: false,
            reason,
            message: message.to_owned(),
        }
    }
}

/// Returns whether a namespace has a condition that this controller, or kube-controller-manager,
/// has written: then a deletion of its content may have been sent.
pub(crate) fn has_conditions(conditions: &[Value]) -> bool {
    conditions
        .iter()
        .any(|condition| TYPES.iter().any(|type_| condition["type"] == *type_))
}

/// Cuts a text at the maximum length of a message.
fn cut(mut text: String) -> String {
    if text.len() > MAX_MESSAGE {
        text.truncate(text.floor_char_boundary(MAX_MESSAGE));
        text.push_str(" … (cut)");
    }
    text
}

#[cfg(test)]
mod tests;
