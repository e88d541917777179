//! Explains in sentences why an object is kept or collected.
//!
//! Architecture Invariant: pure.

use serde_json::{Value, json};

use crate::{
    graph::NodeView,
    identity::Identity,
    verdict::{DeletionStage, KeepReason, OwnerState, PropagationPolicy, Verdict},
};

/// Facts beyond the graph that an explanation mentions.
#[derive(Clone, Debug, Default)]
pub struct ExplainContext {
    /// Why the last attempt failed, and for how many seconds attempts have been failing.
    pub failing: Option<(String, u64)>,
    /// The resources that are not synced, and why.
    pub unsynced: Vec<String>,
    /// The kinds that are not served, among those of the object and its owners: apiVersion and
    /// kind.
    pub unserved: Vec<(Box<str>, Box<str>)>,
    /// Why deletions are stopped, and how to resume them.
    pub tripped: Option<String>,
    /// Whether the collector only observes: `--gc-mode=observe` or `--dry-run`.
    pub observes: bool,
}

impl ExplainContext {
    fn is_unserved(&self, identity: &Identity) -> bool {
        let mut unserved = self.unserved.iter();
        unserved.any(|(api_version, kind)| *api_version == identity.api_version && *kind == identity.kind)
    }

    /// Returns how to describe an owner whose state the graph does not know.
    fn unknown_state(&self, owner: &Identity) -> &'static str {
        if self.is_unserved(owner) {
            "not known to exist; its kind is not served"
        } else {
            "not known to exist; the collector reads it from the apiserver when a decision depends on it"
        }
    }
}

/// Returns the sentences of the explanation.
pub fn sentences(view: &NodeView, around: &ExplainContext) -> Vec<String> {
    let mut sentences = vec![state(view)];
    let owners = view.owners.iter();
    sentences.extend(owners.map(|(owner, blocks, owner_state)| {
        let owner_state = owner_state.map_or(around.unknown_state(owner), OwnerState::word);
        let blocking = if *blocks { " (blockOwnerDeletion)" } else { "" };
        format!("Its owner {owner}{blocking} is {owner_state}.")
    }));
    if view.dependents > 0 {
        sentences.push(dependents(view));
    }
    sentences.push(outcome(view, around));
    if view.stage == DeletionStage::Orphaning && !around.unsynced.is_empty() {
        sentences.push(format!(
            "Its finalizer orphan stays until every collectable resource is listed, or has failed for 30 s; not synced: {}.",
            around.unsynced.join("; ")
        ));
    }
    if let Some((reason, seconds)) = &around.failing {
        sentences.push(format!("Attempts have been failing for {seconds} s: {reason}."));
    }
    if let Some(tripped) = &around.tripped {
        sentences.push(format!("Deletions are stopped: {tripped}."));
    }
    if around.observes {
        sentences.push(
            "The collector deletes and changes no object: it runs with --gc-mode=observe or --dry-run.".to_owned(),
        );
    }
    sentences
}

fn state(view: &NodeView) -> String {
    let identity = &view.identity;
    if view.is_absent {
        return format!("{identity} does not exist; objects still refer to it.");
    }
    if view.is_virtual {
        return format!("{identity} is known only from references: no watch has reported it.");
    }
    let deletion = match view.stage {
        DeletionStage::Present => "exists",
        DeletionStage::WaitingForDependents => "is being deleted and waits for the dependents that block it",
        DeletionStage::Orphaning => "is being deleted and waits for its dependents to be orphaned",
        DeletionStage::Deleting => "is being deleted",
    };
    format!("{identity} {deletion}; it was seen in version {}.", view.version)
}

fn dependents(view: &NodeView) -> String {
    let refer = match view.dependents {
        1 => "One reference names it as an owner".to_owned(),
        count => format!("{count} references name it as an owner"),
    };
    if view.is_absent {
        return format!("{refer}.");
    }
    if view.blockers.is_empty() {
        return format!("{refer}; none blocks its deletion.");
    }
    let named: Vec<_> = view.blockers.iter().map(ToString::to_string).collect();
    let more = match view.blocking as usize - named.len().min(view.blocking as usize) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let blocked = if view.stage == DeletionStage::WaitingForDependents {
        "its deletion is blocked by"
    } else {
        "its foreground deletion would be blocked by"
    };
    format!("{refer}; {blocked} {}{more}.", named.join(", "))
}

