//! Pure modules. A module is pure if its header says so: `Architecture Invariant: pure.` That
//! covers the modules in it, and the whole crate if the header is the crate's.
//!
//! A pure module has no async code, and uses no runtime, clock, client, store, lock, log or
//! randomness. It may use their data types, such as `tokio::time::Instant`, because a time can be
//! an argument.

use anyhow::{Context, Result, ensure};

use crate::{
    files::texts,
    modules::{Modules, of_texts, workspace_crates},
    syntax::{Code, Names},
};

/// Paths that pure modules do not use, with everything in them.
const IMPURE: &[&str] = &[
    "axum",
    "fastrand",
    "futures",
    "hyper",
    "hyper_util",
    "kube::Api",
    "kube::Client",
    "kube::client",
    "kube::runtime",
    "kube_leader_election",
    "kube_runtime",
    "loom",
    "parking_lot",
    "portreeve_client::Connection",
    "portreeve_client::Settings",
    "portreeve_informer::Cache",
    "portreeve_informer::Discovery",
    "portreeve_informer::Subscription",
    "prometheus",
    "rustix",
    "std::env",
    "std::fs",
    "std::io::stderr",
    "std::io::stdin",
    "std::io::stdout",
    "std::net::TcpListener",
    "std::net::TcpStream",
    "std::net::UdpSocket",
    "std::process",
    "std::sync",
    "std::thread",
    "std::time::SystemTime",
    "tokio",
    "tokio_util",
    "tower",
    "tracing",
    "uuid::Uuid::new_v4",
];
/// Paths in those that are data.
const PURE: &[&str] = &[
    "axum::http",
    "std::sync::Arc",
    "std::sync::LazyLock",
    "tokio::time::Instant",
];
/// Names that pure modules do not use, wherever they are defined.
const IMPURE_NAMES: &[&str] = &[
    "Applier",
    "Clock",
    "EventWriter",
    "Factory",
    "GroupInformers",
    "Informer",
    "Mutex",
    "RwLock",
    "SharedWatches",
    "SystemClock",
    "eprint",
    "eprintln",
    "print",
    "println",
];

/// Returns whether the header of a module says that it is pure.
fn is_pure(header: &str) -> bool {
    let names_pure = |clause: &str| clause.split(' ').any(|word| word == "pure");
    let mut invariants = header.split("Invariant: ").skip(1);
    invariants.any(|invariant| invariant.split(['.', ':', ',', ';']).next().is_some_and(names_pure))
}

/// Returns what the pure modules of a crate must not use, each with its place.
fn impurities(modules: &Modules) -> Vec<String> {
    let mut pure: Vec<&Names> = Vec::new();
    let mut found = Vec::new();
    for (names, module) in modules.iter() {
        if is_pure(&module.code.header) {
            pure.push(names);
        }
        if !pure.iter().any(|outer| names.starts_with(outer)) {
            continue;
        }
        let async_code = module
            .code
            .async_lines
            .iter()
            .map(|line| (*line, "async code".to_owned()));
        let paths = module.code.paths.iter().filter_map(|path| {
            let names = expand(&module.code, &path.names);
            is_impure(&names).then(|| (path.line, names.join("::")))
        });
        let lines = async_code.chain(paths);
        found.extend(lines.map(|(line, used)| format!("{}:{line}: {used}", module.file.display())));
    }
    found
}

fn is_impure(path: &[String]) -> bool {
    let is_in = |list: &[&str]| list.iter().any(|prefix| is_within(path, prefix));
    // A time may be called `now`; a function of that name is in a type or a module.
    let reads_clock = path.len() > 1 && path.ends_with(&["now".to_owned()]);
    is_in(IMPURE) && !is_in(PURE) || reads_clock || path.iter().any(|name| IMPURE_NAMES.contains(&&**name))
}

