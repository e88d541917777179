//! The rows that are written by hand.

use serde_json::{Value, json};

use super::table::{Case, Place, Space};

/// Returns a CronTab with these fields of the spec replaced.
pub(super) fn crontab(name: &str, fields: Value) -> Value {
    let mut spec = json!({
        "schedule": "@daily",
        "jobTemplate": {
            "containers": [{"image": "example.com/backup:v9", "name": "backup"}],
            "restartPolicy": "Never",
        },
    });
    if let (Value::Object(spec), Value::Object(fields)) = (&mut spec, fields) {
        spec.extend(fields);
    }
    json!({"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": {"name": name}, "spec": spec})
}

/// Returns a Foo with these fields of the spec replaced.
pub(super) fn foo(name: &str, fields: Value) -> Value {
    let mut spec = json!({"deploymentName": "web"});
    if let (Value::Object(spec), Value::Object(fields)) = (&mut spec, fields) {
        spec.extend(fields);
    }
    json!({
        "apiVersion": "samplecontroller.k8s.io/v1alpha1",
        "kind": "Foo",
        "metadata": {"name": name},
        "spec": spec,
    })
}

/// Returns a CronTabPolicy.
pub(super) fn policy(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "stable.example.com/v1", "kind": "CronTabPolicy", "metadata": {"name": name}, "spec": spec})
}

fn template(fields: Value) -> Value {
    let mut template = json!({"containers": [{"name": "a", "image": "example.com/a:1"}]});
    if let (Value::Object(template), Value::Object(fields)) = (&mut template, fields) {
        template.extend(fields);
    }
    json!({"jobTemplate": template})
}

