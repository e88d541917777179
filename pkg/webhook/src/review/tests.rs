use expect_test::{Expect, expect};
use portreeve_api::Resource;
use portreeve_reconcile::admission::{Verdict, set_default};
use portreeve_testing::Corpus;
use serde::Deserialize;
use serde_json::json;

use super::*;

const THINGS: Resource = Resource::namespaced("example.dev", "v1", "Thing", "things");

#[derive(Deserialize)]
struct Thing {
    #[serde(default)]
    spec: Spec,
}

#[derive(Default, Deserialize)]
struct Spec {
    #[serde(default)]
    size: u32,
}

fn defaulting() -> Webhook {
    Webhook::defaulting("things.example.dev", THINGS, |thing| {
        set_default(thing, &["spec", "size"], 1);
    })
}

/// Allows sizes up to 9 and the largest of the parameters, and warns of those above 5.
fn validating() -> Webhook {
    Webhook::validating("things.example.dev", THINGS, |review: &Review<'_, Thing>| {
        let size = review.new.spec.size;
        let limits = review.parameters::<Thing>().map(|limit| limit.spec.size);
        let mut verdict = Verdict::new();
        for limit in limits.chain([9]).filter(|limit| size > *limit) {
            let message = format!("choose at most {limit}");
            verdict = verdict.error(FieldError::invalid("spec.size", &size.to_string(), message));
        }
        if size > 5 {
            verdict.warning("spec.size: large")
        } else {
            verdict
        }
    })
}

fn request(operation: &str, object: &Value, old: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u1",
            "kind": {"group": "example.dev", "version": "v1", "kind": "Thing"},
            "resource": {"group": "example.dev", "version": "v1", "resource": "things"},
            "requestKind": {"group": "example.dev", "version": "v1", "kind": "Thing"},
            "requestResource": {"group": "example.dev", "version": "v1", "resource": "things"},
            "name": "a",
            "namespace": "default",
            "operation": operation,
            "userInfo": {"username": "admin", "groups": ["system:masters"]},
            "object": object,
            "oldObject": old,
            "dryRun": false,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
        },
    })
}

fn thing(size: i64) -> Value {
    json!({"apiVersion": "example.dev/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": {"size": size}})
}

fn respond(webhook: &Webhook, request: &Value, parameters: &[Arc<Value>]) -> Result<(Value, Decision), BadRequest> {
    let body = request.to_string();
    let request = read(webhook, body.as_bytes())?;
    let answer = answer(webhook, request, Some(parameters), Timestamp::UNIX_EPOCH)?;
    Ok((serde_json::from_slice(&answer.body).unwrap(), answer.decision))
}

fn check(webhook: &Webhook, request: &Value, expected: &Expect) {
    let (body, _) = respond(webhook, request, &[]).unwrap();
    expected.assert_eq(&body.to_string());
}

#[test]
fn an_allowed_object_has_the_uid_and_nothing_else() {
    check(
        &validating(),
        &request("CREATE", &thing(1), &Value::Null),
        &expect![[
            r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"allowed":true,"uid":"u1"}}"#
        ]],
    );
}

#[test]
fn a_denial_is_a_status_with_a_cause_for_each_field() {
    check(
        &validating(),
        &request("CREATE", &thing(10), &Value::Null),
        &expect![[
            r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"allowed":false,"status":{"code":422,"details":{"causes":[{"field":"spec.size","message":"Invalid value: \"10\": choose at most 9","reason":"FieldValueInvalid"}],"group":"example.dev","kind":"Thing","name":"a"},"message":"spec.size: Invalid value: \"10\": choose at most 9","reason":"Invalid","status":"Failure"},"uid":"u1","warnings":["spec.size: large"]}}"#
        ]],
    );
}

#[test]
fn parameters_are_those_that_can_be_decoded() {
    let limits = [json!({"spec": {"size": 3}}), json!({"spec": "broken"})].map(Arc::new);
    let (body, decision) = respond(&validating(), &request("CREATE", &thing(4), &Value::Null), &limits).unwrap();
    assert_eq!(decision, Decision::Denied);
    let message = body["response"]["status"]["message"].as_str();
    assert_eq!(message, Some("spec.size: Invalid value: \"4\": choose at most 3"));
}

