//! deploy/: kustomize's overlays and the Helm chart render the same objects, the apiserver takes them all, and they fit the binary.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::LazyLock,
};

use anyhow::{Context, Result, anyhow, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{PatchParams, PostParams},
};
use portreeve_testing::ControlPlane;
use serde_json::{Value, json};

use crate::support::{daemon::printed, manifests};

/// Every object of a rendering, by kind and name.
type Objects = BTreeMap<String, Value>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder of the two tools. `make manifest-tools` has filled it; else this does, once.
fn tools() -> Result<&'static Path> {
    static TOOLS: LazyLock<Result<PathBuf>> = LazyLock::new(|| {
        let build = Command::new(root().join("hack/manifests/build"))
            .stderr(Stdio::inherit())
            .output()?;
        ensure!(
            build.status.success(),
            "hack/manifests/build ended with {}",
            build.status
        );
        Ok(String::from_utf8(build.stdout)?.trim().into())
    });
    TOOLS.as_deref().map_err(|error| anyhow!("{error:#}"))
}

/// What one of the two tools prints.
fn rendered(tool: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(tools()?.join(tool))
        .args(args)
        .current_dir(root().join("deploy"))
        .output()
        .with_context(|| format!("failed to run {tool}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{tool} {args:?}: {errors}");
    Ok(String::from_utf8(output.stdout)?)
}

fn objects(yaml: &str) -> Result<Objects> {
    let mut objects = Objects::new();
    for document in manifests::documents(yaml)? {
        if document.is_null() {
            continue;
        }
        let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let key = format!("{} {}", text("/kind"), text("/metadata/name"));
        ensure!(objects.insert(key.clone(), document).is_none(), "{key} is there twice");
    }
    Ok(objects)
}

fn overlay(name: &str) -> Result<Objects> {
    objects(&rendered(
        "kustomize",
        &["build", &format!("kustomize/overlays/{name}")],
    )?)
}

/// The chart as release `release` in `namespace`.
fn chart(release: &str, namespace: &str, values: &[&str]) -> Result<Objects> {
    let place = format!("--namespace={namespace}");
    let args = ["template", release, "helm/portreeve", "--include-crds", &place];
    let values = values.iter().flat_map(|value| ["--set", value]);
    objects(&rendered("helm", &args.into_iter().chain(values).collect::<Vec<_>>())?)
}

/// What only the chart says of a fence: that it outlives the release.
fn take_keeps(objects: &mut Objects) -> Result<()> {
    for (key, object) in objects.iter_mut().filter(|(key, _)| key.contains("Admission")) {
        let metadata = object["metadata"].as_object_mut().context("it has metadata")?;
        let annotations = metadata.remove("annotations");
        ensure!(
            annotations == Some(json!({"helm.sh/resource-policy": "keep"})),
            "{key}: {annotations:?}"
        );
    }
    Ok(())
}

/// The names of all controllers.
fn every_controller() -> Vec<&'static str> {
    portreeve::CONTROLLERS
        .iter()
        .map(|controller| controller.name)
        .collect()
}

#[test]
fn kustomize_and_helm_render_the_same() -> Result<()> {
    let every = format!("controllers={{{}}}", every_controller().join(","));
    for (name, values) in [("default", vec![]), ("bare-control-plane", vec![&*every])] {
        let mut overlay = overlay(name)?;
        // `helm install --create-namespace` makes it: a release lives in a namespace before it has objects.
        ensure!(overlay.remove("Namespace portreeve-system").is_some());
        let mut chart = chart("portreeve", "portreeve-system", &values)?;
        take_keeps(&mut chart)?;
        let (ours, theirs): (BTreeSet<_>, BTreeSet<_>) = (overlay.keys().collect(), chart.keys().collect());
        ensure!(ours == theirs, "{name}: {ours:#?} and {theirs:#?}");
        for (key, object) in &overlay {
            let difference = difference(key, object, &chart[key]);
            ensure!(difference.is_none(), "{name}: {}", difference.unwrap_or_default());
        }
    }
    Ok(())
}