fn outcome(view: &NodeView, around: &ExplainContext) -> String {
    let Some(verdict) = &view.verdict else {
        let mut unproven = view.owners.iter().filter(|(_, _, owner_state)| owner_state.is_none());
        let sentence = if view.is_absent {
            "The collector deletes its dependents unless another owner keeps them."
        } else if view.is_virtual && around.is_unserved(&view.identity) {
            "It is unknown whether it exists, because its kind is not served: the collector keeps its dependents. \
             If its CustomResourceDefinition was deleted for good, \
             delete the dependents or remove their references to it."
        } else if view.is_virtual {
            "The collector reads it from the apiserver when a decision depends on it."
        } else if unproven.any(|(owner, ..)| around.is_unserved(owner)) {
            "It is kept: nothing proves that an owner is gone whose kind is not served. \
             If the CustomResourceDefinition was deleted for good, \
             delete this object or remove its reference to that owner."
        } else {
            "It is kept until the apiserver has confirmed whether its owners exist."
        };
        return sentence.to_owned();
    };
    let sentence = match verdict {
        Verdict::Keep(KeepReason::BeingDeleted) => "Nothing to do: it is already being deleted.",
        Verdict::Keep(KeepReason::WaitsForDependents) => "It is kept until no dependent blocks its deletion.",
        Verdict::Keep(KeepReason::NoOwner) => "It is kept: it has no owner.",
        Verdict::Keep(KeepReason::Owned) => "It is kept: its owners exist.",
        Verdict::Keep(KeepReason::OwnerUnknown) => "It is kept: it is unknown whether one of its owners exists.",
        Verdict::Keep(KeepReason::OwnerMisplaced) => {
            "It is kept and never collected: a cluster-scoped object cannot have a namespaced owner. Correct its ownerReferences."
        }
        Verdict::BreakCycle => {
            "It waits for its own deletion, through dependents that wait too: blockOwnerDeletion will be unset in one of its references."
        }
        Verdict::RemoveFinalizer => {
            "Its finalizer foregroundDeletion will be removed: no dependent blocks its deletion."
        }
        Verdict::RemoveReferences(_) if view.has_orphaned_owner() => {
            "Its references to owners that were deleted with propagationPolicy Orphan will be removed."
        }
        Verdict::RemoveReferences(_) => {
            "It is kept: an owner exists. Its references to the other owners will be removed."
        }
        Verdict::Delete {
            policy: PropagationPolicy::Background,
            ..
        } => "It will be deleted: no owner keeps it.",
        Verdict::Delete {
            policy: PropagationPolicy::Foreground,
            ..
        } => "It will be deleted after its own dependents: no owner keeps it.",
        Verdict::Delete {
            policy: PropagationPolicy::Orphan,
            ..
        } => "It will be deleted and its dependents will stay: no owner keeps it.",
    };
    sentence.to_owned()
}