#[test]
fn a_patch_is_text_in_base64_and_absent_without_a_change() {
    let incomplete = json!({"metadata": {"name": "a", "creationTimestamp": null}, "spec": {"other": 1.0}});
    let (body, decision) = respond(&defaulting(), &request("CREATE", &incomplete, &Value::Null), &[]).unwrap();
    assert_eq!(decision, Decision::Patched);
    assert_eq!(body["response"]["patchType"], "JSONPatch");
    let patch = BASE64.decode(body["response"]["patch"].as_str().unwrap().as_bytes());
    expect![[r#"[{"op":"add","path":"/spec/size","value":1}]"#]].assert_eq(&String::from_utf8(patch.unwrap()).unwrap());

    for unchanged in [thing(2), json!({"spec": "broken"}), json!([])] {
        let (body, decision) = respond(&defaulting(), &request("CREATE", &unchanged, &Value::Null), &[]).unwrap();
        assert_eq!(decision, Decision::Allowed, "{unchanged}");
        let response = body["response"].as_object().unwrap();
        assert!(
            !response.contains_key("patch") && !response.contains_key("patchType"),
            "{body}"
        );
    }
}

#[test]
fn updates_that_change_nothing_to_judge_are_allowed() {
    let bad = thing(100);
    let with = |path: &str, value: Value| {
        let mut object = thing(100);
        object[path.split_once('/').map_or(path, |(head, _)| head)] = match path.split_once('/') {
            Some((_, field)) => json!({"name": "a", field: value}),
            None => value,
        };
        object
    };
    for (new, decision) in [
        (with("metadata/finalizers", json!(["x"])), Decision::Allowed),
        (with("status", json!({"phase": "x"})), Decision::Allowed),
        (with("metadata/labels", json!({"a": "b"})), Decision::Denied),
        (with("metadata/annotations", json!({"a": "b"})), Decision::Denied),
        (thing(101), Decision::Denied),
    ] {
        let (_, actual) = respond(&validating(), &request("UPDATE", &new, &bad), &[]).unwrap();
        assert_eq!(actual, decision, "{new}");
    }
    let deleted =
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "labels": {}}, "spec": {"size": 1000}});
    for webhook in [validating(), defaulting()] {
        let (_, actual) = respond(&webhook, &request("UPDATE", &deleted, &bad), &[]).unwrap();
        assert_eq!(actual, Decision::Allowed);
    }
}

type Change<'a> = &'a dyn Fn(&mut Value);

#[test]
fn requests_for_something_else_are_rejected_with_a_reason() {
    let valid = request("CREATE", &thing(1), &Value::Null);
    let error = |change: &dyn Fn(&mut Value)| {
        let mut request = valid.clone();
        change(&mut request);
        respond(&validating(), &request, &[]).unwrap_err().to_string()
    };
    let rows: [(Change<'_>, Expect); 8] = [
        (
            &|request: &mut Value| request["apiVersion"] = "admission.k8s.io/v1beta1".into(),
            expect!["expected admission.k8s.io/v1 AdmissionReview, not admission.k8s.io/v1beta1 AdmissionReview"],
        ),
        (
            &|request| request["kind"] = "ConversionReview".into(),
            expect!["expected admission.k8s.io/v1 AdmissionReview, not admission.k8s.io/v1 ConversionReview"],
        ),
        (
            &|request| request["request"] = Value::Null,
            expect!["the review has no request"],
        ),
        (
            &|request| request["request"]["uid"] = "".into(),
            expect!["the request has no uid"],
        ),
        (
            &|request| request["request"]["resource"]["resource"] = "others".into(),
            expect!["this webhook is for example.dev/v1/things, not for example.dev/v1/others"],
        ),
        (
            &|request| request["request"]["subResource"] = "status".into(),
            expect!["this webhook is for example.dev/v1/things, not for example.dev/v1/things/status"],
        ),
        (
            &|request| request["request"]["operation"] = "DELETE".into(),
            expect!["this webhook is for CREATE and UPDATE, not for DELETE"],
        ),
        (
            &|request| request["request"]["object"] = Value::Null,
            expect!["the request has no object"],
        ),
    ];
    for (change, expected) in rows {
        expected.assert_eq(&error(change));
    }
    let malformed = read(&validating(), b"{").unwrap_err().to_string();
    assert!(
        malformed.starts_with("the body is no AdmissionReview: EOF"),
        "{malformed}"
    );
}

/// No bytes end the process, and each response to a request that was read has its UID.
#[test]
fn mutations_of_requests() {
    let check = |input: &[u8]| {
        for webhook in [validating(), defaulting()] {
            let Ok(request) = read(&webhook, input) else {
                continue;
            };
            let uid = request.uid.clone();
            let answer = answer(&webhook, request, None, Timestamp::UNIX_EPOCH).unwrap();
            let body: Value = serde_json::from_slice(&answer.body).unwrap();
            assert_eq!(body["response"]["uid"], *uid);
            assert_eq!(body["response"]["allowed"], answer.decision != Decision::Denied);
        }
    };
    Corpus::read("corpus").unwrap().check(4_000, check).unwrap();
}

/// With status 400, the apiserver would ignore the webhook, and store the object unchecked.
#[test]
fn objects_of_any_depth_and_size_are_reviewed() {
    const DEPTH: usize = 200_000;
    let deep = format!("{}{}", "[".repeat(DEPTH), "]".repeat(DEPTH));
    let many = format!("[{}]", vec!["{}"; 400_000].join(","));
    for metadata in [
        format!(r#"{{"managedFields":{deep}}}"#),
        format!(r#"{{"annotations":{many}}}"#),
    ] {
        let request = request("CREATE", &json!("OBJECT"), &Value::Null).to_string();
        let object = format!(r#"{{"metadata":{metadata},"spec":{{"size":10}},"status":{deep}}}"#);
        let body = request.replace(r#""OBJECT""#, &object);
        let decide = |webhook: &Webhook| {
            let request = read(webhook, body.as_bytes()).unwrap();
            answer(webhook, request, Some(&[]), Timestamp::UNIX_EPOCH)
                .unwrap()
                .decision
        };
        assert_eq!(decide(&validating()), Decision::Denied);
        assert_eq!(decide(&defaulting()), Decision::Allowed);
    }
}
