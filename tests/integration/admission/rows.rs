//! The rows that are written by hand.

use serde_json::{Value, json};

use super::table::{Case, Place, Space};
use crate::fixtures::object_builder::with_fields;

/// Returns a CronTab with these fields of the spec replaced.
pub(super) fn crontab(name: &str, fields: Value) -> Value {
    let spec = json!({
        "schedule": "@daily",
        "jobTemplate": {
            "containers": [{"image": "example.com/backup:v9", "name": "backup"}],
            "restartPolicy": "Never",
        },
    });
    let spec = with_fields(spec, fields);
    json!({"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": {"name": name}, "spec": spec})
}

/// Returns a Foo with these fields of the spec replaced.
pub(super) fn foo(name: &str, fields: Value) -> Value {
    json!({
        "apiVersion": "samplecontroller.k8s.io/v1alpha1",
        "kind": "Foo",
        "metadata": {"name": name},
        "spec": with_fields(json!({"deploymentName": "web"}), fields),
    })
}

/// Returns a CronTabPolicy.
pub(super) fn policy(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "stable.example.com/v1", "kind": "CronTabPolicy", "metadata": {"name": name}, "spec": spec})
}

fn template(fields: Value) -> Value {
    let template = json!({"containers": [{"name": "a", "image": "example.com/a:1"}]});
    json!({"jobTemplate": with_fields(template, fields)})
}

/// Returns all rows of this module, without those that [`super::bounds`] derives from the schemas.
/// The names of the objects are unique, unless they matter.
pub(super) fn rows() -> Vec<Case> {
    let mut rows = good();
    let bad_crontabs = [bad_texts(), bad_templates()].concat();
    for (index, (fields, path, parts)) in bad_crontabs.into_iter().enumerate() {
        rows.push(Case::bad(crontab(&format!("bad-{index}"), fields), path, parts));
    }
    for (index, (fields, path)) in bad_foos().into_iter().enumerate() {
        rows.push(Case::bad(foo(&format!("bad-{index}"), fields), path, &[]));
    }
    for (index, (spec, path, parts)) in bad_policies().into_iter().enumerate() {
        rows.push(Case::bad(policy(&format!("bad-{index}"), &spec), path, parts));
    }
    rows.push(too_often());
    rows.extend(within_limits());
    rows.extend(beyond_limits());
    rows.push(
        Case::good(crontab("one-too-many", json!({})))
            .in_space(Space::Full)
            .rejected_by(
                Place::Quota,
                "count/crontabs.stable.example.com",
                &["exceeded quota", "limited: "],
            ),
    );
    rows
}

fn good() -> Vec<Case> {
    let without_spec = json!({
        "apiVersion": "stable.example.com/v1",
        "kind": "CronTab",
        "metadata": {"name": "without-spec", "labels": {"a": "b"}, "annotations": {"a": "b"}},
    });
    // Template engines leave nulls for values that are not set.
    let nulls = json!({"timeZone": null, "suspend": null, "concurrencyPolicy": null, "backoffLimit": null});
    let pod = template(json!({
        "containers": [{
            "name": "a",
            "image": "example.com/a:1",
            "resources": {"limits": {"cpu": 0.5, "memory": "1Gi"}, "requests": {"cpu": 1}},
            "livenessProbe": {"httpGet": {"port": "http"}},
            "readinessProbe": {"tcpSocket": {"port": 80}},
        }],
        "initContainers": [{"name": "b"}],
        "nodeSelector": {"a": "b"},
        "volumes": [{"name": "a", "emptyDir": {"sizeLimit": "1Gi"}}],
    }));
    vec![
        Case::good(crontab("example", json!({}))),
        Case::good(without_spec),
        Case::good(crontab("nulls", nulls)),
        Case::good(crontab("pod", pod)),
        // Lengths count characters.
        Case::good(crontab("umlauts", json!({"timeZone": "ä".repeat(64)}))).rejected_by(
            Place::Webhook,
            "spec.timeZone",
            &["unknown time zone"],
        ),
        Case::good(foo("example", json!({}))),
        Case::good(policy("empty", &json!({}))),
        Case::good(policy("nothing-limited", &json!({"limits": {}, "defaults": {}}))),
        Case::good(policy(
            "own-zone",
            &json!({"limits": {"timeZones": ["Europe/Zurich"]}, "defaults": {"timeZone": "Europe/Zurich"}}),
        )),
    ]
}