/// Returns the explanation as JSON.
pub fn json(view: &NodeView, around: &ExplainContext) -> Value {
    let owners = view.owners.iter().map(|(owner, blocks, owner_state)| {
        json!({
            "owner": owner.to_json(),
            "blockOwnerDeletion": blocks,
            "state": owner_state.map_or("unknown", OwnerState::word),
        })
    });
    let verdict = match &view.verdict {
        None => "unknown",
        Some(Verdict::Keep(_)) => "keep",
        Some(Verdict::BreakCycle) => "unblock",
        Some(Verdict::RemoveFinalizer) => "finish",
        Some(Verdict::RemoveReferences(_)) => "release",
        Some(Verdict::Delete { .. }) => "delete",
    };
    json!({
        "object": view.identity.to_json(),
        "resourceVersion": view.version,
        "virtual": view.is_virtual,
        "absent": view.is_absent,
        "owners": owners.collect::<Vec<_>>(),
        "dependents": view.dependents,
        "blockingDependents": view.blocking,
        "blockedBy": view.blockers.iter().map(Identity::to_json).collect::<Vec<_>>(),
        "verdict": verdict,
        "sentences": sentences(view, around),
    })
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::{Finalizers, FollowUps, Graph, PartialMetadata, PartialObject, Reference};

    fn reference(name: &str) -> Reference {
        Reference {
            api_version: "v1".into(),
            kind: "Pod".into(),
            name: name.into(),
            uid: name.into(),
            blocks: true,
        }
    }

    fn pod(name: &str, owners: &[&str]) -> PartialObject {
        PartialObject {
            metadata: PartialMetadata {
                namespace: Some("n".into()),
                name: name.into(),
                uid: name.into(),
                resource_version: "7".into(),
                owner_references: owners.iter().copied().map(reference).collect(),
                ..PartialMetadata::default()
            },
        }
    }

    fn check(of: &str, around: &ExplainContext, expected: &Expect) {
        let mut graph = Graph::default();
        let pods = graph.add_monitor("v1", "Pod");
        let mut follow_ups = FollowUps::default();
        let mut waiting = pod("waiting", &[]);
        waiting.metadata.deleting = true;
        waiting.metadata.finalizers = Finalizers {
            foreground: true,
            orphan: false,
        };
        for seen in [
            waiting,
            pod("child", &["waiting", "unseen"]),
            pod("gone", &[]),
            pod("orphan", &["gone"]),
        ] {
            graph.observe(pods, &seen, &mut follow_ups);
        }
        graph.deleted(pods, &pod("gone", &[]), &mut follow_ups);
        let view = graph.uid(of).and_then(|uid| graph.view(uid));
        let sentences = view.map(|view| sentences(&view, around).join("\n"));
        expected.assert_eq(&sentences.unwrap_or_default());
    }

    #[test]
    fn explanation_names_owners_dependents_and_outcome() {
        let around = ExplainContext::default();
        check(
            "waiting",
            &around,
            &expect![[r"
            [v1/Pod, namespace: n, name: waiting, uid: waiting] is being deleted and waits for the dependents that block it; it was seen in version 7.
            One reference names it as an owner; its deletion is blocked by [v1/Pod, namespace: n, name: child, uid: child].
            It is kept until no dependent blocks its deletion."]],
        );
        check(
            "child",
            &around,
            &expect![[r"
                [v1/Pod, namespace: n, name: child, uid: child] exists; it was seen in version 7.
                Its owner [v1/Pod, namespace: n, name: waiting, uid: waiting] (blockOwnerDeletion) is waiting for its dependents to be deleted.
                Its owner [v1/Pod, namespace: n, name: unseen, uid: unseen] (blockOwnerDeletion) is not known to exist; the collector reads it from the apiserver when a decision depends on it.
                It is kept until the apiserver has confirmed whether its owners exist."]],
        );
        check(
            "orphan",
            &around,
            &expect![[r"
            [v1/Pod, namespace: n, name: orphan, uid: orphan] exists; it was seen in version 7.
            Its owner [v1/Pod, namespace: n, name: gone, uid: gone] (blockOwnerDeletion) is absent.
            It will be deleted: no owner keeps it."]],
        );
        check(
            "gone",
            &around,
            &expect![[r"
            [v1/Pod, namespace: n, name: gone, uid: gone] does not exist; objects still refer to it.
            One reference names it as an owner.
            The collector deletes its dependents unless another owner keeps them."]],
        );
        check(
            "unseen",
            &around,
            &expect![[r"
                [v1/Pod, namespace: n, name: unseen, uid: unseen] is known only from references: no watch has reported it.
                One reference names it as an owner; its foreground deletion would be blocked by [v1/Pod, namespace: n, name: child, uid: child].
                The collector reads it from the apiserver when a decision depends on it."]],
        );
    }

    #[test]
    fn explanation_includes_failures_and_stopped_deletions() {
        let around = ExplainContext {
            failing: Some(("the apiserver is away".to_owned(), 12)),
            unsynced: vec!["foos.v1.example.com: forbidden".to_owned()],
            tripped: Some("tripped at noon".to_owned()),
            observes: true,
            ..ExplainContext::default()
        };
        check(
            "orphan",
            &around,
            &expect![[r"
            [v1/Pod, namespace: n, name: orphan, uid: orphan] exists; it was seen in version 7.
            Its owner [v1/Pod, namespace: n, name: gone, uid: gone] (blockOwnerDeletion) is absent.
            It will be deleted: no owner keeps it.
            Attempts have been failing for 12 s: the apiserver is away.
            Deletions are stopped: tripped at noon.
            The collector deletes and changes no object: it runs with --gc-mode=observe or --dry-run."]],
        );
    }

    #[test]
    fn explanation_of_an_unserved_kind_says_what_to_do() {
        let around = ExplainContext {
            unserved: vec![("v1".into(), "Pod".into())],
            ..ExplainContext::default()
        };
        check(
            "child",
            &around,
            &expect![[r"
                [v1/Pod, namespace: n, name: child, uid: child] exists; it was seen in version 7.
                Its owner [v1/Pod, namespace: n, name: waiting, uid: waiting] (blockOwnerDeletion) is waiting for its dependents to be deleted.
                Its owner [v1/Pod, namespace: n, name: unseen, uid: unseen] (blockOwnerDeletion) is not known to exist; its kind is not served.
                It is kept: nothing proves that an owner is gone whose kind is not served. If the CustomResourceDefinition was deleted for good, delete this object or remove its reference to that owner."]],
        );
        check(
            "unseen",
            &around,
            &expect![[r"
                [v1/Pod, namespace: n, name: unseen, uid: unseen] is known only from references: no watch has reported it.
                One reference names it as an owner; its foreground deletion would be blocked by [v1/Pod, namespace: n, name: child, uid: child].
                It is unknown whether it exists, because its kind is not served: the collector keeps its dependents. If its CustomResourceDefinition was deleted for good, delete the dependents or remove their references to it."]],
        );
    }
}
