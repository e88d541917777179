//! Names: public types are unique, and retired names are not used.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use crate::files::{is_this_test, sources};

/// Type names that each crate may define, because the crate's name distinguishes them.
const PER_CRATE: &[&str] = &["Args", "Error", "Metrics", "Settings"];
/// Words that start the definition of a type.
const DEFINITIONS: &[&str] = &["pub enum ", "pub struct ", "pub trait ", "pub type ", "pub union "];
/// Names that standard terms have replaced, in code and in comments.
const RETIRED: &[&str] = &[
    "Campaign",
    "Census",
    "Crew",
    "Crowd",
    "Estate",
    "Instruments",
    "Janitor",
    "Ledger",
    "Notebook",
    "Orders",
    "Perishable",
    "Recall",
    "Recalled",
    "Scenery",
    "SeenCronJob",
    "SeenCronTab",
    "SeenDeployment",
    "SeenFoo",
    "SeenJob",
    "SeenMap",
    "Sight",
    "Sights",
    "Spoil",
    "Vitals",
    "Yard",
    "stillest",
    "unmoved",
];

/// Names of files and folders that have been replaced.
const RETIRED_FILES: &[&str] = &[
    "ask",
    "boot",
    "court",
    "crew",
    "estate",
    "instruments",
    "intake",
    "line",
    "news",
    "notebook",
    "notes",
    "recall",
    "settle",
    "surface",
    "vitals",
    "weather",
    "yard",
];

/// Returns the name of the public type that `line` defines.
fn defined_type(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = DEFINITIONS
        .iter()
        .find_map(|definition| line.strip_prefix(definition))?;
    words(rest).next()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
}

#[test]
fn public_type_names_are_unique() -> Result<()> {
    let mut definitions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in sources()? {
        for name in text.lines().filter_map(defined_type) {
            let places = definitions.entry(name.to_owned()).or_default();
            places.push(path.display().to_string());
        }
    }
    definitions.retain(|name, places| places.len() > 1 && !PER_CRATE.contains(&&**name));
    ensure!(
        definitions.is_empty(),
        "several public types have the same name; rename all but one of each: {definitions:#?}"
    );
    Ok(())
}

#[test]
fn no_file_uses_a_retired_name() -> Result<()> {
    for (path, text) in sources()? {
        if is_this_test(&path) {
            continue;
        }
        let file = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        ensure!(!RETIRED_FILES.contains(&file), "{} has a retired name", path.display());
        for (number, line) in (1..).zip(text.lines()) {
            let retired = words(line).find(|word| RETIRED.contains(word));
            ensure!(
                retired.is_none(),
                "{}:{number} uses the retired name {}",
                path.display(),
                retired.unwrap_or_default()
            );
        }
    }
    Ok(())
}
