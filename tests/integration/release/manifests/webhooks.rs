//! deploy/webhooks and the chart's webhooks: both render the same objects, which agree with the
//! binary, and the apiserver accepts them.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{
    Objects, arguments, chart, controller_names, custom_kustomization, ensure_accepted, ensure_same, objects, overlay,
    overlays_with, rejection, remove_keep_annotations,
};
use crate::fixtures::{daemon::printed, manifests};

/// The objects of deploy/webhooks.
const OBJECTS: [&str; 5] = [
    "ClusterRole portreeve:webhooks",
    "ClusterRoleBinding portreeve:webhooks",
    "MutatingWebhookConfiguration portreeve-webhooks.portreeve-system.portreeve",
    "Service portreeve-webhook",
    "ValidatingWebhookConfiguration portreeve-webhooks.portreeve-system.portreeve",
];
/// The definition whose objects a webhook converts, as in `--tls-ca-bundles`.
const DEFINITION: &str = "customresourcedefinitions/crontabs.stable.example.com";
pub(crate) const ENABLED: &str = "webhooks.enabled=true";
pub(crate) const CERT_MANAGER: [&str; 2] = [
    "servingCertificate.certManager.enabled=true",
    "servingCertificate.certManager.issuerRef.name=an-issuer",
];

/// Returns the objects of the default overlay with these components, and the anchor of its fence.
pub(crate) fn with_components(components: &str) -> Result<Objects> {
    let overlay = "resources: ['{deploy}/kustomize/overlays/default', '{deploy}/kustomize/fence-anchor']\n";
    custom_kustomization(&format!("{overlay}components: [{components}]\n"), &[])
}

fn webhook_chart(values: &[&str]) -> Result<Objects> {
    let values: Vec<_> = [ENABLED].iter().chain(values).copied().collect();
    let mut objects = chart("portreeve", "portreeve-system", &values)?;
    remove_keep_annotations(&mut objects)?;
    Ok(objects)
}

/// Returns the container of the Deployment.
fn container(objects: &Objects) -> &Value {
    &objects["Deployment portreeve"]["spec"]["template"]["spec"]["containers"][0]
}

