//! The webhooks of Foos: the default of `deploymentName`, and a warning about what a new name does.
//!
//! Architecture Invariant: pure.

use portreeve_api::LazyObject;
use portreeve_reconcile::admission::{Review, Verdict, Webhook, set_default};
use serde::Deserialize;

use crate::api::FOOS;

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
fn default(foo: &mut LazyObject<'_>) {
    let name = foo.text_at(&["metadata", "name"]);
    if let Some(name) = name.filter(|name| is_label(name)) {
        set_default(foo, &["spec", "deploymentName"], name);
    }
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
    use portreeve_reconcile::admission::with_defaults;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_deployment_is_named_after_the_foo() {
        let foo = json!({"metadata": {"name": "a"}, "spec": {"replicas": 2}});
        assert_eq!(
            with_defaults(default, &foo),
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
            assert_eq!(with_defaults(default, &unchanged), unchanged);
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
