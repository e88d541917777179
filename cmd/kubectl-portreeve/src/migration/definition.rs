//! What the commands know about a CustomResourceDefinition, and the changes of it as JSON patches.
//!
//! Architecture Invariant: pure.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::{ApiResource, Version};
use serde_json::{Value, json};

/// A version of the definition.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct VersionState {
    pub(crate) name: String,
    pub(crate) is_served: bool,
    pub(crate) is_stored: bool,
}

/// A CustomResourceDefinition as it was read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Definition {
    pub(crate) name: String,
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) plural: String,
    pub(crate) is_namespaced: bool,
    /// In the order of `spec.versions`.
    pub(crate) versions: Vec<VersionState>,
    /// `status.storedVersions`.
    pub(crate) stored_versions: Vec<String>,
    /// `spec.conversion`.
    pub(crate) conversion: Value,
    /// Why the apiserver does not serve the definition.
    pub(crate) problem: Option<String>,
    pub(crate) generation: i64,
    pub(crate) resource_version: String,
    pub(crate) annotations: Option<BTreeMap<String, String>>,
}

impl From<CustomResourceDefinition> for Definition {
    fn from(read: CustomResourceDefinition) -> Self {
        let problem = problem(&read);
        let (metadata, spec) = (read.metadata, read.spec);
        let versions = spec.versions.into_iter().map(|version| VersionState {
            name: version.name,
            is_served: version.served,
            is_stored: version.storage,
        });
        Self {
            name: metadata.name.unwrap_or_default(),
            group: spec.group,
            kind: spec.names.kind,
            plural: spec.names.plural,
            is_namespaced: spec.scope == "Namespaced",
            versions: versions.collect(),
            stored_versions: read
                .status
                .and_then(|status| status.stored_versions)
                .unwrap_or_default(),
            conversion: json!(spec.conversion),
            problem,
            generation: metadata.generation.unwrap_or_default(),
            resource_version: metadata.resource_version.unwrap_or_default(),
            annotations: metadata.annotations,
        }
    }
}

/// Returns why the apiserver does not serve a definition.
fn problem(definition: &CustomResourceDefinition) -> Option<String> {
    if definition.metadata.deletion_timestamp.is_some() {
        return Some("it is being deleted".to_owned());
    }
    let conditions = definition
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let mut reason = "it is not established yet".to_owned();
    for condition in conditions {
        match (condition.type_.as_str(), condition.status.as_str()) {
            ("Established", "True") => return None,
            ("Established" | "NamesAccepted", "False") => {
                let message = condition.message.clone().unwrap_or_default();
                reason = format!("it is not established: {message}");
            }
            _ => {}
        }
    }
    Some(reason)
}

impl Definition {
    /// Returns the version of this name.
    pub(crate) fn version(&self, name: &str) -> Option<&VersionState> {
        self.versions.iter().find(|version| version.name == name)
    }

    /// Returns the newest version: `v2` is newer than `v1`, and `v1` newer than `v2beta1`.
    pub(crate) fn newest(&self) -> &str {
        let newest = self.versions.iter().max_by_key(|version| priority(&version.name));
        newest.map_or("", |version| &version.name)
    }

    /// Returns the version in which the apiserver stores new objects.
    pub(crate) fn storage(&self) -> &str {
        let stored = self.versions.iter().find(|version| version.is_stored);
        stored.map_or("", |version| &version.name)
    }

    /// Returns the names of all versions, joined by commas.
    pub(crate) fn version_names(&self) -> String {
        let names: Vec<_> = self.versions.iter().map(|version| &*version.name).collect();
        names.join(", ")
    }

    /// Returns whether objects may be stored in this version.
    pub(crate) fn may_store(&self, version: &str) -> bool {
        self.stored_versions.iter().any(|stored| stored == version)
    }

    /// Returns whether all objects are stored in this version.
    pub(crate) fn stores_only(&self, version: &str) -> bool {
        self.storage() == version && self.stored_versions == [version]
    }

    /// Returns whether a webhook converts the objects.
    pub(crate) fn has_webhook(&self) -> bool {
        self.conversion["strategy"] == "Webhook"
    }

    /// Returns the annotations of objects that this version cannot express: the conversion keeps
    /// the data of a newer version in an annotation that has the name of that version.
    pub(crate) fn annotations_of_newer(&self, version: &str) -> Vec<String> {
        let newer = self.versions.iter().map(|newer| &newer.name);
        newer
            .filter(|newer| priority(newer) > priority(version))
            .map(|newer| format!("{}/{newer}", self.group))
            .collect()
    }

    /// Returns the resource in this version.
    pub(crate) fn resource(&self, version: &str) -> ApiResource {
        ApiResource {
            group: self.group.clone(),
            version: version.to_owned(),
            api_version: format!("{}/{version}", self.group),
            kind: self.kind.clone(),
            plural: self.plural.clone(),
        }
    }

