//! Modules that depend on each other. A cycle is a set of sibling modules in which every module
//! leads to every other one by paths outside of tests. A path into a module or out of it counts for
//! the whole module, and paths between a module and the modules in it do not count.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};

use crate::{
    modules::{Modules, of_texts, workspace_crates},
    syntax::Names,
};

/// The siblings that each module of a parent leads to, with an example of a path.
type Graph = BTreeMap<String, BTreeMap<String, String>>;

/// Returns the cycles of a crate: per cycle a line with its modules, and one for each edge.
fn cycles(modules: &Modules) -> Vec<String> {
    let mut graphs: BTreeMap<Names, Graph> = BTreeMap::new();
    for edge in modules.edges() {
        let siblings = graphs.entry(edge.parent).or_default();
        let targets = siblings.entry(edge.from).or_default();
        targets.entry(edge.to).or_insert(edge.example);
    }
    let mut found = Vec::new();
    for (parent, graph) in &graphs {
        let mut reported = BTreeSet::new();
        for name in graph.keys() {
            let mut cycle = reachable(graph, name);
            cycle.retain(|other| reachable(graph, other).contains(name.as_str()));
            if cycle.is_empty() || !reported.insert(cycle.clone()) {
                continue;
            }
            let names: Vec<&str> = cycle.iter().copied().collect();
            let parent = if parent.is_empty() {
                String::new()
            } else {
                format!("{}::", parent.join("::"))
            };
            let mut lines = vec![format!("{parent}{{{}}}", names.join(", "))];
            for (from, targets) in graph.iter().filter(|(from, _)| cycle.contains(&***from)) {
                let targets = targets.iter().filter(|(to, _)| cycle.contains(&***to));
                lines.extend(targets.map(|(to, example)| format!("    {from} -> {to}: {example}")));
            }
            found.push(lines.join("\n"));
        }
    }
    found
}

/// Returns the modules that `name` leads to directly or through others.
fn reachable<'a>(graph: &'a Graph, name: &'a str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut next = vec![name];
    while let Some(name) = next.pop() {
        let targets = graph.get(name).into_iter().flat_map(BTreeMap::keys);
        next.extend(targets.map(String::as_str).filter(|name| found.insert(*name)));
    }
    found
}

#[test]
fn modules_do_not_depend_on_each_other() -> Result<()> {
    let mut found = Vec::new();
    for (package, modules) in workspace_crates()? {
        found.extend(cycles(&modules).iter().map(|cycle| format!("{package}: {cycle}")));
    }
    ensure!(
        found.is_empty(),
        "{} cycles of modules; move what both sides need to a third module:\n{}",
        found.len(),
        found.join("\n")
    );
    Ok(())
}

/// The one crate whose root file is to be read as a whole.
const IN_ONE_FILE: &str = "portreeve-example";

#[test]
fn no_module_depends_on_the_root_of_its_crate() -> Result<()> {
    let mut found = Vec::new();
    for (package, modules) in workspace_crates()? {
        if package != IN_ONE_FILE {
            found.extend(modules.paths_to_root().iter().map(|path| format!("{package}: {path}")));
        }
    }
    ensure!(
        found.is_empty(),
        "move these items of lib.rs or main.rs to modules:\n{}",
        found.join("\n")
    );
    Ok(())
}

#[test]
fn a_path_to_an_item_of_the_root_is_found() -> Result<()> {
    let modules = of_texts(&[
        ("src/lib.rs", "mod a; mod b; pub use b::B; pub struct Root;"),
        ("src/a.rs", "use crate::{B, Root};"),
        ("src/b.rs", "pub(crate) struct B;"),
    ])?;
    ensure!(modules.paths_to_root() == ["src/a.rs:1: crate::Root"]);
    Ok(())
}

fn check(files: &[(&str, &str)]) -> Result<Vec<String>> {
    Ok(cycles(&of_texts(files)?))
}

#[test]
fn imports_in_both_directions_are_a_cycle() -> Result<()> {
    let found = check(&[
        ("src/lib.rs", "mod a;\nmod b;"),
        ("src/a.rs", "use crate::{\n    b::{B, Other as Renamed},\n};"),
        ("src/b.rs", "use super::a;\npub struct B;"),
    ])?;
    let expected = "{a, b}\n    a -> b: src/a.rs:2: crate::b::B\n    b -> a: src/b.rs:1: super::a";
    assert_eq!(found, [expected]);
    Ok(())
}

#[test]
fn every_kind_of_cycle_is_found_once() -> Result<()> {
    let longer: &[_] = &[
        ("src/lib.rs", "mod a; mod b; mod c; mod d;"),
        ("src/a.rs", "use crate::b::B; use crate::d::D;"),
        ("src/b.rs", "use crate::c::C;"),
        ("src/c.rs", "use crate::a::A;"),
        ("src/d.rs", ""),
    ];
    let through_names_of_the_root: &[_] = &[
        ("src/lib.rs", "mod a; mod b; pub use b::B; use a::A;"),
        ("src/a.rs", "use crate::{B, Error};"),
        ("src/b.rs", "fn b() -> crate::A { crate::A }"),
    ];
    let from_modules_in_a_module: &[_] = &[
        ("src/lib.rs", "mod a; mod b;"),
        ("src/a/mod.rs", "mod inner;"),
        ("src/a/inner.rs", "use super::super::b::B; use super::A;"),
        ("src/b.rs", "mod inner;"),
        (
            "src/b/inner.rs",
            "fn b() { let _ = vec![crate::a::inner::A { a: 1 }]; }",
        ),
    ];
    let below_the_root: &[_] = &[
        ("src/lib.rs", "mod a;"),
        (
            "src/a.rs",
            "mod one { use super::two::Two; } mod two { use crate::a::one::One; }",
        ),
    ];
    for (files, start) in [
        (longer, "{a, b, c}\n"),
        (through_names_of_the_root, "{a, b}\n"),
        (from_modules_in_a_module, "{a, b}\n"),
        (below_the_root, "a::{one, two}\n"),
    ] {
        let found = check(files)?;
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(start), "{found:?}");
    }
    Ok(())
}
