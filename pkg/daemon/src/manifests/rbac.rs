//! `portreeve rbac`: a role for each controller, one for the daemon, one for its listener, one for
//! the election, and their bindings.
//!
//! Architecture Invariant: pure.

use std::collections::{BTreeMap, BTreeSet};

use portreeve_reconcile::{Descriptor, Rule};
use portreeve_serving::SecretArgs;
use serde_json::{Value, json};

use super::{Account, Error, definition_names, yaml};

const GROUP: &str = "rbac.authorization.k8s.io";

/// The rules that every replica needs, whichever controllers it runs.
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

/// The rules for authenticating and authorizing requests to the listener.
const SERVING: &[Rule] = &[
    Rule {
        groups: &["authentication.k8s.io"],
        resources: &["tokenreviews"],
        verbs: &["create"],
    },
    Rule {
        groups: &["authorization.k8s.io"],
        resources: &["subjectaccessreviews"],
        verbs: &["create"],
    },
];

/// The verbs that an elector needs on its own Leases.
pub(super) const LEASE_VERBS: &[&str] = &["get", "patch", "watch"];

/// The verb that an elector needs on all Leases of the namespace.
pub(super) const CREATE_VERB: &str = "create";

/// The verbs for an object that the leader follows and writes.
const WRITER_VERBS: &[&str] = &["list", "patch", "watch"];

/// The roles to generate besides those of the controllers.
pub(crate) struct RoleOptions<'a> {
    /// Whether the daemon runs with `--install-crds`.
    pub(crate) install_crds: bool,
    /// The names of the daemon's Leases. Empty without leader election.
    pub(crate) leases: Vec<&'a str>,
    /// The namespace of the Leases.
    pub(crate) lease_namespace: &'a str,
    /// The Secret of the serving certificate, and whether the daemon maintains it.
    pub(crate) secret: &'a SecretArgs,
}

/// Returns the roles of these controllers, with their bindings to the account.
pub(crate) fn rbac(controllers: &[Descriptor], account: &Account, options: &RoleOptions<'_>) -> Result<String, Error> {
    let prefix = &account.service_account;
    let cluster_wide = |name: String, rules: &[Rule]| {
        let list = rules
            .iter()
            .map(|rule| json!({ "apiGroups": rule.groups, "resources": rule.resources, "verbs": rule.verbs }));
        role_and_binding("Cluster", &json!({ "name": name }), &list.collect(), account)
    };
    let mut documents = Vec::from(cluster_wide(prefix.clone(), BASE));
    documents.extend(cluster_wide(format!("{prefix}:serving"), SERVING));
    if options.install_crds {
        documents.extend(install_role(controllers, account)?);
    }
    for controller in controllers {
        documents.extend(cluster_wide(format!("{prefix}:{}", controller.name), controller.rules));
    }
    documents.push(authentication_reader(account));
    if !options.leases.is_empty() {
        let metadata = json!({ "name": format!("{prefix}:leader-election"), "namespace": options.lease_namespace });
        documents.extend(role_and_binding(
            "",
            &metadata,
            &election_rules(&options.leases),
            account,
        ));
    }
    documents.extend(certificate_roles(account, options.secret));
    documents.extend(bundle_role(account, options.secret));
    yaml(&documents)
}

/// Returns the role for `--install-crds` with its binding: the rights are limited to the CRDs of
/// these controllers. Nothing if they have none.
fn install_role(controllers: &[Descriptor], account: &Account) -> Result<Vec<Value>, Error> {
    let mut names = BTreeSet::new();
    for controller in controllers {
        names.extend(definition_names(controller)?);
    }
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let rules = json!([{
        "apiGroups": ["apiextensions.k8s.io"],
        "resources": ["customresourcedefinitions"],
        "resourceNames": names,
        "verbs": ["create", "get", "patch"],
    }]);
    let name = format!("{}:install-crds", account.service_account);
    Ok(role_and_binding("Cluster", &json!({ "name": name }), &rules, account).into())
}

