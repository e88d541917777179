//! What kustomize and helm render.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;

use crate::fixtures::{
    manifests,
    repository::{printed_folder, root},
};

/// The objects of a rendering, by kind and name.
pub(crate) type Objects = BTreeMap<String, Value>;

/// Returns the folder of kustomize and helm. Builds them once if `make manifest-tools` has not.
pub(super) fn tools() -> Result<&'static Path> {
    static TOOLS: LazyLock<Result<PathBuf>> = LazyLock::new(|| printed_folder("hack/manifests/build"));
    TOOLS.as_deref().map_err(|error| anyhow!("{error:#}"))
}

/// Returns the output of kustomize or helm.
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

/// Returns the objects of a rendering.
pub(crate) fn objects(yaml: &str) -> Result<Objects> {
    let mut objects = Objects::new();
    for document in manifests::documents(yaml)? {
        if document.is_null() {
            continue;
        }
        let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let key = format!("{} {}", text("/kind"), text("/metadata/name"));
        ensure!(
            objects.insert(key.clone(), document).is_none(),
            "{key} is rendered twice"
        );
    }
    Ok(objects)
}

pub(super) fn overlay(name: &str) -> Result<Objects> {
    kustomization(&format!("kustomize/overlays/{name}"))
}

/// Builds a kustomization, by its folder in deploy/ or its absolute path.
pub(crate) fn kustomization(folder: &str) -> Result<Objects> {
    objects(&rendered("kustomize", &["build", folder])?)
}

/// Builds a kustomization that is not in deploy/. `{deploy}` in `text` is the path of deploy/.
pub(crate) fn custom_kustomization(text: &str, files: &[(&str, &str)]) -> Result<Objects> {
    let folder = tempfile::tempdir()?;
    // kustomize accepts no absolute path.
    let up = "../".repeat(folder.path().canonicalize()?.components().count() - 1);
    let deploy = root().canonicalize()?.join("deploy");
    let deploy = format!("{up}{}", deploy.strip_prefix("/")?.display());
    std::fs::write(
        folder.path().join("kustomization.yaml"),
        text.replace("{deploy}", &deploy),
    )?;
    for (name, content) in files {
        std::fs::write(folder.path().join(name), content)?;
    }
    kustomization(&folder.path().display().to_string())
}

/// Edits the kustomization of each overlay in a copy of deploy/, and renders the overlays.
pub(super) fn edited_overlays(edit: impl Fn(String) -> Result<String>) -> Result<Vec<String>> {
    let copy = tempfile::tempdir()?;
    let copied = Command::new("cp")
        .arg("-R")
        .args([&root().join("deploy"), copy.path()])
        .status()?;
    ensure!(copied.success(), "{copied}");
    let mut renderings = Vec::new();
    for name in ["default", "bare-control-plane"] {
        let overlay = copy.path().join("deploy/kustomize/overlays").join(name);
        let file = overlay.join("kustomization.yaml");
        let edited = edit(std::fs::read_to_string(&file)?).context(name)?;
        std::fs::write(&file, edited)?;
        renderings.push(rendered("kustomize", &["build", &overlay.display().to_string()])?);
    }
    Ok(renderings)
}

/// Renders each overlay with the lines that switch a component on, which are comments in it.
pub(crate) fn overlays_with(component: &str) -> Result<Vec<String>> {
    edited_overlays(|mut text| {
        for line in ["components:\n", &format!("- ../../../{component}\n")] {
            let commented = format!("# {line}");
            ensure!(text.matches(&commented).count() == 1, "{text}");
            text = text.replace(&commented, line);
        }
        Ok(text)
    })
}

/// Renders the chart as release `release` in `namespace`.
pub(crate) fn chart(release: &str, namespace: &str, values: &[&str]) -> Result<Objects> {
    let flag = format!("--namespace={namespace}");
    let args = ["template", release, "helm/portreeve", "--include-crds", &flag];
    let values = values.iter().flat_map(|value| ["--set", value]);
    objects(&rendered("helm", &args.into_iter().chain(values).collect::<Vec<_>>())?)
}