/// Returns a path with its first name replaced by what it is imported from.
fn expand(code: &Code, path: &[String]) -> Names {
    let imported = path.first().and_then(|first| code.imports.get(first));
    match imported {
        Some(imported) => [imported, &path[1..]].concat(),
        None => path.to_vec(),
    }
}

/// Returns whether `path` is `prefix` or in it.
fn is_within(path: &[String], prefix: &str) -> bool {
    let mut names = path.iter();
    prefix
        .split("::")
        .all(|expected| names.next().is_some_and(|name| name == expected))
}

#[test]
fn pure_modules_use_no_runtime_clock_client_or_store() -> Result<()> {
    let found: Vec<String> = workspace_crates()?
        .iter()
        .flat_map(|(_, modules)| impurities(modules))
        .collect();
    ensure!(
        found.is_empty(),
        "modules whose headers say that they are pure use: {found:#?}"
    );
    Ok(())
}

/// The cores that everything else relies on. Without their claims they would not be checked.
#[test]
fn the_cores_claim_purity() -> Result<()> {
    let cores = [
        "controllers/crontab/src/decide.rs",
        "controllers/foo/src/decide.rs",
        "controllers/garbagecollector/graph/src/lib.rs",
        "pkg/informer/src/store.rs",
        "pkg/informer/src/watch_trust.rs",
        "pkg/leader/src/elector.rs",
        "pkg/manager/src/health/evaluate.rs",
        "pkg/manager/src/selection.rs",
        "pkg/reconcile/src/plan.rs",
        "pkg/workqueue/src/core.rs",
    ];
    for core in cores {
        let (_, text) = texts(&[core])?.pop().with_context(|| format!("{core} is missing"))?;
        ensure!(is_pure(&Code::parse(&text)?.header), "{core} does not claim to be pure");
    }
    Ok(())
}

#[test]
fn headers_that_claim_purity_are_recognized() {
    let table = [
        ("A thing.  Architecture Invariant: pure.", true),
        ("A thing.  Architecture Invariant: sync and pure. No lock.", true),
        ("A thing.  Architecture Invariant: pure: no async.", true),
        ("Architecture Invariant: this crate is pure. More.", true),
        ("A thing whose pure part is elsewhere. It is pure.", false),
        ("Architecture Invariant: one lock. The rest is pure.", false),
    ];
    for (header, expected) in table {
        assert_eq!(is_pure(header), expected, "{header}");
    }
}

#[test]
fn impurities_are_found_through_imports() -> Result<()> {
    let table = [
        ("use std::{fs, time::Duration};", "std::fs"),
        (
            "use std::time::{self, Instant}; fn f() { Instant::now(); }",
            "std::time::Instant::now",
        ),
        (
            "use jiff::Timestamp as Time; fn f() -> Time { Time::now() }",
            "jiff::Timestamp::now",
        ),
        ("fn f() { vec![std::thread::current()]; }", "std::thread::current"),
        ("mod inner { use parking_lot::Mutex; }", "parking_lot::Mutex"),
        ("async fn f() {}", "async code"),
        ("fn f() { println!(\"\"); }", "println"),
    ];
    for (text, expected) in table {
        let found = impurities(&of_texts(&[(
            "src/lib.rs",
            &format!("//! Architecture Invariant: pure.\n{text}"),
        )])?);
        assert_eq!(found.last(), Some(&format!("src/lib.rs:2: {expected}")), "{text}");
    }
    Ok(())
}

#[test]
fn a_claim_covers_the_modules_in_a_module() -> Result<()> {
    let found = impurities(&of_texts(&[
        ("src/lib.rs", "mod a; mod b;"),
        ("src/a.rs", "//! Architecture Invariant: pure.\nmod inner;"),
        ("src/a/inner.rs", "//! A part.\nuse std::fs;"),
        ("src/b.rs", "//! Not so.\nuse std::fs;"),
    ])?);
    assert_eq!(found, ["src/a/inner.rs:2: std::fs"]);
    Ok(())
}