/// Returns the roles for the serving certificate, with their bindings: every replica watches the
/// Secret, and the leader may create and write it and write the ConfigMap.
///
/// A server-side apply names the object that it creates, so the right to create is limited to that
/// name. A POST would need the right to create every Secret.
fn certificate_roles(account: &Account, args: &SecretArgs) -> Vec<Value> {
    let (secret_verbs, config_map_verbs): (&[&str], &[&str]) = if args.tls_issue_names.is_empty() {
        (&["watch"], &["watch"])
    } else {
        (&["create", "list", "patch", "watch"], WRITER_VERBS)
    };
    let secret = args.tls_secret.as_deref();
    let secret = secret.map(|secret| ("secrets", secret, secret_verbs));
    let config_map = args.tls_ca_config_map.as_deref();
    let config_map = config_map.map(|map| ("configmaps", map, config_map_verbs));
    let mut rules: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for (resource, object, verbs) in secret.into_iter().chain(config_map) {
        let Some((namespace, name)) = object.split_once('/') else {
            continue;
        };
        let rule = json!({ "apiGroups": [""], "resources": [resource], "resourceNames": [name], "verbs": verbs });
        rules.entry(namespace).or_default().push(rule);
    }
    let documents = rules.into_iter().flat_map(|(namespace, rules)| {
        let name = format!("{}:serving-certificate", account.service_account);
        role_and_binding(
            "",
            &json!({ "name": name, "namespace": namespace }),
            &rules.into(),
            account,
        )
    });
    documents.collect()
}

/// Returns the role for the objects of `--tls-ca-bundles` with its binding, if there are any. Every
/// replica may list and watch definitions anyway ([`BASE`]).
fn bundle_role(account: &Account, args: &SecretArgs) -> Vec<Value> {
    let mut names: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (resource, name) in args.tls_ca_bundles.iter().filter_map(|bundle| bundle.split_once('/')) {
        names.entry(resource).or_default().push(name);
    }
    if names.is_empty() {
        return Vec::new();
    }
    let rules = names.into_iter().map(|(resource, names)| {
        let (group, verbs): (_, &[&str]) = if resource == "customresourcedefinitions" {
            ("apiextensions.k8s.io", &["patch"])
        } else {
            ("admissionregistration.k8s.io", WRITER_VERBS)
        };
        json!({ "apiGroups": [group], "resources": [resource], "resourceNames": names, "verbs": verbs })
    });
    let name = format!("{}:ca-bundles", account.service_account);
    role_and_binding("Cluster", &json!({ "name": name }), &rules.collect(), account).into()
}

/// Returns the rules for the election. The rule for `create` lists no resource names, because the
/// authorizer does not know the name of an object that is being created.
fn election_rules(leases: &[&str]) -> Value {
    let groups = ["coordination.k8s.io"];
    json!([
        { "apiGroups": groups, "resources": ["leases"], "resourceNames": leases, "verbs": LEASE_VERBS },
        { "apiGroups": groups, "resources": ["leases"], "verbs": [CREATE_VERB] },
    ])
}

/// Returns the binding to the role, which every apiserver creates, that permits reading the CAs of
/// client certificates.
fn authentication_reader(account: &Account) -> Value {
    let name = format!("{}:authentication-reader", account.service_account);
    let role = json!("extension-apiserver-authentication-reader");
    binding("", &json!({ "name": name, "namespace": "kube-system" }), &role, account)
}

/// Returns a role and its binding. `scope` is `Cluster` or empty.
pub(super) fn role_and_binding(scope: &str, metadata: &Value, rules: &Value, account: &Account) -> [Value; 2] {
    let role = json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": format!("{scope}Role"),
        "metadata": metadata,
        "rules": rules,
    });
    [role, binding(scope, metadata, &metadata["name"], account)]
}