#[test]
fn the_component_and_the_chart_render_the_same_objects() -> Result<()> {
    for (components, values) in [
        ("'{deploy}/webhooks'", vec![]),
        (
            "'{deploy}/monitoring', '{deploy}/webhooks'",
            vec!["monitoring.enabled=true"],
        ),
    ] {
        let mut with = with_components(components)?;
        ensure!(with.remove("Namespace portreeve-system").is_some());
        ensure_same(&with, &webhook_chart(&values)?).context(components)?;
        let missing: Vec<_> = OBJECTS.iter().filter(|key| !with.contains_key(**key)).collect();
        ensure!(missing.is_empty(), "{missing:?}");
    }
    let off = chart("portreeve", "portreeve-system", &[])?;
    let left: Vec<_> = OBJECTS.iter().filter(|key| off.contains_key(**key)).collect();
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

/// All overlays share the component, so the controllers that are off by default must not have
/// webhooks.
#[test]
fn the_component_and_the_chart_have_the_configurations_that_the_binary_prints() -> Result<()> {
    let all = format!("--controllers={}", controller_names().join(","));
    let expected = objects(&printed(&["webhooks", &all])?)?;
    ensure!(objects(&printed(&["webhooks"])?)? == expected);
    let component = with_components("'{deploy}/webhooks'")?;
    for (key, object) in &expected {
        ensure!(component[key] == *object, "{key}");
    }
    for list in ["*", "crontab", "-crontab,*", "cronjob"] {
        let controllers = format!("controllers={{{list}}}");
        let flag = format!("--controllers={list}");
        let expected = objects(&printed(&["webhooks", &flag, "--namespace=b", "--service-account=a"])?)?;
        let is_ours = |key: &str| key.contains("WebhookConfiguration ") || key.ends_with(":webhooks");
        let mut found = chart("a", "b", &[ENABLED, &controllers])?;
        found.retain(|key, _| is_ours(key));
        ensure!(found == expected, "{list}: {found:#?} instead of {expected:#?}");
    }
    Ok(())
}

/// The pages and the overlays show the same lines, which are commented out in the overlays.
/// kubectl creates the configurations last: until then, the apiserver calls no webhook.
#[test]
fn the_documented_lines_switch_the_component_on() -> Result<()> {
    let page = include_str!("../../../../docs/webhooks.md");
    ensure!(page.contains("```yaml\ncomponents:\n- ../../../webhooks\n```"));
    for yaml in overlays_with("webhooks")? {
        let documents = manifests::documents(&yaml)?;
        let kinds: Vec<_> = documents
            .iter()
            .filter_map(|document| document["kind"].as_str())
            .collect();
        ensure!(
            kinds.ends_with(&["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"]),
            "{kinds:?}"
        );
    }
    Ok(())
}

/// A replica of an older version has the other labels, but no webhooks.
#[test]
fn the_service_selects_only_replicas_that_serve_webhooks() -> Result<()> {
    let (with, without) = (with_components("'{deploy}/webhooks'")?, overlay("default")?);
    let spec = &with["Service portreeve-webhook"]["spec"];
    let selects = |selector: &Value, objects: &Objects| {
        let labels = &objects["Deployment portreeve"]["spec"]["template"]["metadata"]["labels"];
        let mut wanted = selector.as_object().into_iter().flatten();
        wanted.all(|(label, value)| labels[label] == *value)
    };
    ensure!(selects(&spec["selector"], &with) && !selects(&spec["selector"], &without));
    for (objects, kind) in [
        (&with, "Deployment portreeve"),
        (&without, "Deployment portreeve"),
        (&with, "PodDisruptionBudget portreeve"),
    ] {
        // The selector of a Deployment cannot change, and those of other objects need not.
        let selector = &objects[kind]["spec"]["selector"]["matchLabels"];
        ensure!(selector["portreeve.dev/webhooks"].is_null(), "{selector}");
        ensure!(selects(selector, &with) && selects(selector, &without), "{kind}");
    }
    let ports = json!([{"name": "webhook", "port": 443, "targetPort": "webhook"}]);
    ensure!(spec["ports"] == ports, "{spec}");
    for (port, objects) in [(9443, with), (9444, webhook_chart(&["webhooks.port=9444"])?)] {
        let container = container(&objects);
        ensure!(container["ports"][0] == json!({"name": "webhook", "containerPort": port}));
        let flag = format!("--webhook-port={port}");
        let args = arguments(&objects, "portreeve")?;
        ensure!(args.contains(&&*flag), "{args:?}");
    }
    Ok(())
}

#[test]
fn probes_ask_for_leadership_only_at_the_start() -> Result<()> {
    let get = |path: &str, port: &str| json!({"path": path, "port": port, "scheme": "HTTPS"});
    let with = with_components("'{deploy}/webhooks'")?;
    let startup = &container(&with)["startupProbe"];
    let expected = get("/readyz/leaderElection", "https");
    ensure!(startup["httpGet"] == expected, "{startup}");
    let patience = startup["periodSeconds"]
        .as_u64()
        .zip(startup["failureThreshold"].as_u64());
    ensure!(patience.is_some_and(|(period, failures)| period * failures == 300));
    ensure!(container(&with)["readinessProbe"]["httpGet"] == get("/readyz", "webhook"));
    let without = overlay("default")?;
    ensure!(container(&with)["livenessProbe"] == container(&without)["livenessProbe"]);
    ensure!(container(&without)["readinessProbe"]["httpGet"] == get("/readyz", "https"));
    ensure!(container(&without)["startupProbe"].is_null());
    // There is no check of an election that does not take place.
    let alone = webhook_chart_alone()?;
    ensure!(container(&alone)["startupProbe"].is_null());
    ensure!(container(&alone)["readinessProbe"]["httpGet"] == get("/readyz", "webhook"));
    Ok(())
}

/// Renders the chart for a single replica without leader election, and so without a fence.
fn webhook_chart_alone() -> Result<Objects> {
    let values = [ENABLED, "leaderElection.enabled=false", "replicas=1"];
    chart("portreeve", "portreeve-system", &values)
}

#[test]
fn the_network_policy_of_monitoring_admits_every_source_to_webhooks_only() -> Result<()> {
    let policy = &with_components("'{deploy}/monitoring', '{deploy}/webhooks'")?["NetworkPolicy portreeve"];
    let rules = policy["spec"]["ingress"]
        .as_array()
        .context("the policy has no rules")?;
    let (open, closed): (Vec<_>, Vec<_>) = rules.iter().partition(|rule| rule["from"].is_null());
    ensure!(open == [&json!({"ports": [{"port": "webhook"}]})], "{open:?}");
    ensure!(closed.len() == 1 && closed[0]["ports"] == json!([{"port": "https"}]));
    // Without monitoring no policy isolates the replicas, so that webhooks do not need one.
    let with = with_components("'{deploy}/webhooks'")?;
    ensure!(!with.keys().any(|key| key.starts_with("NetworkPolicy ")));
    Ok(())
}

/// The leader may set the bundles of the configurations and of the definition whose objects a
/// webhook converts, and of nothing else.
#[test]
fn the_component_and_the_chart_grant_the_rights_of_tls_ca_bundles() -> Result<()> {
    let name = "portreeve-webhooks.portreeve-system.portreeve";
    let bundles = format!(
        "--tls-ca-bundles=mutatingwebhookconfigurations/{name},validatingwebhookconfigurations/{name},{DEFINITION}"
    );
    let rbac = objects(&printed(&[
        "rbac",
        "--leader-elect-resource-namespace=portreeve-system",
        "--tls-secret=portreeve-system/portreeve-serving",
        "--tls-issue-names=portreeve.portreeve-system.svc",
        "--tls-ca-config-map=portreeve-system/portreeve-serving-ca",
        &bundles,
    ])?)?;
    for objects in [with_components("'{deploy}/webhooks'")?, webhook_chart(&[])?] {
        let args = arguments(&objects, "portreeve")?;
        ensure!(args.contains(&&*bundles), "{args:?}");
        for (key, role) in &rbac {
            ensure!(objects.get(key) == Some(role), "{key}");
        }
    }
    Ok(())
}

/// Only they may be written.
#[test]
fn the_chart_names_only_objects_with_webhooks_of_enabled_controllers() -> Result<()> {
    let [mutating, validating] =
        ["mutating", "validating"].map(|kind| format!("{kind}webhookconfigurations/portreeve-webhooks.b.a"));
    for (controllers, named) in [
        ("crontab", vec![&*validating, DEFINITION]),
        ("foo", vec![&*mutating, &*validating]),
        ("cronjob", vec![]),
    ] {
        let objects = chart("a", "b", &[ENABLED, &format!("controllers={{{controllers}}}")])?;
        let args = arguments(&objects, "a")?;
        let bundles = args.iter().find(|flag| flag.starts_with("--tls-ca-bundles"));
        let expected = (!named.is_empty()).then(|| format!("--tls-ca-bundles={}", named.join(",")));
        ensure!(bundles.copied() == expected.as_deref(), "{controllers}: {args:?}");
        let mut flags = vec![
            "rbac",
            "--namespace=b",
            "--service-account=a",
            "--tls-secret=b/c",
            "--tls-issue-names=d",
        ];
        flags.extend(expected.as_deref());
        let rbac = super::objects(&printed(&flags)?)?;
        for key in ["ClusterRole a:ca-bundles", "ClusterRoleBinding a:ca-bundles"] {
            ensure!(
                objects.get(key) == rbac.get(key),
                "{controllers}: {:?}",
                objects.get(key)
            );
        }
    }
    Ok(())
}

#[test]
fn cert_manager_replaces_the_certificates_of_the_leader() -> Result<()> {
    let ours = webhook_chart(&["monitoring.enabled=true"])?;
    let theirs = webhook_chart(&[&["monitoring.enabled=true"], &CERT_MANAGER[..]].concat())?;
    for key in ["Secret portreeve-serving", "ConfigMap portreeve-serving-ca"] {
        ensure!(ours.contains_key(key) && !theirs.contains_key(key), "{key}");
    }
    let certificate = &theirs["Certificate portreeve-serving"]["spec"];
    let names = ["portreeve", "portreeve-webhook"].map(|name| format!("{name}.portreeve-system.svc"));
    let names = names
        .iter()
        .flat_map(|name| [name.clone(), format!("{name}.cluster.local")]);
    ensure!(
        certificate["dnsNames"] == json!(names.collect::<Vec<_>>()),
        "{certificate:#}"
    );
    ensure!(certificate["secretName"] == "portreeve-serving" && certificate["issuerRef"]["name"] == "an-issuer");
    let args = container(&theirs)["args"].to_string();
    ensure!(args.contains("--tls-secret=portreeve-system/portreeve-serving"));
    ensure!(
        !args.contains("--tls-issue-names") && !args.contains("--tls-ca"),
        "{args}"
    );
    for key in OBJECTS.iter().filter(|key| key.contains("Configuration ")) {
        let source = &theirs[*key]["metadata"]["annotations"]["cert-manager.io/inject-ca-from"];
        ensure!(*source == "portreeve-system/portreeve-serving", "{key}: {source}");
        ensure!(ours[*key]["metadata"]["annotations"].is_null(), "{key}");
    }
    let authority = &theirs["ServiceMonitor portreeve"]["spec"]["endpoints"][0]["tlsConfig"]["ca"];
    let expected = json!({"secret": {"name": "portreeve-serving", "key": "ca.crt"}});
    ensure!(*authority == expected, "{authority}");
    // The replicas have only the rights that they need then.
    let rbac = objects(&printed(&[
        "rbac",
        "--leader-elect-resource-namespace=portreeve-system",
        "--tls-secret=portreeve-system/portreeve-serving",
    ])?)?;
    for (key, role) in &rbac {
        ensure!(theirs[key] == *role, "{key}: {:#} instead of {role:#}", theirs[key]);
    }
    let error = rejection(&[ENABLED, CERT_MANAGER[0]])?;
    ensure!(error.contains("issuerRef"), "{error}");
    Ok(())
}

#[test]
fn values_leave_out_the_configurations() -> Result<()> {
    let off = "webhooks.configurations.enabled=false";
    let objects = webhook_chart(&[off])?;
    let left: Vec<_> = OBJECTS.iter().filter(|key| objects.contains_key(**key)).collect();
    ensure!(left == [&OBJECTS[0], &OBJECTS[1], &OBJECTS[3]], "{left:?}");
    // The apiserver would trust no certificate.
    let plain = "servingCertificate.enabled=false";
    let error = rejection(&[ENABLED, plain])?;
    ensure!(error.contains("set servingCertificate.enabled"), "{error}");
    ensure!(webhook_chart(&[plain, off])?.contains_key("Service portreeve-webhook"));
    Ok(())
}

#[tokio::test]
async fn the_apiserver_accepts_every_object_with_strict_validation() -> Result<()> {
    let component = with_components("'{deploy}/webhooks'")?;
    let mut theirs = webhook_chart(&CERT_MANAGER)?;
    theirs
        .remove("Certificate portreeve-serving")
        .context("the chart has no Certificate")?;
    ensure_accepted(&[component, webhook_chart(&[])?, theirs, webhook_chart_alone()?]).await
}
