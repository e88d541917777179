use super::*;

fn replace() -> Effect {
    Effect::Replace {
        target: target(),
        subresource: Some("status"),
        changes: json!({"status": {"ready": true, "old": null}}),
    }
}

/// Returns a Pod in this version.
fn pod(uid: &str, version: &str) -> serde_json::Value {
    json!({"metadata": {"name": "a", "uid": uid, "resourceVersion": version}, "spec": {"a": 1}, "status": {"old": 1}})
}

#[tokio::test]
async fn a_replacement_puts_the_object_that_was_read() {
    let (doer, _writer, asked) = applier(vec![(200, pod("u", "1")), (200, pod("u", "2"))]);
    let (applied, written) = doer.report(&Plan::of(vec![replace()]), |_| false).await;
    assert_eq!(name(&applied), "done");
    assert_eq!((written.writes, written.status_version.as_deref()), (1, Some("2")));
    assert_eq!(
        *asked.lock(),
        [
            "GET /api/v1/namespaces/n/pods/a",
            "PUT /api/v1/namespaces/n/pods/a/status"
        ]
    );
}

#[tokio::test]
async fn a_replacement_of_another_object_or_version_is_not_sent() {
    let table = [
        ((200, pod("other", "1")), "stale"),
        ((200, pod("u", "2")), "stale"),
        (no_pod("a"), "stale"),
        ((200, json!({"kind": "Status"})), "failed"),
        (error_response(403, "Forbidden"), "refused"),
        (error_response(503, "ServiceUnavailable"), "failed"),
    ];
    for (answer, expected) in table {
        let (doer, _writer, asked) = applier(vec![answer.clone()]);
        let (applied, written) = doer.report(&Plan::of(vec![replace()]), |_| false).await;
        assert_eq!((name(&applied), written.writes), (expected, 0), "{answer:?}");
        assert_eq!(asked.lock().len(), 1, "{answer:?}");
    }
}

#[tokio::test]
async fn the_answer_to_the_put_of_a_replacement_decides() {
    let table = [
        (409, "Conflict", "stale"),
        (404, "NotFound", "stale"),
        (403, "Forbidden", "refused"),
        (422, "Invalid", "refused"),
        (429, "TooManyRequests", "failed"),
        (504, "Timeout", "failed"),
    ];
    for (code, reason, expected) in table {
        let (doer, _writer, _) = applier(vec![(200, pod("u", "1")), error_response(code, reason)]);
        let applied = doer.run(&Plan::of(vec![replace()])).await;
        assert_eq!(name(&applied), expected, "{code} {reason}");
    }
}
