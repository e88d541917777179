//! Label selectors, as in `metav1.LabelSelector`.
//!
//! Architecture Invariant: pure.

use std::collections::BTreeMap;

use portreeve_api::null_as_default;
use serde::Deserialize;

type Labels = BTreeMap<Box<str>, Box<str>>;

/// A label selector. One without requirements selects everything. The apiserver has validated it.
#[derive(Debug, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[derive(Default)]
pub(crate) struct Selector {
    #[serde(deserialize_with = "null_as_default")]
    match_labels: Labels,
    #[serde(deserialize_with = "null_as_default")]
    match_expressions: Box<[Requirement]>,
}

#[derive(Debug, Deserialize)]
struct Requirement {
    key: Box<str>,
    operator: Operator,
    #[serde(default, deserialize_with = "null_as_default")]
    values: Box<[Box<str>]>,
}

#[derive(Debug, Deserialize)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl Selector {
    /// Returns whether the selector selects an object with these labels.
    pub(crate) fn matches(&self, labels: &Labels) -> bool {
        let has_label = |(key, value)| labels.get(key) == Some(value);
        self.match_labels.iter().all(has_label) && self.match_expressions.iter().all(|one| one.matches(labels))
    }
}

impl Requirement {
    fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        let is_listed = || value.is_some_and(|value| self.values.contains(value));
        match self.operator {
            Operator::In => is_listed(),
            Operator::NotIn => !is_listed(),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_selector_selects_what_satisfies_all_requirements() {
        let labels: Labels = serde_json::from_value(json!({"a": "1", "b": "2"})).unwrap();
        let expression = |key, operator, values: Value| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        let table = [
            (json!({}), true),
            (json!({"matchLabels": null, "matchExpressions": null}), true),
            (json!({"matchLabels": {"a": "1", "b": "2"}}), true),
            (json!({"matchLabels": {"a": "1", "b": "1"}}), false),
            (json!({"matchLabels": {"c": "1"}}), false),
            (expression("a", "In", json!(["1", "2"])), true),
            (expression("a", "In", json!(["2"])), false),
            (expression("c", "In", json!([""])), false),
            (expression("a", "NotIn", json!(["1"])), false),
            (expression("a", "NotIn", json!(["2"])), true),
            (expression("c", "NotIn", json!(["1"])), true),
            (expression("a", "Exists", json!(null)), true),
            (expression("c", "Exists", json!([])), false),
            (expression("a", "DoesNotExist", json!([])), false),
            (expression("c", "DoesNotExist", json!([])), true),
        ];
        for (selector, expected) in table {
            let parsed: Selector = serde_json::from_value(selector.clone()).unwrap();
            assert_eq!(parsed.matches(&labels), expected, "{selector}");
        }
    }
}
