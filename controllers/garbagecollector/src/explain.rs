//! Why an object is kept or collected, in sentences. Pure.

use serde_json::{Value, json};

use crate::{
    Identity, NodeView,
    verdict::{DeletionStage, KeepReason, OwnerState, PropagationPolicy, Verdict},
};

/// What is known beside the graph.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExplainContext {
    /// Why the last attempt failed, and for how many seconds attempts have been failing.
    pub(crate) failing: Option<(String, u64)>,
    /// The resources that are not synced, and why.
    pub(crate) unsynced: Vec<String>,
    /// Why nothing is deleted, and how to go on.
    pub(crate) tripped: Option<String>,
    /// Nothing is written: `--gc-mode=observe`.
    pub(crate) observes: bool,
}

/// The sentences.
pub(crate) fn sentences(view: &NodeView, around: &ExplainContext) -> Vec<String> {
    let mut sentences = vec![state(view)];
    sentences.extend(
        view.owners
            .iter()
            .map(|(owner, blocks, owner_state)| sentence_of_owner(owner, *blocks, *owner_state)),
    );
    if view.dependents > 0 {
        sentences.push(dependents(view));
    }
    sentences.push(outcome(view));
    if view.stage == DeletionStage::Orphaning && !around.unsynced.is_empty() {
        sentences.push(format!(
            "Its finalizer orphan stays until every collectable resource is synced; waiting for {}.",
            around.unsynced.join("; ")
        ));
    }
    if let Some((reason, seconds)) = &around.failing {
        sentences.push(format!("Attempts have been failing for {seconds} s: {reason}."));
    }
    if let Some(tripped) = &around.tripped {
        sentences.push(format!("Nothing is deleted now: {tripped}."));
    }
    if around.observes {
        sentences.push("Nothing is written: the collector runs with --gc-mode=observe.".to_owned());
    }
    sentences
}

fn state(view: &NodeView) -> String {
    let identity = &view.identity;
    if view.is_absent {
        return format!("{identity} does not exist; objects still refer to it.");
    }
    if view.is_virtual {
        return format!("{identity} is known by references alone: no watch has shown it.");
    }
    let deletion = match view.stage {
        DeletionStage::Present => "exists",
        DeletionStage::WaitingForDependents => "is being deleted and waits for the dependents that block it",
        DeletionStage::Orphaning => "is being deleted and waits for its dependents to be orphaned",
        DeletionStage::Deleting => "is being deleted",
    };
    format!("{identity} {deletion}; it was seen in version {}.", view.version)
}

fn sentence_of_owner(owner: &Identity, blocks: bool, owner_state: Option<OwnerState>) -> String {
    let owner_state = owner_state.map_or(
        "not in the graph; the apiserver is asked for it, if it serves its kind",
        OwnerState::word,
    );
    let blocking = if blocks { ", whose deletion it blocks," } else { "" };
    format!("Its owner {owner}{blocking} is {owner_state}.")
}

fn dependents(view: &NodeView) -> String {
    let refer = match view.dependents {
        1 => "One reference names it as an owner".to_owned(),
        count => format!("{count} references name it as an owner"),
    };
    if view.blockers.is_empty() {
        return format!("{refer}; none blocks its deletion.");
    }
    let named: Vec<_> = view.blockers.iter().map(ToString::to_string).collect();
    let more = match view.blocking as usize - named.len().min(view.blocking as usize) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{refer}; its deletion is blocked by {}{more}.", named.join(", "))
}

