//! `portreeve crds`, `portreeve rbac` and `--list-controllers`: what the descriptors say, as text. Pure.

use portreeve_reconcile::{Descriptor, Rule};
use serde_json::{Value, json};

/// What every replica needs, whichever controllers it runs.
const BASE: &[Rule] = &[
    Rule {
        groups: &["apiextensions.k8s.io"],
        resources: &["customresourcedefinitions"],
        verbs: &["list", "watch"],
    },
    Rule {
        groups: &["events.k8s.io"],
        resources: &["events"],
        verbs: &["create", "patch"],
    },
];

/// What `--install-crds` needs on top.
const INSTALL: &[Rule] = &[Rule {
    groups: &["apiextensions.k8s.io"],
    resources: &["customresourcedefinitions"],
    verbs: &["create", "get", "patch"],
}];

/// The definitions of these controllers, one YAML document each, sorted by name.
pub(crate) fn crds(controllers: &[Descriptor]) -> Result<String, serde_saphyr::ser_error::Error> {
    let mut definitions: Vec<_> = controllers.iter().flat_map(|controller| (controller.crds)()).collect();
    definitions.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    definitions.dedup_by(|a, b| a.metadata.name == b.metadata.name);
    let documents: Vec<_> = definitions.iter().map(|definition| json!(definition)).collect();
    yaml(&documents)
}

/// The roles of these controllers, one each and one for the base, with their bindings to a ServiceAccount.
pub(crate) fn rbac(
    controllers: &[Descriptor],
    namespace: &str,
    install_crds: bool,
) -> Result<String, serde_saphyr::ser_error::Error> {
    let mut roles = vec![("portreeve".to_owned(), BASE)];
    if install_crds {
        roles.push(("portreeve:install-crds".to_owned(), INSTALL));
    }
    roles.extend(
        controllers
            .iter()
            .map(|controller| (format!("portreeve:{}", controller.name), controller.rules)),
    );
    let documents: Vec<_> = roles
        .iter()
        .flat_map(|(name, rules)| [role(name, rules), binding(name, namespace)])
        .collect();
    yaml(&documents)
}

fn role(name: &str, rules: &[Rule]) -> Value {
    let rules: Vec<_> = rules
        .iter()
        .map(|rule| json!({ "apiGroups": rule.groups, "resources": rule.resources, "verbs": rule.verbs }))
        .collect();
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": { "name": name },
        "rules": rules,
    })
}

fn binding(name: &str, namespace: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
        "subjects": [{ "kind": "ServiceAccount", "name": "portreeve", "namespace": namespace }],
    })
}

fn yaml(documents: &[Value]) -> Result<String, serde_saphyr::ser_error::Error> {
    // A sentence is a line, however long.
    let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
    let mut text = String::new();
    for document in documents {
        if !text.is_empty() {
            text.push_str("---\n");
        }
        text.push_str(&serde_saphyr::to_string_with_options(document, options)?);
    }
    Ok(text)
}

/// The known controllers as a table, for people.
pub(crate) fn table(known: &[Descriptor]) -> String {
    let rows = known.iter().map(|controller| {
        let default = if controller.on_by_default { "on" } else { "off" };
        [
            controller.name.to_owned(),
            controller.aliases.join(","),
            default.to_owned(),
        ]
    });
    let header = ["NAME", "ALIASES", "DEFAULT"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(header).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let (name, aliases) = (width(0), width(1));
    let lines = rows
        .iter()
        .map(|row| format!("{:name$}   {:aliases$}   {}", row[0], row[1], row[2]));
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

/// The known controllers as JSON, for programs.
pub(crate) fn list(known: &[Descriptor]) -> Value {
    let entry = |controller: &Descriptor| {
        json!({
            "name": controller.name,
            "aliases": controller.aliases,
            "onByDefault": controller.on_by_default,
        })
    };
    known.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::CONTROLLERS;

    #[test]
    fn controllers_are_listed_for_people_and_for_programs() {
        expect![[r"
            NAME                 ALIASES   DEFAULT
            crontab-controller   crontab   on
            cronjob-controller   cronjob   off
            foo-controller       foo       on
        "]]
        .assert_eq(&table(CONTROLLERS));
        assert_eq!(list(CONTROLLERS)[2]["name"], "foo-controller");
    }

    #[test]
    fn a_role_holds_exactly_the_rules_of_its_controller() {
        let text = rbac(CONTROLLERS, "ns", false).unwrap();
        assert!(text.contains("name: portreeve:foo-controller"), "{text}");
        assert!(!text.contains("install-crds"), "{text}");
        assert!(rbac(&[], "ns", true).unwrap().contains("install-crds"));
    }
}
