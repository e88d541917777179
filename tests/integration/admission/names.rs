//! The rows about names of objects, given and generated.

use serde_json::{Value, json};

use super::{
    rows::{crontab, foo, policy},
    table::Case,
};

/// Returns the rows.
pub(super) fn rows() -> Vec<Case> {
    let mut unknown = crontab("unknown", json!({}));
    unknown["metadata"]["lables"] = json!({});
    let too_long = ["metadata.name can have at most 52 characters", "choose a shorter one"];
    let unnamed = |name: &str| foo(name, json!({"deploymentName": null}));
    vec![
        // The apiserver appends five characters, and shortens the prefix to 58 before.
        Case::good(generated(crontab("", json!({})), &"a".repeat(47))),
        Case::bad(
            generated(crontab("", json!({})), &"a".repeat(48)),
            "metadata.name",
            &too_long,
        ),
        Case::good(generated(foo("", json!({})), &"a".repeat(70))),
        Case::good(generated(policy("", &json!({})), "a-")),
        Case::bad(generated(policy("", &json!({})), "A-"), "metadata.name", &["RFC 1123"]),
        // The webhook names the Deployment after the Foo, if it can.
        Case::good(unnamed("unnamed")),
        Case::bad(unnamed("un.named"), "spec.deploymentName", &["Required value"]),
        Case::bad(
            generated(unnamed(""), "unnamed-"),
            "spec.deploymentName",
            &["Required value"],
        ),
        Case::good(crontab(&"a".repeat(52), json!({}))),
        Case::bad(crontab(&"a".repeat(53), json!({})), "metadata.name", &too_long),
        Case::good(foo(&"a".repeat(63), json!({}))),
        Case::bad(
            foo(&"a".repeat(64), json!({})),
            "metadata.name",
            &["at most 63 characters", "choose a shorter one"],
        ),
        Case::good(policy(&"a".repeat(253), &json!({}))),
        Case::bad(policy(&"a".repeat(254), &json!({})), "metadata.name", &["253"]),
        Case::bad(crontab("Upper", json!({})), "metadata.name", &["RFC 1123"]),
        Case::bad(unknown, "metadata.lables", &["unknown field"]),
    ]
}

/// Lets the apiserver generate the name of an object.
fn generated(mut object: Value, prefix: &str) -> Value {
    object["metadata"] = json!({"generateName": prefix});
    object
}
