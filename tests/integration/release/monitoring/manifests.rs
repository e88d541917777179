//! The manifests of deploy/monitoring: the kustomize component and the chart render the same
//! objects, and the apiserver and the operator's schemas accept them.

use std::fs;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Service;
use kube::api::PatchParams;
use portreeve_testing::{ControlPlane, eventually};
use serde_json::{Value, json};

use super::{text, tools};
use crate::{
    fixtures::{LIMIT, manifests},
    release::manifests::{
        Objects, chart, custom_kustomization, ensure_same, objects, overlays_with, remove_keep_annotations,
    },
};

/// The objects of deploy/monitoring.
const OBJECTS: [&str; 9] = [
    "ClusterRole portreeve:metrics-reader",
    "ClusterRoleBinding portreeve:metrics-reader",
    "ConfigMap portreeve-dashboard",
    "NetworkPolicy portreeve",
    "PrometheusRule portreeve",
    "Role portreeve:metrics-discovery",
    "RoleBinding portreeve:metrics-discovery",
    "Service portreeve",
    "ServiceMonitor portreeve",
];

/// Returns the objects of an overlay that uses the component, and of the overlay alone.
fn overlays() -> Result<[Objects; 2]> {
    let overlay = "resources: ['{deploy}/kustomize/overlays/default', '{deploy}/kustomize/fence-anchor']\n";
    let component = "components: ['{deploy}/monitoring']\n";
    Ok([
        custom_kustomization(&format!("{overlay}{component}"), &[])?,
        custom_kustomization(overlay, &[])?,
    ])
}

/// Returns the objects of the component.
pub(super) fn component() -> Result<Objects> {
    let [mut with, without] = overlays()?;
    with.retain(|key, _| !without.contains_key(key));
    Ok(with)
}

fn monitored_chart(release: &str, values: &[&str]) -> Result<Objects> {
    let values: Vec<_> = ["monitoring.enabled=true"].iter().chain(values).copied().collect();
    let mut objects = chart(release, "portreeve-system", &values)?;
    remove_keep_annotations(&mut objects)?;
    Ok(objects)
}

