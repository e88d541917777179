//! Audit logs in a short notation.
//!
//! A line is a request: the sender (`a`, or `a/crontab-controller`), the verb (`patch?` for a dry
//! run), the object, and the response:
//!
//! | response | meaning |
//! |---|---|
//! | `@12` | the object, stored at revision 12 |
//! | `gone` | a Status: the object was removed |
//! | `409` | a Status with this code |
//! | `panic` | the handler panicked |
//!
//! `a lease a_1 @10` changes the Lease `lock`, and `a lease:other - @11` releases the Lease
//! `other`. `1> ` before a request logs only its first line; `<1` with a response logs its
//! second line.

use std::collections::HashMap;

use serde_json::{Value, json};

/// Returns the log of a script.
pub(crate) fn log(script: &str) -> String {
    let mut begun: HashMap<&str, Value> = HashMap::new();
    let mut lines: Vec<Value> = Vec::new();
    for (index, line) in script
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .enumerate()
    {
        if let Some(rest) = line.strip_prefix('<') {
            let (label, outcome) = rest.split_once(' ').unwrap_or((rest, ""));
            let request = begun.remove(label).unwrap_or_else(|| panic!("no request {label}"));
            lines.push(completed(&request, outcome));
            continue;
        }
        let (label, request) = match line.split_once("> ") {
            Some((label, request)) => (Some(label), request),
            None => (None, line),
        };
        let (received, outcome) = received(index, request);
        lines.push(received.clone());
        match label {
            Some(label) => drop(begun.insert(label, received)),
            None => lines.push(completed(&received, outcome)),
        }
    }
    let dated = lines.into_iter().enumerate().map(|(index, mut line)| {
        let time = json!(format!("2026-11-21T12:00:{:02}.{:03}000Z", index / 1000, index % 1000));
        line["requestReceivedTimestamp"] = time.clone();
        line["stageTimestamp"] = time;
        format!("{line}\n")
    });
    dated.collect()
}

/// Returns the first line of a request, and the notation of its response.
fn received(index: usize, request: &str) -> (Value, &str) {
    let mut words = request.splitn(4, ' ');
    let mut word = || words.next().unwrap_or_default();
    let (who, verb, what, outcome) = (word(), word(), word(), word());
    let (user, component) = who.split_once('/').unwrap_or((who, "foo-controller"));
    let is_lease = verb == "lease" || verb.starts_with("lease:");
    let (resource, name, holder) = if is_lease {
        ("leases", verb.strip_prefix("lease:").unwrap_or("lock"), Some(what))
    } else {
        let (resource, name) = what.split_once('/').unwrap_or((what, ""));
        (resource, name, None)
    };
    let (name, subresource) = name.split_once('/').unwrap_or((name, ""));
    let dry_run = if verb.ends_with('?') { "dryRun=All" } else { "" };
    let group = if resource == "leases" {
        "coordination.k8s.io"
    } else {
        "apps"
    };
    let line = json!({
        "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "RequestResponse",
        "auditID": format!("request-{index}"),
        "stage": "RequestReceived",
        "requestURI": format!("/apis/{group}/v1/namespaces/system/{resource}/{name}?&{dry_run}"),
        "verb": if is_lease { "patch" } else { verb.trim_end_matches('?') },
        "user": {"username": format!("user-{user}"), "groups": ["system:authenticated"]},
        "userAgent": format!("portreeve/0.1.0 (linux/x86_64) {component}"),
        "objectRef": {"apiGroup": group, "apiVersion": "v1", "resource": resource, "subresource": subresource,
            "namespace": "system", "name": name},
        "holder": holder,
    });
    (line, outcome)
}

/// Returns the second line of a request, with its response.
fn completed(request: &Value, outcome: &str) -> Value {
    let mut line = request.clone();
    let holder = request["holder"].as_str().map(|holder| holder.trim_matches('-'));
    line["stage"] = json!(if outcome == "panic" {
        "Panic"
    } else {
        "ResponseComplete"
    });
    let code = outcome.parse().unwrap_or(if outcome == "panic" { 500 } else { 200 });
    line["responseStatus"] = json!({"metadata": {}, "code": code});
    line["responseObject"] = match outcome.strip_prefix('@') {
        Some(revision) => {
            let metadata = json!({"name": request["objectRef"]["name"], "resourceVersion": revision});
            json!({"kind": "Thing", "metadata": metadata, "spec": {"holderIdentity": holder}})
        }
        None => json!({"kind": "Status", "metadata": {}}),
    };
    line
}
