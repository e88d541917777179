//! Checks that the test tables list every controller of the registry.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use portreeve_reconcile::{Descriptor, Rule};

use crate::{
    faults::controllers::{DECLARED, Reads},
    rights::scenarios::SCENARIOS,
};

/// Ensures that a list in the tests has exactly the controllers of the registry. `advice` says how
/// to add one.
fn ensure_declared(declared: impl Iterator<Item = &'static str>, file: &str, advice: &str) -> Result<()> {
    let registry: BTreeSet<_> = portreeve::CONTROLLERS
        .iter()
        .map(|controller| controller.name)
        .collect();
    let declared: BTreeSet<_> = declared.collect();
    let (missing, unknown) = (&registry - &declared, &declared - &registry);
    ensure!(missing.is_empty(), "{file} does not declare {missing:?}: {advice}");
    ensure!(
        unknown.is_empty(),
        "{file} declares {unknown:?}, which the registry does not list"
    );
    Ok(())
}

#[test]
fn faults_are_declared_for_every_controller() -> Result<()> {
    ensure_declared(
        DECLARED.iter().map(|declared| declared.controller),
        "tests/integration/faults/controllers.rs",
        "declare what the controller reads and watches, and give it work in each wave of \
         tests/integration/chaos/work.rs",
    )
}

#[test]
fn a_rights_scenario_exists_for_every_controller() -> Result<()> {
    ensure_declared(
        SCENARIOS.iter().map(|scenario| scenario.controller),
        "tests/integration/rights/scenarios.rs",
        "add a scenario in which the controller uses each of its permissions",
    )
}

/// Returns the resources on which a controller has all these verbs, as `resource.group`.
fn resources_with(controller: &Descriptor, verbs: &[&str]) -> BTreeSet<String> {
    let with = |rule: &&Rule| verbs.iter().all(|verb| rule.verbs.contains(verb));
    let rules = controller.rules.iter().filter(with);
    rules
        .flat_map(|rule| rule.groups.iter().map(move |group| (rule, group)))
        .flat_map(|(rule, group)| rule.resources.iter().map(move |resource| format!("{resource}.{group}")))
        .collect()
}

/// A controller has the permission to read or watch exactly what its faults affect.
#[test]
fn the_declared_reads_and_watches_are_those_that_the_rules_allow() -> Result<()> {
    for declared in &DECLARED {
        let name = declared.controller;
        let mut registry = portreeve::CONTROLLERS.iter();
        let controller = registry.find(|controller| controller.name == name).context(name)?;
        let may_read = !resources_with(controller, &["get"]).is_empty();
        ensure!(
            may_read == (declared.reads != Reads::Never),
            "tests/integration/faults/controllers.rs declares reads {:?} for {name}, but its RBAC rules {} `get`; \
             correct the entry",
            declared.reads,
            if may_read { "allow" } else { "do not allow" }
        );
        let objects = declared.objects.iter();
        let mut watched: BTreeSet<_> = objects
            .map(|resource| format!("{}.{}", resource.plural, resource.group))
            .collect();
        if declared.metadata.is_some() {
            watched.insert("*.*".to_owned());
        }
        let allowed = resources_with(controller, &["list", "watch"]);
        ensure!(
            watched == allowed,
            "tests/integration/faults/controllers.rs declares that {name} watches {watched:?}, but its RBAC rules allow \
             {allowed:?}; correct the entry"
        );
    }
    Ok(())
}
