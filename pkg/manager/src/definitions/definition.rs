//! A CustomResourceDefinition, whose schemas stay untyped: the type has a hundred fields, and a
//! schema of Pods thousands of values.
//!
//! Architecture Invariant: pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use portreeve_api::{CRDS, ObjectKey, PART_OF};
use portreeve_reconcile::Object;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Definition {
    pub(super) metadata: ObjectMeta,
    pub(super) spec: Value,
    pub(super) status: Value,
}

impl Definition {
    /// Decodes the definitions in a stream of YAML documents, and labels them as parts of
    /// `program`.
    pub(super) fn read_all(yaml: &str, program: &str) -> Result<Vec<Self>, serde_saphyr::Error> {
        let mut definitions: Vec<Self> = serde_saphyr::from_multiple(yaml)?;
        for definition in &mut definitions {
            let labels = definition.metadata.labels.get_or_insert_default();
            labels.insert(PART_OF.to_owned(), program.to_owned());
            remove_zero_fractions(&mut definition.spec);
        }
        Ok(definitions)
    }

    pub(super) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Returns the program that the definition is labelled as a part of.
    pub(super) fn part_of(&self) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(PART_OF).map(String::as_str)
    }

    pub(super) fn without_label(mut self) -> Self {
        let mut labels = self.metadata.labels.take().unwrap_or_default();
        labels.remove(PART_OF);
        self.metadata.labels = Some(labels).filter(|labels| !labels.is_empty());
        self
    }

    pub(super) fn versions(&self) -> &[Value] {
        self.spec["versions"].as_array().map_or(&[], Vec::as_slice)
    }

    /// Returns the version of this name.
    pub(super) fn version(&self, name: &Value) -> Option<&Value> {
        self.versions().iter().find(|version| version["name"] == *name)
    }

    pub(super) fn into_object(self) -> Object {
        let key = ObjectKey::cluster(self.name());
        let mut body = json!({"apiVersion": CRDS.api_version(), "kind": CRDS.kind, "metadata": self.metadata});
        body["spec"] = self.spec;
        Object {
            resource: CRDS,
            key,
            body,
        }
    }
}

/// Makes whole numbers integers, which the apiserver returns for a `minimum` of 1.0, for example.
fn remove_zero_fractions(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(remove_zero_fractions),
        Value::Array(items) => items.iter_mut().for_each(remove_zero_fractions),
        Value::Number(number) => {
            let text = number.to_string();
            if let Some(whole) = text.strip_suffix(".0").and_then(|text| text.parse::<i64>().ok()) {
                *number = whole.into();
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}