#[test]
fn the_component_and_the_chart_render_the_same_objects() -> Result<()> {
    let [mut with, without] = overlays()?;
    ensure!(with.remove("Namespace portreeve-system").is_some());
    ensure_same(&with, &monitored_chart("portreeve", &[])?)?;
    let added: Vec<_> = with.keys().filter(|key| !without.contains_key(*key)).collect();
    ensure!(added == OBJECTS, "{added:?}");
    let off = chart("portreeve", "portreeve-system", &[])?;
    let left: Vec<_> = OBJECTS.iter().filter(|key| off.contains_key(**key)).collect();
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

/// The pages and the overlays show the same lines, which are commented out in the overlays.
#[test]
fn the_documented_lines_switch_the_component_on() -> Result<()> {
    for page in [
        include_str!("../../../../README.md"),
        include_str!("../../../../docs/monitoring.md"),
    ] {
        ensure!(page.contains("```yaml\ncomponents:\n- ../../../monitoring\n```"));
    }
    for yaml in overlays_with("monitoring")? {
        let objects = objects(&yaml)?;
        let missing: Vec<_> = OBJECTS.iter().filter(|key| !objects.contains_key(**key)).collect();
        ensure!(missing.is_empty(), "{missing:?}");
    }
    Ok(())
}

#[test]
fn the_prometheus_rule_has_the_rules_of_the_plain_file() -> Result<()> {
    let file: Value = serde_saphyr::from_str(&super::source("rules.yaml")?)?;
    for objects in [component()?, monitored_chart("portreeve", &[])?] {
        ensure!(objects["PrometheusRule portreeve"]["spec"] == file);
    }
    // The label `job` is the name of the Service, which is the name of the release.
    let other = monitored_chart("other", &[])?;
    let spec = other["PrometheusRule other"]["spec"].to_string();
    let (ours, others) = (spec.matches(r#"job=\"portreeve\""#), spec.matches(r#"job=\"other\""#));
    ensure!(ours.count() == 0 && others.count() > 10, "{spec}");
    Ok(())
}

#[test]
fn values_switch_off_each_part_and_name_the_prometheus() -> Result<()> {
    for (part, object) in [
        ("serviceMonitor", "ServiceMonitor portreeve"),
        ("rules", "PrometheusRule portreeve"),
        ("networkPolicy", "NetworkPolicy portreeve"),
        ("dashboard", "ConfigMap portreeve-dashboard"),
    ] {
        let objects = monitored_chart("portreeve", &[&format!("monitoring.{part}.enabled=false")])?;
        let missing: Vec<_> = OBJECTS.iter().filter(|key| !objects.contains_key(**key)).collect();
        ensure!(missing == [&object], "{part}: {missing:?}");
    }
    let objects = monitored_chart(
        "portreeve",
        &[
            "monitoring.prometheus.namespace=observability",
            "monitoring.prometheus.serviceAccount=scraper",
            "monitoring.labels.release=stack",
            "monitoring.serviceMonitor.interval=15s",
            "monitoring.serviceMonitor.authorization.credentials.name=scraper-token",
            "monitoring.serviceMonitor.authorization.credentials.key=token",
        ],
    )?;
    let scraper = json!([{"kind": "ServiceAccount", "name": "scraper", "namespace": "observability"}]);
    for binding in [
        "ClusterRoleBinding portreeve:metrics-reader",
        "RoleBinding portreeve:metrics-discovery",
    ] {
        ensure!(objects[binding]["subjects"] == scraper, "{:#}", objects[binding]);
    }
    let peer = &objects["NetworkPolicy portreeve"]["spec"]["ingress"][0]["from"][0];
    let namespace = "/namespaceSelector/matchLabels/kubernetes.io~1metadata.name";
    ensure!(text(peer, namespace)? == "observability", "{peer}");
    for kind in ["ServiceMonitor", "PrometheusRule"] {
        let object = &objects[&format!("{kind} portreeve")];
        ensure!(text(object, "/metadata/labels/release")? == "stack", "{object:#}");
    }
    let endpoint = &objects["ServiceMonitor portreeve"]["spec"]["endpoints"][0];
    ensure!(
        endpoint["interval"] == "15s" && endpoint["bearerTokenFile"].is_null(),
        "{endpoint:#}"
    );
    ensure!(endpoint["authorization"]["credentials"] == json!({"name": "scraper-token", "key": "token"}));
    Ok(())
}

/// The operator's schemas drop or reject unknown and malformed fields, like the apiserver does for
/// its own kinds.
#[tokio::test]
async fn the_apiserver_accepts_every_object_with_the_schemas_of_the_prometheus_operator() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let client = plane.client()?;
    let force = PatchParams::apply("an-administrator").force();
    for file in ["servicemonitors.yaml", "prometheusrules.yaml"] {
        let crd = fs::read_to_string(tools::operator_crds()?.join(file))?;
        manifests::apply(&client, &serde_saphyr::from_str(&crd)?, None, &force).await?;
    }
    let [with, _] = overlays()?;
    manifests::apply(&client, &with["Namespace portreeve-system"], None, &force).await?;
    let everything = [
        "monitoring.labels.release=stack",
        "monitoring.serviceMonitor.authorization.credentials.name=scraper-token",
        "monitoring.serviceMonitor.authorization.credentials.key=token",
    ];
    let strict = force.validation_strict();
    for objects in [component()?, monitored_chart("portreeve", &everything)?] {
        for key in OBJECTS {
            // The apiserver serves the new definitions a moment later.
            let object = &objects[key];
            eventually(LIMIT, key, || manifests::apply(&client, object, None, &strict)).await?;
        }
    }
    // The check above detects mistakes.
    let mut wrong = with["ServiceMonitor portreeve"].clone();
    wrong["spec"]["endpoints"][0]["tlsConfig"]["server"] = json!("a");
    let refused = manifests::apply(&client, &wrong, None, &strict).await.map(drop);
    let error = refused.err().context("the apiserver accepted an unknown field")?;
    ensure!(format!("{error:#}").contains("tlsConfig.server"), "{error:#}");
    Ok(())
}

#[test]
fn prometheus_finds_the_port_of_the_replicas_and_verifies_the_name_of_the_service() -> Result<()> {
    let [with, _] = overlays()?;
    let service: Service = serde_json::from_value(with["Service portreeve"].clone())?;
    let ports = service.spec.and_then(|spec| spec.ports).unwrap_or_default();
    let [port] = &ports[..] else {
        anyhow::bail!("the Service does not have exactly one port")
    };
    ensure!(
        port.name.as_deref() == Some("https-metrics") && port.port == 10257,
        "{port:?}"
    );
    let pod = &with["Deployment portreeve"]["spec"]["template"];
    ensure!(pod["metadata"]["labels"] == with["Service portreeve"]["spec"]["selector"]);
    ensure!(pod["spec"]["containers"][0]["ports"][0] == json!({"name": "https", "containerPort": 10257}));
    ensure!(with["NetworkPolicy portreeve"]["spec"]["ingress"][0]["ports"] == json!([{"port": "https"}]));
    let monitor = &with["ServiceMonitor portreeve"]["spec"];
    ensure!(monitor["selector"]["matchLabels"] == with["Service portreeve"]["metadata"]["labels"]);
    let endpoint = &monitor["endpoints"][0];
    ensure!(
        endpoint["port"] == "https-metrics" && endpoint["scheme"] == "https",
        "{endpoint:#}"
    );
    let tls = json!({
        "ca": {"configMap": {"name": "portreeve-serving-ca", "key": "ca.crt"}},
        "serverName": "portreeve.portreeve-system.svc",
    });
    ensure!(endpoint["tlsConfig"] == tls, "{endpoint:#}");
    Ok(())
}
