//! The output of `portreeve crds`, `policies`, `rbac`, `fence`, `flowschema` and `webhooks`,
//! applied to a real apiserver.

use std::process::Command;

use anyhow::{Result, ensure};
use kube::api::PatchParams;
use portreeve_testing::ControlPlane;
use serde_json::{Value, json};

use crate::fixtures::{
    daemon::{PROGRAM, printed, run},
    manifests,
    repository::root,
};

/// Returns the cluster role and its binding for `Cluster NAME`, and other objects as they are.
fn with_binding(object: &str) -> Vec<String> {
    match object.strip_prefix("Cluster ") {
        Some(name) => ["ClusterRole", "ClusterRoleBinding"]
            .map(|kind| format!("{kind} {name}"))
            .into(),
        None => vec![object.to_owned()],
    }
}

/// The arguments that print manifests, and the printed objects.
const PRINTED: &[(&str, &[&str])] = &[
    (
        "crds",
        &[
            "CustomResourceDefinition crontabs.stable.example.com",
            "CustomResourceDefinition crontabpolicies.stable.example.com",
            "CustomResourceDefinition foos.samplecontroller.k8s.io",
        ],
    ),
    (
        "rbac --controllers=foo --install-crds=true --namespace=somewhere --leader-elect=false",
        &[
            "Cluster portreeve",
            "Cluster portreeve:serving",
            "Cluster portreeve:install-crds",
            "Cluster portreeve:foo-controller",
            "RoleBinding portreeve:authentication-reader",
        ],
    ),
    (
        "rbac --controllers=cronjob",
        &[
            "Cluster portreeve",
            "Cluster portreeve:serving",
            "Cluster portreeve:cronjob-controller",
            "RoleBinding portreeve:authentication-reader",
            "Role portreeve:leader-election",
            "RoleBinding portreeve:leader-election",
        ],
    ),
    (
        "rbac --controllers=ttl-after-finished --leader-elect=false",
        &[
            "Cluster portreeve",
            "Cluster portreeve:serving",
            "Cluster portreeve:ttl-after-finished-controller",
            "RoleBinding portreeve:authentication-reader",
        ],
    ),
    (
        "fence --controllers=cronjob --service-account=a --namespace=somewhere",
        &[
            "ValidatingAdmissionPolicy portreeve-fence.somewhere.a",
            "ValidatingAdmissionPolicyBinding portreeve-fence.somewhere.a",
        ],
    ),
    ("fence --controllers=-foo", &[]),
    ("crds --controllers=cronjob,ttl-after-finished", &[]),
    (
        "policies",
        &[
            "ValidatingAdmissionPolicy crontab-limits.stable.example.com",
            "ValidatingAdmissionPolicyBinding crontab-limits.stable.example.com",
            "MutatingAdmissionPolicy crontab-defaults.stable.example.com",
            "MutatingAdmissionPolicyBinding crontab-defaults.stable.example.com",
            "MutatingAdmissionPolicy crontab-defaults-v2.stable.example.com",
            "MutatingAdmissionPolicyBinding crontab-defaults-v2.stable.example.com",
        ],
    ),
    ("policies --controllers=foo,cronjob", &[]),
    (
        "webhooks --service-account=a --namespace=somewhere",
        &[
            "MutatingWebhookConfiguration portreeve-webhooks.somewhere.a",
            "ValidatingWebhookConfiguration portreeve-webhooks.somewhere.a",
            "Cluster a:webhooks",
        ],
    ),
    ("webhooks --controllers=cronjob", &[]),
];

#[tokio::test]
async fn the_apiserver_accepts_every_printed_manifest_strictly() -> Result<()> {
    let client = ControlPlane::shared().await.client()?;
    let dry = PatchParams::apply("an-administrator").dry_run().validation_strict();
    let system = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "portreeve-system"}});
    manifests::apply(&client, &system, None, &PatchParams::apply("an-administrator")).await?;
    for (args, expected) in PRINTED {
        let mut accepted = Vec::new();
        for document in manifests::documents(&printed(&args.split(' ').collect::<Vec<_>>())?)? {
            let object = manifests::apply(&client, &document, None, &dry).await?;
            let kind = object.types.map(|types| types.kind).unwrap_or_default();
            accepted.push(format!("{kind} {}", object.metadata.name.unwrap_or_default()));
        }
        let expected: Vec<_> = expected.iter().copied().flat_map(with_binding).collect();
        ensure!(accepted == expected, "{args}: {accepted:?}");
    }
    Ok(())
}

/// Returns the values at `places` in a printed document.
fn printed_values(args: &[&str], document: usize, places: &[&str]) -> Result<Vec<Value>> {
    let documents = manifests::documents(&printed(args)?)?;
    let of = |place: &&str| {
        documents
            .get(document)
            .and_then(|document| document.pointer(place))
            .cloned()
    };
    Ok(places.iter().map(|place| of(place).unwrap_or_default()).collect())
}

