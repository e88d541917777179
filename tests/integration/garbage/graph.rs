//! A parser for the graph that the page `graph` serves in DOT format.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};

/// A parsed graph: its vertices by UID, and its edges from dependents to owners.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Graph {
    pub(super) vertices: BTreeMap<String, Vertex>,
    pub(super) edges: BTreeSet<(String, String)>,
}

/// The attributes of a vertex.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Vertex(BTreeMap<String, String>);

impl Vertex {
    pub(super) fn text(&self, attribute: &str) -> &str {
        self.0.get(attribute).map_or("", String::as_str)
    }

    pub(super) fn is(&self, attribute: &str) -> bool {
        self.text(attribute) == "true"
    }
}

impl Graph {
    /// Parses the parts of the format that kube-controller-manager's graph and ours have in common.
    pub(super) fn parse(dot: &str) -> Result<Self> {
        let inner = dot.strip_prefix("strict digraph full {\n");
        let inner = inner.and_then(|rest| rest.strip_suffix("}\n"));
        let inner = inner.with_context(|| format!("not a graph: {dot}"))?;
        let mut graph = Self::default();
        let mut open: Option<(String, Vertex)> = None;
        for line in inner.lines().map(str::trim) {
            if let Some((_, vertex)) = &mut open
                && let Some((key, value)) = line.split_once('=')
            {
                vertex.0.insert(key.to_owned(), unquoted(value)?);
            } else if line == "];" {
                let (uid, vertex) = open.take().context("no vertex to close")?;
                graph.vertices.insert(uid, vertex);
            } else if let Some(uid) = line.strip_suffix(" [") {
                open = Some((unquoted(uid)?, Vertex::default()));
            } else if let Some((from, to)) = line.strip_suffix(';').and_then(|edge| edge.split_once(" -> ")) {
                graph.edges.insert((unquoted(from)?, unquoted(to)?));
            } else if !line.starts_with("//") {
                bail!("unknown line {line:?}");
            }
        }
        ensure!(open.is_none(), "unclosed vertex: {dot}");
        Ok(graph)
    }
}

/// Unquotes a string. Go quotes it as JSON does.
fn unquoted(text: &str) -> Result<String> {
    serde_json::from_str(text).with_context(|| format!("{text} is not quoted"))
}
