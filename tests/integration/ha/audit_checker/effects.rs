//! The check of effects under test.

use serde_json::json;

use crate::audit::{Event, effects};

const DAEMON: &str = "portreeve/0.1.0 (linux/amd64) foo-controller";
const OTHERS: &str = "kubectl";

/// Returns a completed request for one object, with or without preconditions.
fn event(agent: &str, verb: &str, code: u16, has_preconditions: bool) -> Event {
    let preconditions = json!({"preconditions": {"uid": "u", "resourceVersion": "1"}});
    let event = json!({
        "auditID": "1", "stage": "ResponseComplete", "requestURI": "", "verb": verb,
        "user": {"username": "anyone"}, "userAgent": agent,
        "objectRef": {"resource": "deployments", "namespace": "a", "name": "web"},
        "responseStatus": {"code": code},
        "requestObject": if has_preconditions { preconditions } else { json!({}) },
        "requestReceivedTimestamp": "2026-11-21T12:00:00Z", "stageTimestamp": "2026-11-21T12:00:00Z",
    });
    serde_json::from_value(event).unwrap()
}

fn check(events: &[Event], expected: Option<&str>) {
    let found = effects::check(events).err().map(|error| error.to_string());
    assert_eq!(found.as_deref(), expected);
}

#[test]
fn an_object_created_twice_or_deleted_without_preconditions_is_reported() {
    let create = event(DAEMON, "create", 201, false);
    let rejected = event(DAEMON, "create", 409, false);
    let delete = |agent, code| event(agent, "delete", code, false);
    let twice = r#"created more than once: [("deployments a/web", 2)]"#;
    let unbound = "deployments a/web was deleted without preconditions";
    check(&[create.clone(), rejected], None);
    check(&[create.clone(), create.clone()], Some(twice));
    check(&[create.clone(), delete(OTHERS, 200), create.clone()], None);
    check(&[create.clone(), delete(OTHERS, 404), create.clone()], Some(twice));
    check(&[create.clone(), delete(DAEMON, 200)], Some(unbound));
    check(&[create.clone(), delete(DAEMON, 403)], None);
    check(&[create, event(DAEMON, "delete", 200, true)], None);
    let empty = "the audit log contains no creation: the audit policy is wrong";
    check(&[event(OTHERS, "create", 201, false)], Some(empty));
}