    /// Returns the operation that serves a version, or no longer serves it.
    pub(crate) fn serve(&self, version: &str, is_served: bool) -> Vec<Value> {
        let index = self.versions.iter().position(|known| known.name == version);
        let index = index.filter(|index| self.versions[*index].is_served != is_served);
        let operation =
            |index| json!({"op": "replace", "path": format!("/spec/versions/{index}/served"), "value": is_served});
        index.map(operation).into_iter().collect()
    }

    /// Returns the operations that store new objects in this version.
    pub(crate) fn store(&self, version: &str) -> Vec<Value> {
        let changed = self.versions.iter().enumerate();
        let changed = changed.filter(|(_, known)| known.is_stored != (known.name == version));
        changed
            .map(|(index, known)| {
                json!({"op": "replace", "path": format!("/spec/versions/{index}/storage"), "value": !known.is_stored})
            })
            .collect()
    }

    /// Returns the operation that sets `spec.conversion`.
    pub(crate) fn convert(&self, conversion: &Value) -> Vec<Value> {
        let operation = json!({"op": "add", "path": "/spec/conversion", "value": conversion});
        (self.conversion != *conversion)
            .then_some(operation)
            .into_iter()
            .collect()
    }

    /// Returns the operations that set an annotation.
    pub(crate) fn annotate(&self, name: &str, value: &str) -> Vec<Value> {
        let create = json!({"op": "add", "path": "/metadata/annotations", "value": {}});
        let name = name.replace('~', "~0").replace('/', "~1");
        let set = json!({"op": "add", "path": format!("/metadata/annotations/{name}"), "value": value});
        let create = self.annotations.is_none().then_some(create);
        create.into_iter().chain([set]).collect()
    }

    /// Returns a JSON patch with these operations that the apiserver rejects with a conflict if the
    /// definition has changed.
    pub(crate) fn precondition(&self, operations: Vec<Value>) -> Value {
        let unchanged = json!({"op": "replace", "path": "/metadata/resourceVersion", "value": self.resource_version});
        let operations = [unchanged].into_iter().chain(operations);
        Value::Array(operations.collect())
    }
}

fn priority(version: &str) -> impl Ord + use<> {
    Version::parse(version).priority()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a definition with these versions, of which the first is stored.
    pub(crate) fn definition(versions: &[&str], stored_versions: &[&str]) -> Definition {
        let versions: Vec<_> = versions
            .iter()
            .enumerate()
            .map(|(index, name)| json!({"name": name, "served": true, "storage": index == 0}))
            .collect();
        let body = json!({
            "metadata": {"name": "things.example.dev", "resourceVersion": "7", "generation": 3},
            "spec": {"group": "example.dev", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"}, "versions": versions},
            "status": {"storedVersions": stored_versions, "conditions": [{"type": "Established", "status": "True"}]},
        });
        let read: CustomResourceDefinition = serde_json::from_value(body).unwrap();
        read.into()
    }

    #[test]
    fn the_newest_version_is_the_one_that_kubectl_prefers() {
        for (versions, newest) in [
            (&["v1"][..], "v1"),
            (&["v1", "v2"], "v2"),
            (&["v10", "v2"], "v10"),
            (&["v1", "v2beta1", "v2alpha1"], "v1"),
            (&["other", "v1alpha1"], "v1alpha1"),
        ] {
            assert_eq!(definition(versions, &[]).newest(), newest, "{versions:?}");
        }
    }

    #[test]
    fn newer_versions_have_annotations() {
        let three = definition(&["v1", "v2", "v3"], &["v1"]);
        assert_eq!(three.annotations_of_newer("v1"), ["example.dev/v2", "example.dev/v3"]);
        assert!(three.annotations_of_newer("v3").is_empty());
    }

    #[test]
    fn a_patch_names_the_version_that_it_changes() {
        let two = definition(&["v1", "v2"], &["v1"]);
        assert!(two.serve("v2", true).is_empty() && two.store("v1").is_empty());
        let operations = [two.store("v2"), two.serve("v1", false), two.annotate("a/b", "c")].concat();
        assert_eq!(
            two.precondition(operations),
            json!([
                {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
                {"op": "replace", "path": "/spec/versions/0/storage", "value": false},
                {"op": "replace", "path": "/spec/versions/1/storage", "value": true},
                {"op": "replace", "path": "/spec/versions/0/served", "value": false},
                {"op": "add", "path": "/metadata/annotations", "value": {}},
                {"op": "add", "path": "/metadata/annotations/a~1b", "value": "c"},
            ])
        );
    }

    #[test]
    fn a_definition_that_is_not_served_says_why() {
        let problem_with = |conditions: Value| {
            let mut body = json!({
                "metadata": {},
                "spec": {"group": "", "scope": "Cluster", "names": {"plural": "", "kind": ""}, "versions": []},
            });
            body["status"] = json!({"conditions": conditions});
            problem(&serde_json::from_value(body).unwrap())
        };
        assert_eq!(problem_with(json!([{"type": "Established", "status": "True"}])), None);
        let refused = json!([{"type": "Established", "status": "False", "message": "bad bundle"}]);
        assert_eq!(
            problem_with(refused).as_deref(),
            Some("it is not established: bad bundle")
        );
        assert_eq!(problem_with(json!([])).as_deref(), Some("it is not established yet"));
    }
}
