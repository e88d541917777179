//! The webhooks of Foos: the default of `deploymentName`, and a warning about what a new name does.
//!
//! Architecture Invariant: pure.

use portreeve_api::FOOS;
use portreeve_reconcile::admission::{Review, Verdict, Webhook, set_default};
use serde::Deserialize;
use serde_json::Value;

const NAME: &str = "foos.samplecontroller.k8s.io";
/// The length of the longest DNS label.
const LONGEST_LABEL: usize = 63;

/// The fields of a Foo that are reviewed.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReviewedFoo {
    spec: ReviewedSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReviewedSpec {
    deployment_name: String,
}

pub(crate) fn webhooks() -> Vec<Webhook> {
    vec![
        Webhook::defaulting(NAME, FOOS, default),
        Webhook::validating(NAME, FOOS, validate),
    ]
}

/// Names the Deployment after the Foo. A schema cannot do that, because a default in it is a
/// constant.
///
/// A name that the definition would reject is no default: the error would name a field that the
/// user has not set. A generated name does not exist yet.
fn default(mut foo: Value) -> Value {
    let name = foo["metadata"]["name"].as_str().filter(|name| is_label(name));
    if let Some(name) = name.map(str::to_owned) {
        set_default(&mut foo, &["spec", "deploymentName"], name);
    }
    foo
}

/// Returns whether this is a DNS label, as the definition demands of `deploymentName`.
fn is_label(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=LONGEST_LABEL).contains(&name.len())
        && name.chars().all(is_part)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

fn validate(review: &Review<'_, ReviewedFoo>) -> Verdict {
    let verdict = Verdict::new();
    let new = &review.new.spec.deployment_name;
    match review.old.as_ref().map(|old| &old.spec.deployment_name) {
        Some(old) if old != new => verdict.warning(format!(
            "spec.deploymentName: Deployment {old:?} will be deleted once {new:?} has replaced it"
        )),
        _ => verdict,
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_deployment_is_named_after_the_foo() {
        let foo = json!({"metadata": {"name": "a"}, "spec": {"replicas": 2}});
        assert_eq!(
            default(foo),
            json!({"metadata": {"name": "a"}, "spec": {"replicas": 2, "deploymentName": "a"}})
        );
        for unchanged in [
            json!({"metadata": {"name": "a"}, "spec": {"deploymentName": "b"}}),
            json!({"metadata": {"generateName": "a-"}, "spec": {}}),
            json!({"metadata": {"name": "a.b"}, "spec": {}}),
            json!({"metadata": {"name": "a".repeat(64)}, "spec": {}}),
            json!({"metadata": {"name": "a"}, "spec": []}),
            json!("a"),
        ] {
            assert_eq!(default(unchanged.clone()), unchanged);
        }
    }

    #[test]
    fn a_new_name_is_a_warning() {
        let foo = |name: &str| ReviewedFoo {
            spec: ReviewedSpec {
                deployment_name: name.to_owned(),
            },
        };
        let warnings = |old: Option<&str>, new: &str| {
            let review = Review {
                old: old.map(foo),
                new: foo(new),
                parameters: None,
                now: Timestamp::UNIX_EPOCH,
            };
            validate(&review).warnings
        };
        assert_eq!(
            warnings(Some("a"), "b"),
            ["spec.deploymentName: Deployment \"a\" will be deleted once \"b\" has replaced it"]
        );
        assert!(warnings(Some("a"), "a").is_empty() && warnings(None, "a").is_empty());
    }
}
