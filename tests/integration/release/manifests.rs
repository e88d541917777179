//! deploy/: the kustomize overlays and the Helm chart render the same objects, the apiserver
//! accepts them, and they agree with the binary.

mod releases;
mod removal;
mod rendering;
pub(crate) mod webhooks;

use std::collections::BTreeSet;

use anyhow::{Context, Result, anyhow, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{PatchParams, PostParams},
};
use portreeve_testing::ControlPlane;
use serde_json::{Value, json};

pub(crate) use self::rendering::{Objects, chart, custom_kustomization, kustomization, objects, overlays_with};
use self::rendering::{edited_overlays, overlay, tools};
use crate::fixtures::{daemon::printed, manifests, repository::root};

/// Returns why helm rejects these values.
fn rejection(values: &[&str]) -> Result<String> {
    let rendered = chart("a", "b", values).map(drop);
    let error = rendered.err().with_context(|| format!("helm accepts {values:?}"))?;
    Ok(error.to_string())
}

/// Returns the arguments of the container of a release.
fn arguments<'a>(objects: &'a Objects, release: &str) -> Result<Vec<&'a str>> {
    let pod = &objects[&format!("Deployment {release}")]["spec"]["template"]["spec"];
    let args = pod["containers"][0]["args"].as_array();
    let args = args.context("the container has no arguments")?;
    Ok(args.iter().filter_map(Value::as_str).collect())
}

/// Removes the annotation that only the chart adds to fences and their anchors, so that they are
/// kept when the release is deleted.
pub(crate) fn remove_keep_annotations(objects: &mut Objects) -> Result<()> {
    for (key, object) in objects.iter_mut().filter(|(key, _)| key.contains("Admission")) {
        let metadata = object["metadata"]
            .as_object_mut()
            .context("the object has no metadata")?;
        let annotations = metadata["annotations"].as_object_mut();
        let annotations = annotations.context("the object has no annotations")?;
        let kept = annotations.remove("helm.sh/resource-policy");
        ensure!(kept == Some(json!("keep")), "{key}: {kept:?}");
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    Ok(())
}

/// Returns the names of all controllers.
fn controller_names() -> Vec<&'static str> {
    portreeve_cli::CONTROLLERS
        .iter()
        .map(|controller| controller.name)
        .collect()
}

#[test]
fn kustomize_and_helm_render_the_same_objects() -> Result<()> {
    let all_controllers = format!("controllers={{{}}}", controller_names().join(","));
    for (name, values) in [("default", vec![]), ("bare-control-plane", vec![&*all_controllers])] {
        let mut overlay = overlay(name)?;
        // `helm install --create-namespace` creates the namespace, so the chart has no object for
        // it.
        ensure!(overlay.remove("Namespace portreeve-system").is_some());
        // Deleting an overlay must not delete the anchor. The chart annotates it instead.
        overlay.extend(kustomization("kustomize/fence-anchor")?);
        let mut chart = chart("portreeve", "portreeve-system", &values)?;
        remove_keep_annotations(&mut chart)?;
        ensure_same(&overlay, &chart).context(name)?;
    }
    Ok(())
}

/// Ensures that two renderings have the same objects.
pub(crate) fn ensure_same(ours: &Objects, theirs: &Objects) -> Result<()> {
    let (names, others): (BTreeSet<_>, BTreeSet<_>) = (ours.keys().collect(), theirs.keys().collect());
    ensure!(names == others, "{names:#?} and {others:#?}");
    for (key, object) in ours {
        let difference = difference(key, object, &theirs[key]);
        ensure!(difference.is_none(), "{}", difference.unwrap_or_default());
    }
    Ok(())
}

/// Returns the path of the first difference between two values, since CRDs are too long to print.
/// 1.0 equals 1, because kustomize rewrites one to the other.
fn difference(path: &str, ours: &Value, theirs: &Value) -> Option<String> {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) if a.keys().eq(b.keys()) => {
            let mut fields = a.iter().zip(b.values());
            fields.find_map(|((key, ours), theirs)| difference(&format!("{path}/{key}"), ours, theirs))
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let mut items = a.iter().zip(b).enumerate();
            items.find_map(|(index, (ours, theirs))| difference(&format!("{path}/{index}"), ours, theirs))
        }
        (Value::Number(a), Value::Number(b)) if a.as_f64() == b.as_f64() => None,
        _ => (ours != theirs).then(|| format!("{path} is {ours} and {theirs}")),
    }
}