type BadFields = (Value, &'static str, &'static [&'static str]);

fn bad_texts() -> Vec<BadFields> {
    let zone: &[&str] = &["cannot use TZ or CRON_TZ in schedule, use timeZone field instead"];
    vec![
        (json!({"schedule": null}), "spec.schedule", &["Required"]),
        (json!({"schedule": "TZ=UTC @daily"}), "spec.schedule", zone),
        (json!({"schedule": "CRON_TZ=UTC 0 * * * *"}), "spec.schedule", zone),
        (json!({"scheduel": "@daily"}), "spec.scheduel", &["unknown field"]),
    ]
}

/// Returns the row whose schedule runs more often than the namespace allows.
fn too_often() -> Case {
    let parts = [
        "CronTabPolicy limits",
        "requires 300 s",
        "spec.limits.minIntervalSeconds",
    ];
    Case::good(crontab("too-often", json!({"schedule": "* * * * *"})))
        .in_space(Space::Limited)
        .rejected_by(Place::WebhookLimit, "spec.schedule", &parts)
}

fn bad_templates() -> Vec<BadFields> {
    let misspelt = json!({"containers": [{"name": "a", "image": "a", "comand": ["a"]}]});
    let twice = json!([{"name": "a"}, {"name": "b"}, {"name": "a"}]);
    vec![
        (json!({"jobTemplate": null}), "spec.jobTemplate", &["Required"]),
        (json!({"jobTemplate": {}}), "spec.jobTemplate.containers", &["Required"]),
        (
            template(json!({"containers": []})),
            "spec.jobTemplate.containers",
            &["at least 1 items"],
        ),
        (
            template(json!({"restartPolicy": "Always"})),
            "spec.jobTemplate.restartPolicy",
            &[r#""Never", "OnFailure""#],
        ),
        (
            template(json!({"ephemeralContainers": [{"name": "b", "image": "b"}]})),
            "spec.jobTemplate.ephemeralContainers",
            &["at most 0 items"],
        ),
        (
            json!({"jobTemplate": misspelt}),
            "spec.jobTemplate.containers[0].comand",
            &["unknown field"],
        ),
        (
            template(json!({"template": {}})),
            "spec.jobTemplate.template",
            &["unknown field"],
        ),
        (
            template(json!({"containers": twice})),
            "spec.jobTemplate.containers[2]",
            &["Duplicate value"],
        ),
        (
            template(json!({"volumes": twice})),
            "spec.jobTemplate.volumes[2]",
            &["Duplicate value"],
        ),
        (
            template(json!({"containers": [{"name": "a", "resources": {"limits": {"cpu": "1gb"}}}]})),
            "spec.jobTemplate.containers[0].resources.limits.cpu",
            &[],
        ),
        (
            template(json!({"containers": [{"name": "a", "livenessProbe": {"tcpSocket": {"port": 0.5}}}]})),
            "spec.jobTemplate.containers[0].livenessProbe.tcpSocket.port",
            &[],
        ),
    ]
}

fn bad_foos() -> Vec<(Value, &'static str)> {
    vec![
        (json!({"deploymentName": "Bad_Name"}), "spec.deploymentName"),
        (json!({"deploymentName": "-a"}), "spec.deploymentName"),
        (json!({"deploymentName": "a.b"}), "spec.deploymentName"),
        (json!({"image": "nginx"}), "spec.image"),
    ]
}

fn bad_policies() -> Vec<BadFields> {
    vec![
        (Value::Null, "spec", &["Required"]),
        (
            json!({"limits": {"images": ["*"]}}),
            "spec.limits.images[0]",
            &["should match"],
        ),
        (
            json!({"limits": {"images": ["a:1", "b:1", "a:1"]}}),
            "spec.limits.images[2]",
            &["Duplicate value"],
        ),
        (
            json!({"limits": {"timeZones": ["UTC", " UTC"]}}),
            "spec.limits.timeZones[1]",
            &["should match"],
        ),
        (
            json!({"limits": {"timeZones": ["UTC", "UTC"]}}),
            "spec.limits.timeZones[1]",
            &["Duplicate value"],
        ),
        // The CRD of CronTabs has a default for it, so that a default would have no effect.
        (
            json!({"defaults": {"concurrencyPolicy": "Forbid"}}),
            "spec.defaults.concurrencyPolicy",
            &["unknown field"],
        ),
        (
            json!({"limits": {"timeZones": ["UTC"]}, "defaults": {"timeZone": "Europe/Zurich"}}),
            "spec.defaults.timeZone",
            &["must be one of limits.timeZones"],
        ),
    ]
}

fn with_image(image: &str) -> Value {
    template(json!({"containers": [{"name": "a", "image": image}]}))
}

fn within_limits() -> Vec<Case> {
    let digest = format!("pinned@sha256:{}", "0".repeat(64));
    let fields = [
        json!({}),
        with_image("example.com/a/b/c:1"),
        with_image("busybox:1"),
        with_image("busybox:1@sha256:0"),
        with_image(&digest),
        with_image("alpine:3"),
        json!({"timeZone": "UTC"}),
        json!({"timeZone": "Europe/Zurich"}),
        json!({"schedule": "*/5 * * * *"}),
    ];
    let case = |(index, fields)| Case::good(crontab(&format!("within-{index}"), fields)).in_space(Space::Limited);
    fields.into_iter().enumerate().map(case).collect()
}

/// Returns the rows that the limits of the namespace reject.
pub(super) fn beyond_limits() -> Vec<Case> {
    let image = |image: &str| json!({"name": "b", "image": image});
    let first = "spec.jobTemplate.containers[0].image";
    let allowed: &[&str] = &["it allows example.com/, busybox:, pinned@, alpine:3"];
    let rows: Vec<BadFields> = vec![
        (with_image("alpine:3.1"), first, allowed),
        (with_image("alpine"), first, allowed),
        (with_image("busybox"), first, allowed),
        (with_image("example.com"), first, allowed),
        (with_image("other.example.com/a:1"), first, allowed),
        // A registry with a port is no tag.
        (with_image("busybox:5000/a:1"), first, allowed),
        (
            template(json!({"containers": [{"name": "a"}]})),
            first,
            &["the image \"\""],
        ),
        (
            template(json!({"containers": [{"name": "a", "image": "alpine:3"}, image("evil:1")]})),
            "spec.jobTemplate.containers[1].image",
            &["the image \"evil:1\" is not allowed by CronTabPolicy limited"],
        ),
        (
            template(json!({"initContainers": [image("evil:1")]})),
            "spec.jobTemplate.initContainers[0].image",
            allowed,
        ),
        (
            template(
                json!({"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "image": {"reference": "evil:1"}}]}),
            ),
            "spec.jobTemplate.volumes[1].image.reference",
            allowed,
        ),
        (
            json!({"timeZone": "Europe/Berlin"}),
            "spec.timeZone",
            &["Europe/Berlin", "/limits", "it allows UTC, Europe/Zurich"],
        ),
        (
            json!({"schedule": "@every 90m"}),
            "spec.schedule",
            &["@every 90m", "/limits", "@daily"],
        ),
    ];
    let case = |(index, (fields, path, parts)): (usize, BadFields)| {
        Case::good(crontab(&format!("beyond-{index}"), fields))
            .in_space(Space::Limited)
            .rejected_by(Place::Policy, path, parts)
    };
    rows.into_iter().enumerate().map(case).collect()
}
