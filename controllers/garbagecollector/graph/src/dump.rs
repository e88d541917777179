//! Renders the graph in the DOT language, as kube-controller-manager's debug page does, and as
//! JSON.
//!
//! Architecture Invariant: pure.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::{
    graph::{GraphSnapshot, NodeView},
    verdict::DeletionStage,
};

/// Renders `strict digraph full { ... }`: each node by its UID, then each edge from dependent to
/// owner.
pub fn dot(snapshot: &GraphSnapshot) -> String {
    let mut text = "strict digraph full {\n".to_owned();
    if !snapshot.nodes.is_empty() {
        text.push_str("  // Node definitions.\n");
    }
    for node in &snapshot.nodes {
        let (uid, label) = (quoted(&node.identity.uid), quoted(&label(node)));
        // Writing to a string never fails.
        let _ = write!(text, "  {uid} [\n    label={label}\n{}  ];\n", attributes(node));
    }
    if !snapshot.edges.is_empty() {
        text.push_str("  // Edge definitions.\n");
    }
    for (dependent, owner) in &snapshot.edges {
        let _ = writeln!(text, "  {} -> {};", quoted(dependent), quoted(owner));
    }
    text.push_str("}\n");
    text
}

fn label(node: &NodeView) -> String {
    let identity = &node.identity;
    let namespace = identity.namespace.as_deref().unwrap_or_default();
    let (group, version) = match identity.api_version.split_once('/') {
        Some((group, version)) => (format!(".{group}"), version),
        None => (String::new(), &*identity.api_version),
    };
    let (uid, kind, name) = (&identity.uid, &identity.kind, &identity.name);
    let conditions = [
        ("beingDeleted", node.stage != DeletionStage::Present),
        ("deletingDependents", node.stage == DeletionStage::WaitingForDependents),
        ("virtual", node.is_virtual),
        ("missingFromGraph", node.is_absent),
    ];
    let conditions: Vec<_> = conditions
        .iter()
        .filter(|(_, holds)| *holds)
        .map(|(name, _)| *name)
        .collect();
    let mut label = format!("uid={uid}\nnamespace={namespace}\n{kind}.{version}{group}/{name}\n");
    if !conditions.is_empty() {
        label.push_str(&conditions.join(","));
        label.push('\n');
    }
    label
}

fn attributes(node: &NodeView) -> String {
    let identity = &node.identity;
    let (group, version) = identity
        .api_version
        .split_once('/')
        .unwrap_or(("", &identity.api_version));
    let mut text = String::new();
    let pairs = [
        ("group", group.to_owned()),
        ("version", version.to_owned()),
        ("kind", identity.kind.to_string()),
        (
            "namespace",
            identity.namespace.as_deref().unwrap_or_default().to_owned(),
        ),
        ("name", identity.name.to_string()),
        ("uid", identity.uid.to_string()),
        ("missing", node.is_absent.to_string()),
        ("beingDeleted", (node.stage != DeletionStage::Present).to_string()),
        (
            "deletingDependents",
            (node.stage == DeletionStage::WaitingForDependents).to_string(),
        ),
        ("virtual", node.is_virtual.to_string()),
    ];
    for (name, value) in pairs {
        let _ = writeln!(text, "    {name}={}", quoted(&value));
    }
    text
}

/// Quotes a DOT string: escapes quotation marks, backslashes and line breaks.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            '\n' => quoted.push_str("\\n"),
            letter if letter.is_control() => quoted.push(' '),
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

/// Renders the graph as JSON.
pub fn json(snapshot: &GraphSnapshot) -> Value {
    let nodes = snapshot.nodes.iter().map(|node| {
        let mut json = node.identity.to_json();
        json["virtual"] = node.is_virtual.into();
        json["absent"] = node.is_absent.into();
        json["beingDeleted"] = (node.stage != DeletionStage::Present).into();
        json["deletingDependents"] = (node.stage == DeletionStage::WaitingForDependents).into();
        json["dependents"] = node.dependents.into();
        json
    });
    let edges = snapshot.edges.iter();
    let edges = edges.map(|(dependent, owner)| json!({ "dependent": dependent, "owner": owner }));
    json!({ "nodes": nodes.collect::<Vec<_>>(), "edges": edges.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::{FollowUps, Graph, PartialMetadata, PartialObject, Reference};

    fn graph() -> Graph {
        let mut graph = Graph::default();
        let pods = graph.add_monitor("v1", "Pod");
        let seen = PartialObject {
            metadata: PartialMetadata {
                namespace: Some("n".into()),
                name: "a".into(),
                uid: "1".into(),
                resource_version: "7".into(),
                owner_references: vec![Reference {
                    api_version: "apps/v1".into(),
                    kind: "ReplicaSet".into(),
                    name: "say \"x\"".into(),
                    uid: "0".into(),
                    blocks: false,
                }],
                ..PartialMetadata::default()
            },
        };
        graph.observe(pods, &seen, &mut FollowUps::default());
        graph
    }

    #[test]
    fn dot_contains_nodes_and_edges() {
        expect![[r#"
            strict digraph full {
              // Node definitions.
              "0" [
                label="uid=0\nnamespace=n\nReplicaSet.v1.apps/say \"x\"\nvirtual\n"
                group="apps"
                version="v1"
                kind="ReplicaSet"
                namespace="n"
                name="say \"x\""
                uid="0"
                missing="false"
                beingDeleted="false"
                deletingDependents="false"
                virtual="true"
              ];
              "1" [
                label="uid=1\nnamespace=n\nPod.v1/a\n"
                group=""
                version="v1"
                kind="Pod"
                namespace="n"
                name="a"
                uid="1"
                missing="false"
                beingDeleted="false"
                deletingDependents="false"
                virtual="false"
              ];
              // Edge definitions.
              "1" -> "0";
            }
        "#]]
        .assert_eq(&dot(&graph().snapshot(&[])));
    }

    #[test]
    fn dot_omits_unknown_nodes() {
        assert_eq!(dot(&graph().snapshot(&["2"])), dot(&GraphSnapshot::default()));
        assert_eq!(graph().snapshot(&["0"]).nodes.len(), 2);
    }
}