fn outcome(view: &NodeView) -> String {
    let Some(verdict) = &view.verdict else {
        return if view.is_absent {
            "There is nothing to collect here; its dependents are, unless another owner keeps them.".to_owned()
        } else {
            "It is kept until the apiserver has said whether that exists.".to_owned()
        };
    };
    let sentence = match verdict {
        Verdict::Keep(KeepReason::BeingDeleted) => "It is left alone: it is being deleted already.",
        Verdict::Keep(KeepReason::WaitsForDependents) => "It is kept until no dependent blocks it any more.",
        Verdict::Keep(KeepReason::NoOwner) => "It is kept: it has no owner.",
        Verdict::Keep(KeepReason::Owned) => "It is kept: its owners are there.",
        Verdict::Keep(KeepReason::OwnerUnknown) => "It is kept: an owner cannot be asked for.",
        Verdict::Keep(KeepReason::OwnerMisplaced) => {
            "It is kept, and never collected: an object of the cluster cannot have an owner in a namespace. Correct its ownerReferences."
        }
        Verdict::RemoveFinalizer => "Its finalizer foregroundDeletion is taken away: nothing blocks it any more.",
        Verdict::RemoveReferences(_) => {
            "It is kept: an owner is there. Its references to the other owners are taken away."
        }
        Verdict::Delete {
            policy: PropagationPolicy::Background,
            ..
        } => "It is deleted: no owner is left that keeps it.",
        Verdict::Delete {
            policy: PropagationPolicy::Foreground,
            ..
        } => "It is deleted after its own dependents: no owner is left that keeps it.",
        Verdict::Delete {
            policy: PropagationPolicy::Orphan,
            ..
        } => "It is deleted and its dependents stay: no owner is left that keeps it.",
    };
    sentence.to_owned()
}

/// The same for programs.
pub(crate) fn json(view: &NodeView, around: &ExplainContext) -> Value {
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
    fn an_object_is_explained_by_what_is_known_of_its_owners() {
        let around = ExplainContext::default();
        check(
            "waiting",
            &around,
            &expect![[r"
            [v1/Pod, namespace: n, name: waiting, uid: waiting] is being deleted and waits for the dependents that block it; it was seen in version 7.
            One reference names it as an owner; its deletion is blocked by [v1/Pod, namespace: n, name: child, uid: child].
            It is kept until no dependent blocks it any more."]],
        );
        check(
            "child",
            &around,
            &expect![[r"
                [v1/Pod, namespace: n, name: child, uid: child] exists; it was seen in version 7.
                Its owner [v1/Pod, namespace: n, name: waiting, uid: waiting], whose deletion it blocks, is waiting for its dependents to be deleted.
                Its owner [v1/Pod, namespace: n, name: unseen, uid: unseen], whose deletion it blocks, is not in the graph; the apiserver is asked for it, if it serves its kind.
                It is kept until the apiserver has said whether that exists."]],
        );
        check(
            "orphan",
            &around,
            &expect![[r"
            [v1/Pod, namespace: n, name: orphan, uid: orphan] exists; it was seen in version 7.
            Its owner [v1/Pod, namespace: n, name: gone, uid: gone], whose deletion it blocks, is absent.
            It is deleted: no owner is left that keeps it."]],
        );
        check(
            "gone",
            &around,
            &expect![[r"
            [v1/Pod, namespace: n, name: gone, uid: gone] does not exist; objects still refer to it.
            One reference names it as an owner; its deletion is blocked by [v1/Pod, namespace: n, name: orphan, uid: orphan].
            There is nothing to collect here; its dependents are, unless another owner keeps them."]],
        );
        check(
            "unseen",
            &around,
            &expect![[r"
                [v1/Pod, namespace: n, name: unseen, uid: unseen] is known by references alone: no watch has shown it.
                One reference names it as an owner; its deletion is blocked by [v1/Pod, namespace: n, name: child, uid: child].
                It is kept until the apiserver has said whether that exists."]],
        );
    }

    #[test]
    fn what_keeps_the_collector_from_its_work_is_told_too() {
        let around = ExplainContext {
            failing: Some(("the apiserver is away".to_owned(), 12)),
            unsynced: vec!["foos.v1.example.com: forbidden".to_owned()],
            tripped: Some("tripped at noon".to_owned()),
            observes: true,
        };
        check(
            "orphan",
            &around,
            &expect![[r"
            [v1/Pod, namespace: n, name: orphan, uid: orphan] exists; it was seen in version 7.
            Its owner [v1/Pod, namespace: n, name: gone, uid: gone], whose deletion it blocks, is absent.
            It is deleted: no owner is left that keeps it.
            Attempts have been failing for 12 s: the apiserver is away.
            Nothing is deleted now: tripped at noon.
            Nothing is written: the collector runs with --gc-mode=observe."]],
        );
    }
}
