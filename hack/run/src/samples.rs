//! The samples: every document of every YAML file of a folder, applied as `kubectl apply --server-side` would.

use std::fmt;
use std::fs;
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

/// One object to apply.
#[derive(Debug)]
pub(crate) struct Sample {
    kind: GroupVersionKind,
    object: DynamicObject,
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.kind, self.object.name_any())
    }
}

/// The samples of a folder, in the order of the files' names.
pub(crate) fn read(folder: &Path) -> Result<Vec<Sample>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("failed to read the samples of {}", folder.display()))?;
    let files = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>();
    let mut files: Vec<PathBuf> =
        files.with_context(|| format!("failed to read the samples of {}", folder.display()))?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    let mut samples = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).with_context(|| format!("failed to read {}", file.display()))?;
        samples.extend(parse(&text).with_context(|| format!("failed to parse {}", file.display()))?);
    }
    Ok(samples)
}

fn parse(yaml: &str) -> Result<Vec<Sample>> {
    let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(yaml)?;
    let sample = |document| {
        let object: DynamicObject = serde_json::from_value(document)?;
        let types = object.types.as_ref().context("a document has no apiVersion and kind")?;
        ensure!(object.metadata.name.is_some(), "a {} has no name", types.kind);
        let kind = GroupVersionKind::try_from(types)?;
        Ok(Sample { kind, object })
    };
    documents
        .into_iter()
        .filter(|document| !document.is_null())
        .map(sample)
        .collect()
}

impl Sample {
    /// Applies the object once its kind is served, which the daemon may be about to see to.
    pub(crate) async fn apply(&self, client: &Client) -> Result<()> {
        let what = format!("the apiserver to take {self}");
        let outcome = eventually(CRD_LIMIT, &what, || async {
            match self.attempt(client).await {
                // A refusal is for whoever wrote the sample; only what is not there yet is waited for.
                Err(error) if is_refusal(&error) => Ok(Err(error)),
                other => other.map(Ok),
            }
        });
        outcome.await?.with_context(|| format!("failed to apply {self}"))
    }

    async fn attempt(&self, client: &Client) -> Result<()> {
        let (resource, capabilities) = pinned_kind(client, &self.kind).await?;
        let api: Api<DynamicObject> = match capabilities.scope {
            Scope::Cluster => Api::all_with(client.clone(), &resource),
            Scope::Namespaced => {
                let namespace = self.object.namespace().unwrap_or_else(|| "default".to_owned());
                Api::namespaced_with(client.clone(), &namespace, &resource)
            }
        };
        let params = PatchParams::apply("portreeve-run");
        api.patch(&self.object.name_any(), &params, &Patch::Apply(&self.object))
            .await?;
        Ok(())
    }
}

fn is_refusal(error: &anyhow::Error) -> bool {
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
        let yaml = "# two\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: two\n---\n";
        let samples = parse(yaml).unwrap();
        let names: Vec<String> = samples.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["ConfigMap one", "Deployment two"]);
        assert_eq!(samples[1].kind, GroupVersionKind::gvk("apps", "v1", "Deployment"));
    }

    #[test]
    fn a_document_without_a_kind_or_a_name_is_refused() {
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
}
