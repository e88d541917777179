//! `kubectl portreeve validate`: checks manifests offline as the apiserver does with the CRDs and
//! the webhooks of the controllers, under strict field validation.
//!
//! `jsonschema` checks the types and bounds of the CRDs, kube's CEL their rules. What both lack is
//! in `structural`: unknown fields, nulls, and lists with unique items. `webhooks` calls the
//! functions of the webhooks.

mod definition;
mod path;
mod schema;
mod structural;
mod webhooks;

use std::{
    fmt::Write as _,
    io::Read as _,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use portreeve_reconcile::Descriptor;
use serde_json::Value;

use self::{
    definition::{Definitions, Findings},
    webhooks::Webhooks,
};

/// The reason why manifests cannot be validated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("failed to read {}", .path.display())]
    Read {
        /// The file, or `-`.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The file is no YAML.
    #[error("failed to parse {}: {reason}", .path.display())]
    Parse {
        /// The file, or `-`.
        path: PathBuf,
        /// The cause, with the line and the column.
        reason: String,
    },
    /// The file contains nothing to check.
    #[error("found no object in {}", .path.display())]
    Empty {
        /// The file, or `-`.
        path: PathBuf,
    },
    /// A CRD of a controller cannot be used, which is a bug of the controller.
    #[error("failed to use the CustomResourceDefinitions of {controller}: {reason}")]
    Definition {
        /// The name of the controller.
        controller: &'static str,
        /// The cause.
        reason: String,
    },
    /// Some objects are invalid. The report names them.
    #[error("found {invalid} invalid of {checked} checked objects in {}", .path.display())]
    Invalid {
        /// The file, or `-`.
        path: PathBuf,
        /// The number of invalid objects.
        invalid: usize,
        /// The number of objects whose kind is known.
        checked: usize,
    },
}

/// The result for a file.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// A line for each error, with the object and the path of the field.
    pub(crate) errors: String,
    /// A line for each warning, and for each object of an unknown kind.
    pub(crate) notes: String,
    invalid: usize,
    checked: usize,
}

impl Report {
    /// Returns an error if an object is invalid.
    pub(crate) fn result(&self, path: &Path) -> Result<(), Error> {
        let Self { invalid, checked, .. } = *self;
        if invalid == 0 {
            return Ok(());
        }
        Err(Error::Invalid {
            path: path.to_owned(),
            invalid,
            checked,
        })
    }
}

/// Validates the objects in a file, or in the standard input for `-`.
pub(crate) fn validate(path: &Path, controllers: &[Descriptor], now: Timestamp) -> Result<Report, Error> {
    let text = read(path).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).map_err(|error| Error::Parse {
        path: path.to_owned(),
        reason: error.to_string().trim_start_matches("error: ").to_owned(),
    })?;
    let definitions = Definitions::of(controllers, Webhooks::of(controllers, now))?;
    let mut report = Report::default();
    for document in documents {
        check(&path.display().to_string(), document, &definitions, &mut report);
    }
    if report.checked == 0 && report.notes.is_empty() {
        return Err(Error::Empty { path: path.to_owned() });
    }
    Ok(report)
}

fn read(path: &Path) -> std::io::Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        return Ok(text);
    }
    std::fs::read_to_string(path)
}

/// Checks an object, or the items of a list. Writing to the report, which is text, cannot fail.
fn check(file: &str, object: Value, definitions: &Definitions, report: &mut Report) {
    let Value::Object(mut members) = object else {
        // An empty document is null.
        if !object.is_null() {
            writeln!(report.errors, "{file}: a document is not an object").ok();
            report.invalid += 1;
            report.checked += 1;
        }
        return;
    };
    let kind = members.get("kind").and_then(Value::as_str);
    let is_list = kind.is_some_and(|kind| kind.ends_with("List"));
    if is_list && let Some(Value::Array(items)) = members.get_mut("items").map(Value::take) {
        for item in items {
            check(file, item, definitions, report);
        }
        return;
    }
    // The apiserver ignores the status of a new object.
    members.remove("status");
    let object = Value::Object(members);
    let name = name_of(&object);
    match definitions.findings(&object) {
        None if definitions.covers(&object) => {
            report.checked += 1;
            report.invalid += 1;
            let kinds = definitions.kinds();
            writeln!(
                report.errors,
                "{file}: {name}: unknown kind or apiVersion; the known ones are {kinds}"
            )
            .ok();
        }
        None => {
            let version = object["apiVersion"].as_str().unwrap_or_default();
            writeln!(
                report.notes,
                "{file}: skipped {name}: no controller has a definition of {version}"
            )
            .ok();
        }
        Some(Findings { errors, warnings }) => {
            report.checked += 1;
            report.invalid += usize::from(!errors.is_empty());
            for error in errors {
                writeln!(report.errors, "{file}: {name}: {error}").ok();
            }
            for warning in warnings {
                writeln!(report.notes, "{file}: {name}: warning: {warning}").ok();
            }
        }
    }
}

/// Returns the kind, the namespace and the name of an object.
fn name_of(object: &Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let kind = text("/kind").unwrap_or("object without a kind");
    let name = match (text("/metadata/name"), text("/metadata/generateName")) {
        (Some(name), _) => name.to_owned(),
        (None, Some(prefix)) => format!("{prefix}*"),
        (None, None) => "without a name".to_owned(),
    };
    match text("/metadata/namespace") {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}
