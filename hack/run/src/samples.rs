//! The samples: the documents of the YAML files of a folder, applied as by
//! `kubectl apply --server-side`.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::{Scope, pinned_kind};
use kube::{Api, Client, ResourceExt};
use portreeve_testing::eventually;

/// How long the daemon may take to install the CRD of a sample.
const CRD_LIMIT: Duration = Duration::from_secs(30);
/// How long the daemon may take to write the first status of a sample.
const STATUS_LIMIT: Duration = Duration::from_secs(30);

/// One object to apply.
#[derive(Debug)]
pub(crate) struct Sample {
    kind: GroupVersionKind,
    object: DynamicObject,
    /// The comment above the document, as one line.
    comment: String,
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.kind, self.object.name_any())
    }
}

/// Returns the samples of these folders, in the order of the file names without their extension.
pub(crate) fn read<'a>(folders: impl IntoIterator<Item = &'a Path>) -> Result<Vec<Sample>> {
    let mut files = Vec::new();
    for folder in folders {
        let found = files_of(folder).with_context(|| format!("failed to read the samples of {}", folder.display()))?;
        files.extend(found);
    }
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort_by(|one, other| one.file_stem().cmp(&other.file_stem()));
    let mut samples = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).with_context(|| format!("failed to read {}", file.display()))?;
        samples.extend(parse(&text).with_context(|| format!("failed to parse {}", file.display()))?);
    }
    Ok(samples)
}

fn files_of(folder: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

fn parse(yaml: &str) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for document in yaml.split("\n---\n") {
        let Some(object) = serde_saphyr::from_str::<Option<DynamicObject>>(document)? else {
            continue;
        };
        let types = object.types.as_ref().context("a document has no apiVersion and kind")?;
        ensure!(object.metadata.name.is_some(), "a {} has no name", types.kind);
        let kind = GroupVersionKind::try_from(types)?;
        let comment = comment(document);
        samples.push(Sample { kind, object, comment });
    }
    Ok(samples)
}

/// Returns the comment lines at the start of a document, joined by spaces.
fn comment(document: &str) -> String {
    let lines = document.lines().skip_while(|line| line.is_empty());
    let comments: Vec<&str> = lines.map_while(|line| line.strip_prefix('#')).map(str::trim).collect();
    comments.join(" ")
}

impl Sample {
    /// Returns the comment above the document, which says in one line what the sample shows.
    pub(crate) fn comment(&self) -> &str {
        &self.comment
    }

    /// Applies the object once its kind is served, because the daemon may still be installing its
    /// CRD. For a Foo, also waits until its status is written, so that the first of two Foos that
    /// name the same Deployment gets it.
    pub(crate) async fn apply(&self, client: &Client) -> Result<()> {
        let what = format!("the apiserver to accept {self}");
        let outcome = eventually(CRD_LIMIT, &what, || async {
            match self.attempt(client).await {
                // Only the author of the sample can correct a rejected object, so it is not
                // retried.
                Err(error) if is_rejection(&error) => Ok(Err(error)),
                other => other.map(Ok),
            }
        });
        outcome.await?.with_context(|| format!("failed to apply {self}"))?;
        if self.kind.kind == "Foo" {
            self.wait_for_conditions(client).await?;
        }
        Ok(())
    }

    async fn attempt(&self, client: &Client) -> Result<()> {
        let api = self.api(client).await?;
        let params = PatchParams::apply("portreeve-run");
        api.patch(&self.object.name_any(), &params, &Patch::Apply(&self.object))
            .await?;
        Ok(())
    }

    async fn wait_for_conditions(&self, client: &Client) -> Result<()> {
        let api = self.api(client).await?;
        let what = format!("the conditions of {self}");
        eventually(STATUS_LIMIT, &what, || async {
            let object = api.get(&self.object.name_any()).await?;
            ensure!(object.data["status"]["conditions"].is_array(), "it has none yet");
            Ok(())
        })
        .await
    }

    async fn api(&self, client: &Client) -> Result<Api<DynamicObject>> {
        let (resource, capabilities) = pinned_kind(client, &self.kind).await?;
        Ok(match capabilities.scope {
            Scope::Cluster => Api::all_with(client.clone(), &resource),
            Scope::Namespaced => {
                let namespace = self.object.namespace().unwrap_or_else(|| "default".to_owned());
                Api::namespaced_with(client.clone(), &namespace, &resource)
            }
        })
    }
}

fn is_rejection(error: &anyhow::Error) -> bool {
    match error.downcast_ref() {
        Some(kube::Error::Api(status)) => [400, 403, 409, 422].contains(&status.code),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_document_is_a_sample() {
        let yaml = "# Shows\n# one.\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: two\n---\n";
        let samples = parse(yaml).unwrap();
        let names: Vec<String> = samples.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["ConfigMap one", "Deployment two"]);
        assert_eq!(samples[1].kind, GroupVersionKind::gvk("apps", "v1", "Deployment"));
        assert_eq!([samples[0].comment(), samples[1].comment()], ["Shows one.", ""]);
    }

    #[test]
    fn documents_without_kind_or_name_are_rejected() {
        for (yaml, reason) in [
            ("metadata: {name: one}", "a document has no apiVersion and kind"),
            (
                "{apiVersion: v1, kind: ConfigMap, metadata: {}}",
                "a ConfigMap has no name",
            ),
        ] {
            assert_eq!(parse(yaml).unwrap_err().to_string(), reason);
        }
    }

    #[test]
    fn example_clash_is_applied_after_example_foo() {
        let controllers = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../controllers"));
        let folders = ["crontab", "foo"].map(|controller| controllers.join(controller).join("samples"));
        let samples = read(folders.iter().map(|folder| &**folder)).unwrap();
        let names: Vec<String> = samples.iter().map(ToString::to_string).collect();
        let position = |name: &str| names.iter().position(|other| other == name).unwrap();
        assert!(position("Foo example-foo") < position("Foo example-clash"), "{names:?}");
        assert!(samples.iter().all(|sample| !sample.comment().is_empty()));
    }
}