/// The chart parses the list of controllers itself, and assembles the rules that the binary prints
/// for each controller.
#[test]
fn the_chart_renders_the_rbac_the_fence_and_the_flow_schema_that_the_binary_prints() -> Result<()> {
    for list in [
        "*",
        "*,-foo",
        "cronjob",
        "-foo,foo,*",
        "foo-controller,cronjob,-crontab",
        "*,cronjob",
        "-foo",
    ] {
        let items = format!("controllers={{{list}}}");
        let mut chart = chart(
            "a",
            "b",
            &[&items, "leaderElection.resourceName=c", "fence.action=Audit"],
        )?;
        remove_keep_annotations(&mut chart)?;
        let controllers = format!("--controllers={list}");
        let names = [
            &*controllers,
            "--namespace=b",
            "--service-account=a",
            "--leader-elect-resource-name=c",
            "--leader-elect-resource-namespace=b",
        ];
        let certificate = [
            "--tls-secret=b/a-serving",
            "--tls-issue-names=a.b.svc",
            "--tls-ca-config-map=b/a-serving-ca",
        ];
        let mut expected = objects(&printed(&[&["fence", "--action=Audit"], &names[..]].concat())?)?;
        // Without any controller there are no rules to print, and there is no fence to anchor.
        if list != "-foo" {
            expected.extend(objects(&printed(&[&["rbac"], &names[..], &certificate].concat())?)?);
            expected.extend(objects(&printed(&["fence-anchor", names[1], names[2]])?)?);
        }
        expected.extend(objects(&printed(&[&["flowschema"], &names[1..]].concat())?)?);
        let is_ours = |key: &str| {
            ["Role", "Admission", "FlowSchema"]
                .iter()
                .any(|part| key.contains(part))
        };
        let found: Objects = chart.into_iter().filter(|(key, _)| is_ours(key)).collect();
        ensure!(found == expected, "{list}: {found:#?} instead of {expected:#?}");
    }
    let error = rejection(&["controllers={*,-fop}"])?;
    ensure!(error.contains(r#"unknown controller "-fop""#), "{error}");
    let error = rejection(&["controllers=*"])?;
    ensure!(error.contains("/controllers"), "{error}");
    Ok(())
}

#[test]
fn two_releases_share_only_crds() -> Result<()> {
    let first = chart("cron", "jobs", &["controllers={crontab}"])?;
    let second = chart("foos", "jobs", &["controllers={foo}"])?;
    let common: Vec<_> = first.keys().filter(|key| second.contains_key(*key)).collect();
    ensure!(
        common.iter().all(|key| key.starts_with("CustomResourceDefinition ")),
        "{common:?}"
    );
    for (release, objects) in [("cron", &first), ("foos", &second)] {
        for kind in ["Deployment", "ServiceAccount", "Lease"] {
            ensure!(
                objects.contains_key(&format!("{kind} {release}")),
                "{release} has no {kind}"
            );
        }
        let pod = &objects[&format!("Deployment {release}")]["spec"]["template"]["spec"];
        ensure!(pod["serviceAccountName"] == *release, "{pod:#}");
        let lease = format!("--leader-elect-resource-name={release}");
        let args = arguments(objects, release)?;
        ensure!(args.contains(&&*lease), "{args:?}");
    }
    Ok(())
}

#[test]
fn a_single_replica_can_run_without_leader_election() -> Result<()> {
    let off = "leaderElection.enabled=false";
    let error = rejection(&[off])?;
    ensure!(
        error.contains("at most one replica; set replicas to 1 or enable leader election"),
        "{error}"
    );
    let alone = chart("a", "b", &[off, "replicas=1"])?;
    let left: Vec<_> = ["Lease", "Admission", "FlowSchema", "leader-election"]
        .iter()
        .filter(|part| alone.keys().any(|key| key.contains(**part)))
        .collect();
    ensure!(left.is_empty(), "{left:?}");
    let deployment = &alone["Deployment a"]["spec"];
    ensure!(deployment["strategy"]["type"] == "Recreate", "{deployment:#}");
    Ok(())
}

#[test]
fn the_serving_certificate_can_be_switched_off() -> Result<()> {
    let plain = chart("a", "b", &["servingCertificate.enabled=false"])?;
    let left: Vec<_> = plain.keys().filter(|key| key.contains("serving-certificate")).collect();
    ensure!(left.is_empty(), "{left:?}");
    for key in ["Secret a-serving", "ConfigMap a-serving-ca"] {
        ensure!(!plain.contains_key(key), "{key}");
        ensure!(chart("a", "b", &[])?.contains_key(key), "{key}");
    }
    let deployment = plain["Deployment a"].to_string();
    ensure!(!deployment.contains("--tls-"), "{deployment}");
    Ok(())
}

#[tokio::test]
async fn the_apiserver_accepts_every_manifest_with_strict_validation() -> Result<()> {
    let everything = [
        "leaderElection.leaseDuration=30s",
        "leaderElection.renewDeadline=20s",
        "leaderElection.retryPeriod=4s",
        "image.pullPolicy=Always",
        "imagePullSecrets[0].name=pull",
        "extraArgs={-v=4}",
        "podAnnotations.a=b",
        "nodeSelector.a=b",
        "tolerations[0].operator=Exists",
        "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution=null",
    ];
    let renderings = [
        overlay("default")?,
        overlay("bare-control-plane")?,
        kustomization("kustomize/fence-anchor")?,
        chart("portreeve", "portreeve-system", &[])?,
        chart("other", "portreeve-system", &everything)?,
        chart(
            "alone",
            "portreeve-system",
            &["leaderElection.enabled=false", "replicas=1"],
        )?,
        chart("plain", "portreeve-system", &["servingCertificate.enabled=false"])?,
    ];
    ensure_accepted(&renderings).await
}

/// Ensures that the apiserver accepts every object of these renderings, the first of which has the
/// namespace, with strict validation.
async fn ensure_accepted(renderings: &[Objects]) -> Result<()> {
    let client = ControlPlane::shared().await.client()?;
    let force = PatchParams::apply("an-administrator").force().validation_strict();
    // The namespace has to exist before the apiserver accepts the namespaced objects.
    let namespace = &renderings[0]["Namespace portreeve-system"];
    manifests::apply(&client, namespace, None, &force).await?;
    let dry_run = force.dry_run();
    for (key, object) in renderings.iter().flatten() {
        let applied = manifests::apply(&client, object, None, &dry_run).await;
        applied.with_context(|| key.clone())?;
    }
    Ok(())
}

/// The namespace enforces the Pod Security level `restricted`.
#[tokio::test]
async fn the_pods_meet_the_restricted_pod_security_level() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let objects = overlay("default")?;
    let force = PatchParams::apply("an-administrator").force();
    for key in ["Namespace portreeve-system", "PriorityClass portreeve"] {
        manifests::apply(&plane.client()?, &objects[key], None, &force).await?;
    }
    let mut pod = objects["Deployment portreeve"]["spec"]["template"].clone();
    pod["metadata"]["generateName"] = "portreeve-".into();
    let pods: Api<Pod> = Api::namespaced(plane.client()?, "portreeve-system");
    let created = pods
        .create(&PostParams::default(), &serde_json::from_value(pod.clone())?)
        .await?;
    let spec = created.spec.context("the Pod has no spec")?;
    ensure!(spec.priority == Some(1_000_000), "{spec:#?}");
    pod["spec"]["containers"][0]["securityContext"]["capabilities"] = json!({});
    let created = pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await;
    let error = created
        .err()
        .context("the apiserver accepted a Pod with capabilities")?
        .to_string();
    ensure!(error.contains("restricted"), "{error}");
    Ok(())
}

#[test]
fn deployments_run_this_version_with_flags_that_the_binary_accepts() -> Result<()> {
    let version = concat!("v", env!("CARGO_PKG_VERSION"));
    for objects in [
        overlay("default")?,
        overlay("bare-control-plane")?,
        chart("portreeve", "portreeve-system", &["leaderElection.leaseDuration=30s"])?,
    ] {
        let image = &objects["Deployment portreeve"]["spec"]["template"]["spec"]["containers"][0]["image"];
        ensure!(*image == format!("portreeve:{version}"), "{image}");
        let args = arguments(&objects, "portreeve")?;
        portreeve_daemon::Config::parse(["portreeve"].into_iter().chain(args), portreeve_cli::CONTROLLERS)?;
    }
    let packaged = std::fs::read_to_string(root().join("deploy/helm/portreeve/Chart.yaml"))?;
    ensure!(
        packaged.contains(&format!("\nversion: {}\n", env!("CARGO_PKG_VERSION"))),
        "{packaged}"
    );
    Ok(())
}

/// Builds the documented overlay on top of one of ours, with the example config file of the same
/// page.
#[test]
fn the_documented_overlay_mounts_a_config_file_and_passes_its_path() -> Result<()> {
    let page = include_str!("../../../docs/configuration.md");
    let blocks = page
        .split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next());
    let [file, fragment] = blocks.collect::<Vec<_>>()[..] else {
        return Err(anyhow!("docs/configuration.md does not have exactly two YAML blocks"));
    };
    let ours = "resources: ['{deploy}/kustomize/overlays/default']\n";
    let objects = custom_kustomization(&format!("{ours}{fragment}"), &[("config.yaml", file)])?;
    let pod = &objects["Deployment portreeve"]["spec"]["template"]["spec"];
    let [volume, container] = [&pod["volumes"][0], &pod["containers"][0]];
    let map = volume["configMap"]["name"]
        .as_str()
        .context("the volume has no ConfigMap")?;
    ensure!(objects[&format!("ConfigMap {map}")]["data"]["config.yaml"] == file);
    let mount = &container["volumeMounts"][0];
    ensure!(
        mount["name"] == volume["name"] && mount["mountPath"] == "/etc/portreeve",
        "{mount}"
    );
    let args = arguments(&objects, "portreeve")?;
    for arg in [
        "--config=/etc/portreeve/config.yaml",
        "--leader-elect-resource-namespace=portreeve-system",
        "--controllers=*",
    ] {
        ensure!(args.contains(&arg), "{arg} is not among {args:?}");
    }
    Ok(())
}