/// Returns all rows of this module. The names of the objects are unique, unless they matter.
pub(super) fn rows() -> Vec<Case> {
    let mut rows = good();
    let bad_crontabs = [bad_numbers(), bad_texts(), bad_templates()].concat();
    for (index, (fields, path, parts)) in bad_crontabs.into_iter().enumerate() {
        rows.push(Case::bad(crontab(&format!("bad-{index}"), fields), path, parts));
    }
    for (index, (fields, path)) in bad_foos().into_iter().enumerate() {
        rows.push(Case::bad(foo(&format!("bad-{index}"), fields), path, &[]));
    }
    for (index, (spec, path, parts)) in bad_policies().into_iter().enumerate() {
        rows.push(Case::bad(policy(&format!("bad-{index}"), &spec), path, parts));
    }
    for (index, (fields, path, parts)) in bad_schedules().into_iter().enumerate() {
        let case = Case::good(crontab(&format!("never-{index}"), fields));
        rows.push(case.rejected_by(Place::Webhook, path, parts));
    }
    rows.extend(too_often());
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
    let least = json!({
        "successfulJobsHistoryLimit": 0,
        "failedJobsHistoryLimit": 0,
        "startingDeadlineSeconds": 0,
        "backoffLimit": 0,
        "activeDeadlineSeconds": 1,
        "ttlSecondsAfterFinished": 0,
    });
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
        Case::good(crontab("least", least)),
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

fn bad_numbers() -> Vec<BadFields> {
    vec![
        (
            json!({"successfulJobsHistoryLimit": -1}),
            "spec.successfulJobsHistoryLimit",
            &["or equal to 0"],
        ),
        (
            json!({"failedJobsHistoryLimit": -1}),
            "spec.failedJobsHistoryLimit",
            &["or equal to 0"],
        ),
        (
            json!({"failedJobsHistoryLimit": 2_147_483_648_i64}),
            "spec.failedJobsHistoryLimit",
            &["int32"],
        ),
        (
            json!({"startingDeadlineSeconds": -1}),
            "spec.startingDeadlineSeconds",
            &["or equal to 0"],
        ),
        (json!({"backoffLimit": -1}), "spec.backoffLimit", &["or equal to 0"]),
        (
            json!({"activeDeadlineSeconds": 0}),
            "spec.activeDeadlineSeconds",
            &["or equal to 1"],
        ),
        (
            json!({"ttlSecondsAfterFinished": -1}),
            "spec.ttlSecondsAfterFinished",
            &["or equal to 0"],
        ),
    ]
}

fn bad_texts() -> Vec<BadFields> {
    let zone: &[&str] = &["cannot use TZ or CRON_TZ in schedule, use timeZone field instead"];
    vec![
        (json!({"schedule": ""}), "spec.schedule", &["at least 1 chars"]),
        (json!({"schedule": null}), "spec.schedule", &["Required"]),
        (json!({"schedule": "0".repeat(1025)}), "spec.schedule", &["1024"]),
        (json!({"schedule": "TZ=UTC @daily"}), "spec.schedule", zone),
        (json!({"schedule": "CRON_TZ=UTC 0 * * * *"}), "spec.schedule", zone),
        (json!({"timeZone": ""}), "spec.timeZone", &["at least 1 chars"]),
        (json!({"timeZone": "a".repeat(65)}), "spec.timeZone", &["64"]),
        (json!({"suspend": "yes"}), "spec.suspend", &["boolean"]),
        (
            json!({"concurrencyPolicy": "Queue"}),
            "spec.concurrencyPolicy",
            &[r#""Allow", "Forbid", "Replace""#],
        ),
        (
            json!({"dstPolicy": "Twice"}),
            "spec.dstPolicy",
            &[r#""Once", "Kubernetes""#],
        ),
        (json!({"scheduel": "@daily"}), "spec.scheduel", &["unknown field"]),
    ]
}

/// Returns what only code can find out.
fn bad_schedules() -> Vec<BadFields> {
    let schedule = "spec.schedule";
    vec![
        (
            json!({"schedule": "invalid-cron-schedule"}),
            schedule,
            &["found 1 fields", "not 5"],
        ),
        (
            json!({"schedule": "60 * * * *"}),
            schedule,
            &["invalid minute \"60\"", "from 0 to 59"],
        ),
        (json!({"schedule": "* * * * MOON"}), schedule, &["MOON"]),
        (json!({"schedule": "@reboot"}), schedule, &["@reboot"]),
        (json!({"schedule": "@every 30s"}), schedule, &["@every"]),
        (json!({"schedule": "0 0 30 2 *"}), schedule, &["never runs"]),
        (
            json!({"timeZone": "Europe/Atlantis"}),
            "spec.timeZone",
            &["unknown time zone"],
        ),
        (json!({"timeZone": "Local"}), "spec.timeZone", &["unknown time zone"]),
    ]
}

/// Returns the rows whose schedules run more often than the namespace allows.
fn too_often() -> Vec<Case> {
    let schedules = ["* * * * *", "*/4 * * * *", "0,58 0,23 * * *"];
    let parts = [
        "CronTabPolicy limits",
        "requires 300 s",
        "spec.limits.minIntervalSeconds",
    ];
    let case = |(index, schedule): (usize, &str)| {
        let crontab = crontab(&format!("too-often-{index}"), json!({"schedule": schedule}));
        Case::good(crontab)
            .in_space(Space::Limited)
            .rejected_by(Place::WebhookLimit, "spec.schedule", &parts)
    };
    schedules.into_iter().enumerate().map(case).collect()
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
        (json!({"replicas": 0}), "spec.replicas"),
        (json!({"replicas": 11}), "spec.replicas"),
        (json!({"replicas": "two"}), "spec.replicas"),
        (json!({"replicas": 1.5}), "spec.replicas"),
        (json!({"deploymentName": "Bad_Name"}), "spec.deploymentName"),
        (json!({"deploymentName": "-a"}), "spec.deploymentName"),
        (json!({"deploymentName": "a.b"}), "spec.deploymentName"),
        (json!({"deploymentName": ""}), "spec.deploymentName"),
        (json!({"deploymentName": "a".repeat(64)}), "spec.deploymentName"),
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
            json!({"limits": {"images": ["a b"]}}),
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
