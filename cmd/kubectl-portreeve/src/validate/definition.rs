//! The CRDs of the controllers, prepared for validation, and their webhooks.

use jsonschema::{ValidationError, Validator, error::ValidationErrorKind, paths::LocationSegment};
use kube::core::cel;
use portreeve_reconcile::{Descriptor, admission::Verdict};
use serde_json::Value;

use super::{Error, path::FieldPath, schema, structural, webhooks::Webhooks};

/// Values up to this length are part of a message.
const MAX_SHOWN: usize = 80;

/// A version of a CRD.
struct Version {
    name: String,
    /// The schema of the CRD, with that of the metadata.
    schema: Value,
    validator: Validator,
}

struct Definition {
    group: String,
    kind: String,
    versions: Vec<Version>,
}

/// The CRDs and the webhooks of the controllers.
pub(super) struct Definitions {
    definitions: Vec<Definition>,
    webhooks: Webhooks,
}

/// What is to be said about an object. Without errors, the apiserver accepts it.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) errors: Vec<String>,
    pub(super) warnings: Vec<String>,
}

impl Findings {
    fn errors(errors: Vec<String>) -> Self {
        Self {
            errors,
            warnings: Vec::new(),
        }
    }
}

impl Definitions {
    pub(super) fn of(controllers: &[Descriptor], webhooks: Webhooks) -> Result<Self, Error> {
        let mut definitions = Vec::new();
        for controller in controllers {
            let failed = |error: &dyn std::error::Error| Error::Definition {
                controller: controller.name,
                reason: error.to_string(),
            };
            for yaml in controller.crds {
                let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).map_err(|error| failed(&error))?;
                for document in documents {
                    definitions.push(Definition::of(&document["spec"]).map_err(|error| failed(&error))?);
                }
            }
        }
        Ok(Self { definitions, webhooks })
    }

    /// Returns whether an object whose kind no CRD has is probably meant to be of one: it has no
    /// `apiVersion`, one of these groups, or one of these kinds in another case.
    pub(super) fn covers(&self, object: &Value) -> bool {
        let Some(version) = object["apiVersion"].as_str() else {
            return true;
        };
        let (group, _) = version.split_once('/').unwrap_or_default();
        let kind = object["kind"].as_str().unwrap_or_default();
        let mut definitions = self.definitions.iter();
        definitions.any(|it| it.group == group || it.kind.eq_ignore_ascii_case(kind))
    }

    /// Returns the kinds, for a message.
    pub(super) fn kinds(&self) -> String {
        let kinds = self.definitions.iter().map(|it| format!("{} of {}", it.kind, it.group));
        kinds.collect::<Vec<_>>().join(", ")
    }

    /// Returns the findings of a new object, or `None` if no CRD has its kind.
    pub(super) fn findings(&self, object: &Value) -> Option<Findings> {
        let (group, version) = object["apiVersion"].as_str()?.split_once('/')?;
        let mut definitions = self.definitions.iter();
        let definition = definitions.find(|it| it.group == group && object["kind"] == it.kind.as_str())?;
        let versions = &definition.versions;
        let Some(found) = versions.iter().find(|it| it.name == version) else {
            let names: Vec<_> = versions.iter().map(|version| &*version.name).collect();
            let message = format!("apiVersion: unknown version {version:?}; use {}", names.join(" or "));
            return Some(Findings::errors(vec![message]));
        };
        Some(found.findings(object, &self.webhooks))
    }
}

impl Definition {
    fn of(spec: &Value) -> Result<Self, ValidationError<'static>> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let versions = spec["versions"].as_array().into_iter().flatten();
        // Also those that are not served yet: `kubectl portreeve conversion enable` serves them.
        let versions = versions.map(|version| {
            let schema = schema::with_metadata(&version["schema"]["openAPIV3Schema"]);
            Ok(Version {
                name: text(&version["name"]),
                validator: schema::validator(&schema)?,
                schema,
            })
        });
        Ok(Self {
            group: text(&spec["group"]),
            kind: text(&spec["names"]["kind"]),
            versions: versions.collect::<Result<_, ValidationError<'static>>>()?,
        })
    }
}

impl Version {
    /// Returns the findings of an object, each with the path of the field. The order is that of the
    /// apiserver: unknown fields, defaults, the schema, CEL rules on an object that meets the
    /// schema, then webhooks that validate.
    fn findings(&self, object: &Value, webhooks: &Webhooks) -> Findings {
        let unknown = structural::unknown_fields(&self.schema, object);
        if !unknown.is_empty() {
            return Findings::errors(unknown);
        }
        let mut object = object.clone();
        structural::drop_nulls(&self.schema, &mut object);
        let mut object = webhooks.set_defaults(cel::apply_defaults(&self.schema, &object));
        if let Some(metadata) = object.get_mut("metadata") {
            structural::generate_name(metadata);
        }
        let mut errors: Vec<_> = self
            .validator
            .iter_errors(&object)
            .map(|error| describe(&error))
            .collect();
        errors.extend(structural::duplicates(&self.schema, &object));
        errors.extend(structural::name_errors(&object["metadata"]));
        if errors.is_empty()
            && let Err(violations) = cel::Validator::new().validate(&self.schema, &object, None)
        {
            errors.extend(violations.iter().map(ToString::to_string));
        }
        if !errors.is_empty() {
            return Findings::errors(errors);
        }
        let Verdict { errors, warnings } = webhooks.review(&object);
        let errors = errors.iter().map(ToString::to_string).collect();
        Findings { errors, warnings }
    }
}

/// Returns a message with the path of the field.
fn describe(error: &ValidationError<'_>) -> String {
    let mut path = FieldPath::default();
    for segment in error.instance_path() {
        path = match segment {
            LocationSegment::Property(name) => path.field(&name),
            LocationSegment::Index(index) => path.item(index),
        };
    }
    match error.kind() {
        ValidationErrorKind::Required { property } => {
            let path = path.field(property.as_str().unwrap_or_default());
            format!("{path}: required value")
        }
        _ if error.instance().to_string().len() > MAX_SHOWN => format!("{path}: {}", error.masked_with("the value")),
        _ => format!("{path}: {error}"),
    }
}
