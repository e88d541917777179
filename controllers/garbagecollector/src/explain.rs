//! Why an object is kept or collected, in sentences. Pure.

use serde_json::{Value, json};

use crate::{
    Identity, View,
    verdict::{Policy, Reason, Stage, Standing, Verdict},
};

/// What is known beside the graph.
#[derive(Clone, Debug, Default)]
pub(crate) struct Circumstances {
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
pub(crate) fn sentences(view: &View, around: &Circumstances) -> Vec<String> {
    let mut sentences = vec![state(view)];
    sentences.extend(
        view.owners
            .iter()
            .map(|(owner, blocks, standing)| sentence_of_owner(owner, *blocks, *standing)),
    );
    if view.dependents > 0 {
        sentences.push(dependents(view));
    }
    sentences.push(outcome(view));
    if view.stage == Stage::Orphaning && !around.unsynced.is_empty() {
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

fn state(view: &View) -> String {
    let identity = &view.identity;
    if view.is_absent {
        return format!("{identity} does not exist; objects still refer to it.");
    }
    if view.is_virtual {
        return format!("{identity} is known by references alone: no watch has shown it.");
    }
    let deletion = match view.stage {
        Stage::Present => "exists",
        Stage::Waiting => "is being deleted and waits for the dependents that block it",
        Stage::Orphaning => "is being deleted and waits for its dependents to be orphaned",
        Stage::Deleting => "is being deleted",
    };
    format!("{identity} {deletion}; it was seen in version {}.", view.version)
}

fn sentence_of_owner(owner: &Identity, blocks: bool, standing: Option<Standing>) -> String {
    let standing = standing.map_or(
        "not in the graph; the apiserver is asked for it, if it serves its kind",
        Standing::word,
    );
    let blocking = if blocks { ", whose deletion it blocks," } else { "" };
    format!("Its owner {owner}{blocking} is {standing}.")
}

fn dependents(view: &View) -> String {
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

fn outcome(view: &View) -> String {
    let Some(verdict) = &view.verdict else {
        return if view.is_absent {
            "There is nothing to collect here; its dependents are, unless another owner keeps them.".to_owned()
        } else {
            "It is kept until the apiserver has said whether that exists.".to_owned()
        };
    };
    let sentence = match verdict {
        Verdict::Keep(Reason::BeingDeleted) => "It is left alone: it is being deleted already.",
        Verdict::Keep(Reason::WaitsForDependents) => "It is kept until no dependent blocks it any more.",
        Verdict::Keep(Reason::NoOwner) => "It is kept: it has no owner.",
        Verdict::Keep(Reason::Owned) => "It is kept: its owners are there.",
        Verdict::Keep(Reason::OwnerUnknown) => "It is kept: an owner cannot be asked for.",
        Verdict::Keep(Reason::OwnerMisplaced) => {
            "It is kept, and never collected: an object of the cluster cannot have an owner in a namespace. Correct its ownerReferences."
        }
        Verdict::Finish => "Its finalizer foregroundDeletion is taken away: nothing blocks it any more.",
        Verdict::Release(_) => "It is kept: an owner is there. Its references to the other owners are taken away.",
        Verdict::Delete {
            policy: Policy::Background,
            ..
        } => "It is deleted: no owner is left that keeps it.",
        Verdict::Delete {
            policy: Policy::Foreground,
            ..
        } => "It is deleted after its own dependents: no owner is left that keeps it.",
        Verdict::Delete {
            policy: Policy::Orphan, ..
        } => "It is deleted and its dependents stay: no owner is left that keeps it.",
    };
    sentence.to_owned()
}

/// The same for programs.
pub(crate) fn json(view: &View, around: &Circumstances) -> Value {
    let owners = view.owners.iter().map(|(owner, blocks, standing)| {
        json!({
            "owner": owner.to_json(),
            "blockOwnerDeletion": blocks,
            "state": standing.map_or("unknown", Standing::word),
        })
    });
    let verdict = match &view.verdict {
        None => "unknown",
        Some(Verdict::Keep(_)) => "keep",
        Some(Verdict::Finish) => "finish",
        Some(Verdict::Release(_)) => "release",
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
    use crate::{Effects, Finalizers, Graph, Meta, Reference, Seen};

    fn reference(name: &str) -> Reference {
        Reference {
            api_version: "v1".into(),
            kind: "Pod".into(),
            name: name.into(),
            uid: name.into(),
            blocks: true,
        }
    }

    fn pod(name: &str, owners: &[&str]) -> Seen {
        Seen {
            metadata: Meta {
                namespace: Some("n".into()),
                name: name.into(),
                uid: name.into(),
                resource_version: "7".into(),
                owner_references: owners.iter().copied().map(reference).collect(),
                ..Meta::default()
            },
        }
    }

    fn check(of: &str, around: &Circumstances, expected: &Expect) {
        let mut graph = Graph::default();
        let pods = graph.add_monitor("v1", "Pod");
        let mut effects = Effects::default();
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
            graph.observe(pods, &seen, &mut effects);
        }
        graph.deleted(pods, &pod("gone", &[]), &mut effects);
        let view = graph.uid(of).and_then(|uid| graph.view(uid));
        let sentences = view.map(|view| sentences(&view, around).join("\n"));
        expected.assert_eq(&sentences.unwrap_or_default());
    }

    #[test]
    fn an_object_is_explained_by_what_is_known_of_its_owners() {
        let around = Circumstances::default();
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
        let around = Circumstances {
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