/// The first place at which two values differ: definitions are too long to be printed whole. 1.0 is 1, which kustomize makes of it.
fn difference(place: &str, ours: &Value, theirs: &Value) -> Option<String> {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) if a.keys().eq(b.keys()) => {
            let mut fields = a.iter().zip(b.values());
            fields.find_map(|((key, ours), theirs)| difference(&format!("{place}/{key}"), ours, theirs))
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let mut items = a.iter().zip(b).enumerate();
            items.find_map(|(index, (ours, theirs))| difference(&format!("{place}/{index}"), ours, theirs))
        }
        (Value::Number(a), Value::Number(b)) if a.as_f64() == b.as_f64() => None,
        _ => (ours != theirs).then(|| format!("{place} is {ours} and {theirs}")),
    }
}

/// The chart reads the list of controllers, and puts together what the binary prints for each, by itself.
#[test]
fn the_chart_grants_and_fences_what_the_binary_would() -> Result<()> {
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
        take_keeps(&mut chart)?;
        let controllers = format!("--controllers={list}");
        let names = [
            &*controllers,
            "--namespace=b",
            "--service-account=a",
            "--leader-elect-resource-name=c",
            "--leader-elect-resource-namespace=b",
        ];
        let mut expected = objects(&printed(&[&["fence", "--action=Audit"], &names[..]].concat())?)?;
        // Without any controller there is nothing to be allowed.
        if list != "-foo" {
            expected.extend(objects(&printed(&[&["rbac"], &names[..]].concat())?)?);
        }
        let is_ours = |key: &str| ["Role", "Admission"].iter().any(|part| key.contains(part));
        let found: Objects = chart.into_iter().filter(|(key, _)| is_ours(key)).collect();
        ensure!(found == expected, "{list}: {found:#?} instead of {expected:#?}");
    }
    let unknown = chart("a", "b", &["controllers={*,-fop}"]).map(drop);
    let error = unknown.err().context("an unknown name was taken")?.to_string();
    ensure!(error.contains(r#"unknown controller "-fop"; use one of"#), "{error}");
    let text = chart("a", "b", &["controllers=*"]).map(drop);
    let error = text.err().context("a text was taken for a list")?.to_string();
    ensure!(error.contains("/controllers"), "{error}");
    Ok(())
}

#[test]
fn two_releases_have_nothing_in_common_but_definitions() -> Result<()> {
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
        let args = pod["containers"][0]["args"].as_array().context("it has arguments")?;
        ensure!(args.contains(&json!(lease)), "{args:?}");
    }
    Ok(())
}

#[test]
fn one_replica_may_do_without_an_election() -> Result<()> {
    let off = "leaderElection.enabled=false";
    let refused = chart("a", "b", &[off])
        .map(drop)
        .err()
        .context("three replicas were taken")?;
    ensure!(refused.to_string().contains("allows at most one replica"), "{refused}");
    let alone = chart("a", "b", &[off, "replicas=1"])?;
    let left: Vec<_> = ["Lease", "Admission", "leader-election"]
        .iter()
        .filter(|part| alone.keys().any(|key| key.contains(**part)))
        .collect();
    ensure!(left.is_empty(), "{left:?}");
    let deployment = &alone["Deployment a"]["spec"];
    ensure!(deployment["strategy"]["type"] == "Recreate", "{deployment:#}");
    Ok(())
}

#[tokio::test]
async fn the_apiserver_takes_every_manifest_strictly() -> Result<()> {
    let client = ControlPlane::shared().await.client()?;
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
        chart("portreeve", "portreeve-system", &[])?,
        chart("other", "portreeve-system", &everything)?,
        chart(
            "alone",
            "portreeve-system",
            &["leaderElection.enabled=false", "replicas=1"],
        )?,
    ];
    let force = PatchParams::apply("an-administrator").force().validation_strict();
    // The others are in it, so it has to be there.
    let namespace = &renderings[0]["Namespace portreeve-system"];
    manifests::apply(&client, namespace, None, &force).await?;
    let for_show = force.dry_run();
    for (key, object) in renderings.iter().flatten() {
        let applied = manifests::apply(&client, object, None, &for_show).await;
        applied.with_context(|| key.clone())?;
    }
    Ok(())
}