#[test]
fn leader_election_flags_determine_the_lease_in_the_output() -> Result<()> {
    let names = "/rules/0/resourceNames";
    let last = |args: &[&str]| {
        printed_values(
            &[&["rbac", "--controllers=foo,crontab"], args].concat(),
            9,
            &["/metadata", names],
        )
    };
    let role = |namespace: &str| json!({"name": "portreeve:leader-election", "namespace": namespace});
    ensure!(last(&[])? == [role("portreeve-system"), json!(["portreeve"])]);
    let moved = last(&["--leader-elect-resource-name=a", "--leader-elect-resource-namespace=b"])?;
    ensure!(moved == [role("b"), json!(["a"])], "{moved:?}");
    let grouped = last(&["--leader-elect-groups=crontab=x,cronjob-controller=y"])?;
    ensure!(
        grouped == [role("portreeve-system"), json!(["portreeve", "portreeve-x"])],
        "{grouped:?}"
    );
    let binding = |args: &[&str]| {
        printed_values(
            &[&["fence", "--controllers=foo"], args].concat(),
            1,
            &["/spec/paramRef"],
        )
    };
    let lease =
        |name: &str| [json!({"name": name, "namespace": "portreeve-system", "parameterNotFoundAction": "Allow"})];
    ensure!(binding(&[])? == lease("portreeve"));
    ensure!(binding(&["--leader-elect-groups=foo=x"])? == lease("portreeve-x"));
    ensure!(!printed(&["rbac", "--leader-elect=false"])?.contains("leases"));
    ensure!(printed(&["fence", "--leader-elect=false"])?.is_empty());
    Ok(())
}

#[test]
fn a_command_that_prints_nothing_says_why() -> Result<()> {
    for (command, reason) in [
        (
            "policies",
            "no policy printed: no enabled controller has admission policies\n",
        ),
        (
            "webhooks",
            "no configuration printed: no enabled controller has webhooks\n",
        ),
    ] {
        let output = run(&[command, "--controllers=cronjob"])?;
        ensure!(output.status.success() && output.stdout.is_empty(), "{output:?}");
        ensure!(output.stderr == reason.as_bytes(), "{output:?}");
    }
    Ok(())
}

#[test]
fn a_flow_schema_names_the_account_and_the_namespace_of_the_lease() -> Result<()> {
    let values = printed_values(
        &[
            "flowschema",
            "--namespace=a",
            "--service-account=b",
            "--leader-elect-resource-namespace=c",
        ],
        0,
        &[
            "/metadata/name",
            "/spec/rules/0/subjects/0/serviceAccount",
            "/spec/rules/0/resourceRules/0/namespaces",
        ],
    )?;
    let expected = [
        json!("portreeve-leader-election.a.b"),
        json!({"namespace": "a", "name": "b"}),
        json!(["c"]),
    ];
    ensure!(values == expected, "{values:?}");
    let unelected = run(&["flowschema", "--leader-elect=false"])?;
    ensure!(
        unelected.status.success() && unelected.stdout.is_empty(),
        "{unelected:?}"
    );
    let reason = String::from_utf8(unelected.stderr)?;
    ensure!(reason.contains("leader election is disabled"), "{reason}");
    Ok(())
}

#[test]
fn a_fence_for_several_groups_fails_and_the_error_names_the_commands_to_use() -> Result<()> {
    let error_of = |args: &[&str]| {
        let output = run(&[&["fence"], args].concat())?;
        ensure!(output.status.code() == Some(1), "{args:?} ended with {}", output.status);
        ensure!(output.stdout.is_empty(), "the command printed a fence");
        Ok(String::from_utf8(output.stderr)?)
    };
    let error = error_of(&["--leader-elect-groups=crontab=a"])?;
    for word in [
        "Lease portreeve: foo-controller; Lease portreeve-a: crontab-controller",
        "which pod writes, but not for which controller",
    ] {
        ensure!(error.contains(word), "the error lacks {word:?}: {error}");
    }
    // The suggested commands print the fences, in the requested namespaces.
    let elsewhere = [
        "--leader-elect-groups=crontab=a",
        "--namespace=there",
        "--leader-elect-resource-namespace=here",
        "--action=Audit",
    ];
    let error = error_of(&elsewhere)?;
    let commands: Vec<_> = error
        .split('`')
        .filter_map(|part| part.strip_prefix("portreeve "))
        .collect();
    ensure!(commands.len() == 2, "{error}");
    for (command, account) in commands.iter().zip(["portreeve", "portreeve-a"]) {
        let fence = printed(&command.split(' ').collect::<Vec<_>>())?;
        let user = format!("'system:serviceaccount:there:{account}'");
        for word in [&*user, &format!("name: {account}\n"), "namespace: here\n", "- Audit\n"] {
            ensure!(fence.contains(word), "{command} prints no {word}: {fence}");
        }
    }
    let error = error_of(&["--leader-elect-groups=cronta=a"])?;
    ensure!(error.contains("did you mean"), "{error}");
    let error = error_of(&["--leader-elect-groups=crontab"])?;
    ensure!(error.contains("such as crontab=a"), "{error}");
    let error = error_of(&["--service-account=a' || 'a' == 'a"])?;
    ensure!(error.contains("lower case letters"), "{error}");
    Ok(())
}

#[test]
fn the_generated_files_are_up_to_date() -> Result<()> {
    let output = Command::new(root().join("hack/verify"))
        .env("PORTREEVE", PROGRAM)
        .output()?;
    let printed = [output.stdout, output.stderr].concat();
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&printed));
    Ok(())
}