/// Returns the binding of a role to the account.
fn binding(scope: &str, metadata: &Value, role: &Value, account: &Account) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": format!("{scope}RoleBinding"),
        "metadata": metadata,
        "roleRef": { "apiGroup": GROUP, "kind": format!("{scope}Role"), "name": role },
        "subjects": [{ "kind": "ServiceAccount", "name": account.service_account, "namespace": account.namespace }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_cli::CONTROLLERS;

    fn output(controllers: &[Descriptor], install_crds: bool, leases: &[&str]) -> String {
        let account = Account {
            namespace: "somewhere".to_owned(),
            service_account: "portreeve".to_owned(),
        };
        let options = RoleOptions {
            install_crds,
            leases: leases.to_vec(),
            lease_namespace: "elsewhere",
            secret: &SecretArgs::default(),
        };
        rbac(controllers, &account, &options).unwrap()
    }

    #[test]
    fn controllers_and_install_crds_have_separate_roles() {
        let text = output(CONTROLLERS, false, &[]);
        assert!(text.contains("name: portreeve:foo-controller"), "{text}");
        assert!(!text.contains("install-crds"), "{text}");
        assert!(!output(&[], true, &[]).contains("install-crds"), "no CRD is named");
        let text = output(CONTROLLERS, true, &[]);
        let (_, role) = text.split_once("name: portreeve:install-crds").unwrap();
        for name in ["crontabs.stable.example.com", "foos.samplecontroller.k8s.io"] {
            assert!(role.contains(name), "{text}");
        }
    }

    #[test]
    fn the_role_of_the_certificate_covers_only_its_objects() {
        let account = Account {
            namespace: "somewhere".to_owned(),
            service_account: "portreeve".to_owned(),
        };
        let roles = |issue: &[&str], config_map: Option<&str>| {
            let args = SecretArgs {
                tls_secret: Some("there/serving".to_owned()),
                tls_issue_names: issue.iter().copied().map(str::to_owned).collect(),
                tls_ca_config_map: config_map.map(str::to_owned),
                ..SecretArgs::default()
            };
            let roles = certificate_roles(&account, &args).into_iter();
            let roles = roles.filter(|document| document["kind"] == "Role");
            let summary = roles.map(|role| format!("{} {}\n", role["metadata"], role["rules"]));
            summary.collect::<String>()
        };
        expect_test::expect![[r#"
            {"name":"portreeve:serving-certificate","namespace":"there"} [{"apiGroups":[""],"resourceNames":["serving"],"resources":["secrets"],"verbs":["watch"]}]
        "#]].assert_eq(&roles(&[], None));
        expect_test::expect![[r#"
            {"name":"portreeve:serving-certificate","namespace":"here"} [{"apiGroups":[""],"resourceNames":["ca"],"resources":["configmaps"],"verbs":["list","patch","watch"]}]
            {"name":"portreeve:serving-certificate","namespace":"there"} [{"apiGroups":[""],"resourceNames":["serving"],"resources":["secrets"],"verbs":["create","list","patch","watch"]}]
        "#]].assert_eq(&roles(&["a"], Some("here/ca")));
    }

    #[test]
    fn the_role_of_the_bundles_covers_only_its_objects() {
        let account = Account {
            namespace: "somewhere".to_owned(),
            service_account: "portreeve".to_owned(),
        };
        assert_eq!(bundle_role(&account, &SecretArgs::default()), Vec::<Value>::new());
        let bundles = [
            "validatingwebhookconfigurations/a",
            "customresourcedefinitions/b.c",
            "mutatingwebhookconfigurations/a",
            "validatingwebhookconfigurations/d",
        ];
        let args = SecretArgs {
            tls_ca_bundles: bundles.map(str::to_owned).into(),
            ..SecretArgs::default()
        };
        let role = &bundle_role(&account, &args)[0];
        assert_eq!(role["metadata"]["name"], "portreeve:ca-bundles");
        let rules = role["rules"].as_array().unwrap().iter();
        let rules: Vec<_> = rules.map(|rule| format!("{rule}\n")).collect();
        expect_test::expect![[r#"
            {"apiGroups":["apiextensions.k8s.io"],"resourceNames":["b.c"],"resources":["customresourcedefinitions"],"verbs":["patch"]}
            {"apiGroups":["admissionregistration.k8s.io"],"resourceNames":["a"],"resources":["mutatingwebhookconfigurations"],"verbs":["list","patch","watch"]}
            {"apiGroups":["admissionregistration.k8s.io"],"resourceNames":["a","d"],"resources":["validatingwebhookconfigurations"],"verbs":["list","patch","watch"]}
        "#]].assert_eq(&rules.concat());
    }

    #[test]
    fn election_role_covers_only_its_own_leases() {
        assert!(!output(CONTROLLERS, false, &[]).contains("leader-election"));
        let text = output(&[], false, &["portreeve", "portreeve-a"]);
        let (_, role) = text.split_once("\nkind: Role\n").unwrap();
        let (role, _) = role.split_once("---").unwrap();
        expect_test::expect![[r"
            metadata:
              name: portreeve:leader-election
              namespace: elsewhere
            rules:
            - apiGroups:
              - coordination.k8s.io
              resourceNames:
              - portreeve
              - portreeve-a
              resources:
              - leases
              verbs:
              - get
              - patch
              - watch
            - apiGroups:
              - coordination.k8s.io
              resources:
              - leases
              verbs:
              - create
        "]]
        .assert_eq(role);
    }
}