/// Pod Security is the judge: the namespace enforces `restricted`.
#[tokio::test]
async fn the_pods_pass_where_only_restricted_ones_may_be() -> Result<()> {
    let plane = ControlPlane::start().await?;
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
    let spec = created.spec.context("it has a spec")?;
    ensure!(spec.priority == Some(1_000_000), "{spec:#?}");
    pod["spec"]["containers"][0]["securityContext"]["capabilities"] = json!({});
    let refused = pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await;
    let error = refused.err().context("a pod with capabilities was taken")?.to_string();
    ensure!(error.contains("restricted"), "{error}");
    Ok(())
}

#[test]
fn deployments_run_this_version_with_flags_that_it_has() -> Result<()> {
    let version = concat!("v", env!("CARGO_PKG_VERSION"));
    for objects in [
        overlay("default")?,
        overlay("bare-control-plane")?,
        chart("portreeve", "portreeve-system", &["leaderElection.leaseDuration=30s"])?,
    ] {
        let pod = &objects["Deployment portreeve"]["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        ensure!(
            container["image"] == format!("portreeve:{version}"),
            "{}",
            container["image"]
        );
        let args = container["args"].as_array().context("it has arguments")?;
        let args = args.iter().filter_map(Value::as_str);
        portreeve::Config::parse(["portreeve"].into_iter().chain(args), portreeve::CONTROLLERS)?;
    }
    let packaged = std::fs::read_to_string(root().join("deploy/helm/portreeve/Chart.yaml"))?;
    ensure!(
        packaged.contains(&format!("\nversion: {}\n", env!("CARGO_PKG_VERSION"))),
        "{packaged}"
    );
    Ok(())
}

/// On top of one of our overlays, with the example of the same page as the file.
#[test]
fn the_overlay_of_the_documentation_mounts_a_config_file_and_names_it() -> Result<()> {
    let page = include_str!("../../docs/configuration.md");
    let blocks = page
        .split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next());
    let [file, fragment] = blocks.collect::<Vec<_>>()[..] else {
        return Err(anyhow!("the page has not two blocks of YAML"));
    };
    let folder = tempfile::tempdir()?;
    let root = root().canonicalize()?;
    // kustomize takes no absolute path.
    let up = "../".repeat(folder.path().canonicalize()?.components().count() - 1);
    let ours = root.join("deploy/kustomize/overlays/default");
    let ours = format!("resources: [{up}{}]\n", ours.strip_prefix("/")?.display());
    std::fs::write(folder.path().join("kustomization.yaml"), ours + fragment)?;
    std::fs::write(folder.path().join("config.yaml"), file)?;

    let objects = objects(&rendered(
        "kustomize",
        &["build", &folder.path().display().to_string()],
    )?)?;
    let pod = &objects["Deployment portreeve"]["spec"]["template"]["spec"];
    let [volume, container] = [&pod["volumes"][0], &pod["containers"][0]];
    let map = volume["configMap"]["name"].as_str().context("it has a ConfigMap")?;
    ensure!(objects[&format!("ConfigMap {map}")]["data"]["config.yaml"] == file);
    let mount = &container["volumeMounts"][0];
    ensure!(
        mount["name"] == volume["name"] && mount["mountPath"] == "/etc/portreeve",
        "{mount}"
    );
    let args = container["args"].as_array().context("it has arguments")?;
    for arg in [
        "--config=/etc/portreeve/config.yaml",
        "--leader-elect-resource-namespace=portreeve-system",
        "--controllers=*",
    ] {
        ensure!(args.iter().any(|found| found == arg), "{arg} is not among {args:?}");
    }
    Ok(())
}
