//! Rows for every bounded field of the CRDs, derived from their schemas: the values at the bounds,
//! and those just beyond.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{
    rows,
    table::{Case, Place},
};
use crate::fixtures::{daemon::printed, manifests};

/// The template of the pods has a thousand fields. pkg/api compares it with the apiserver's.
const NOT_VISITED: &str = "jobTemplate";

/// The fields of a CronTab that the webhook parses.
const REVIEWED: [&str; 2] = ["spec.schedule", "spec.timeZone"];
/// The required field of a Foo for which the webhook has a default.
const DEFAULTED: &str = "spec.deploymentName";

/// Returns the rows for the fields of all kinds.
pub(super) fn cases() -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for definition in manifests::documents(&printed(&["crds"])?)? {
        let base = match definition["spec"]["names"]["kind"].as_str() {
            Some("CronTab") => rows::crontab("a", json!({})),
            Some("CronTabPolicy") => rows::policy("a", &json!({"limits": {}, "defaults": {}})),
            Some("Foo") => rows::foo("a", json!({})),
            kind => anyhow::bail!("the table has no rows for {kind:?}"),
        };
        let path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
        let schema = definition.pointer(path).context("the CRD has no spec")?;
        let mut rows = Rows {
            base,
            cases: Vec::new(),
        };
        rows.visit("spec", schema)?;
        anyhow::ensure!(!rows.cases.is_empty(), "no field has bounds: {definition:#}");
        cases.extend(rows.cases);
    }
    Ok(cases)
}

struct Rows {
    /// A good object.
    base: Value,
    cases: Vec<Case>,
}

impl Rows {
    /// Adds the rows for the fields of an object.
    fn visit(&mut self, path: &str, schema: &Value) -> Result<()> {
        for name in schema["required"].as_array().into_iter().flatten() {
            let name = name.as_str().context("a name")?;
            let mut object = self.named_base();
            let parent = object.pointer_mut(&pointer(path)).context("no parent")?;
            parent.as_object_mut().context("no object")?.remove(name);
            let path = format!("{path}.{name}");
            self.cases.push(if path == DEFAULTED {
                Case::good(object)
            } else {
                Case::bad(object, path, &["Required value"])
            });
        }
        for (name, property) in schema["properties"].as_object().context("no properties")? {
            if name != NOT_VISITED {
                self.field(&format!("{path}.{name}"), property)?;
            }
        }
        Ok(())
    }

    fn field(&mut self, path: &str, schema: &Value) -> Result<()> {
        for value in schema["enum"].as_array().into_iter().flatten() {
            self.good(path, value.clone());
        }
        let wrong_type = match schema["type"].as_str().context("no type")? {
            "object" => {
                self.visit(path, schema)?;
                json!("text")
            }
            "array" => {
                self.array(path, schema)?;
                json!({})
            }
            "string" => {
                self.string(path, path, schema, Value::from);
                json!(1)
            }
            "integer" => {
                self.integer(path, schema);
                json!("1")
            }
            "boolean" => {
                self.good(path, json!(true));
                self.good(path, json!(false));
                json!("true")
            }
            other => anyhow::bail!("{path} has the type {other}"),
        };
        self.bad(path, path, wrong_type, &[]);
        Ok(())
    }

    fn integer(&mut self, path: &str, schema: &Value) {
        let bound = |keyword: &str| {
            schema[keyword]
                .as_f64()
                .map(|bound| format!("{bound:.0}").parse::<i64>().unwrap_or(0))
        };
        let least = bound("minimum").unwrap_or(i64::MIN);
        let greatest = bound("maximum").unwrap_or(if schema["format"] == "int32" {
            i64::from(i32::MAX)
        } else {
            i64::MAX
        });
        self.good(path, json!(least));
        self.good(path, json!(greatest));
        self.bad(path, path, json!(least - 1), &["greater than or equal to"]);
        let beyond = u64::try_from(greatest).unwrap_or(0) + 1;
        self.bad(path, path, json!(beyond), &[]);
        self.bad(path, path, json!(1.5), &[]);
    }

    /// Adds the rows for a text, which is the field or an item of it.
    fn string(&mut self, path: &str, bad_path: &str, schema: &Value, wrap: fn(String) -> Value) {
        let bound = |keyword: &str| schema[keyword].as_u64().and_then(|bound| usize::try_from(bound).ok());
        if !schema["enum"].is_null() {
            self.bad(path, bad_path, wrap("Other".to_owned()), &["Unsupported value"]);
        }
        if let Some(least) = bound("minLength") {
            self.good(path, wrap("a".repeat(least)));
            self.bad(path, bad_path, wrap("a".repeat(least - 1)), &[]);
        }
        if let Some(greatest) = bound("maxLength") {
            self.good(path, wrap("a".repeat(greatest)));
            self.bad(path, bad_path, wrap("a".repeat(greatest + 1)), &[]);
        }
        if !schema["pattern"].is_null() {
            self.bad(path, bad_path, wrap("a b".to_owned()), &["should match"]);
        }
    }

    fn array(&mut self, path: &str, schema: &Value) -> Result<()> {
        let list = |length: u64| (0..length).map(|index| json!(format!("a{index}"))).collect::<Value>();
        let bound = |keyword: &str| {
            schema[keyword]
                .as_u64()
                .with_context(|| format!("{path} has no {keyword}"))
        };
        let (least, greatest) = (bound("minItems")?, bound("maxItems")?);
        self.good(path, list(least));
        self.good(path, list(greatest));
        self.bad(path, path, list(least - 1), &["at least"]);
        self.bad(path, path, list(greatest + 1), &["at most"]);
        self.string(path, &format!("{path}[0]"), &schema["items"], |text| json!([text]));
        Ok(())
    }

    fn good(&mut self, path: &str, value: Value) {
        let mut case = Case::good(self.with(path, value));
        // A text within its bounds need not be a schedule.
        if case.object["kind"] == "CronTab" && REVIEWED.contains(&path) {
            case = case.rejected_by(Place::Webhook, path, &["Invalid value"]);
        }
        self.cases.push(case);
    }

    fn bad(&mut self, path: &str, bad_path: &str, value: Value, parts: &[&'static str]) {
        let object = self.with(path, value);
        self.cases.push(Case::bad(object, bad_path, parts));
    }

    /// Returns the good object with another value of a field.
    fn with(&self, path: &str, value: Value) -> Value {
        let mut object = self.named_base();
        if let Some((parent, name)) = path.rsplit_once('.')
            && let Some(parent) = object.pointer_mut(&pointer(parent))
        {
            parent[name] = value;
        }
        object
    }

    fn named_base(&self) -> Value {
        let mut object = self.base.clone();
        object["metadata"]["name"] = format!("bound-{}", self.cases.len()).into();
        object
    }
}

/// Returns the JSON pointer of a path such as `spec.limits`.
fn pointer(path: &str) -> String {
    format!("/{}", path.replace('.', "/"))
}
