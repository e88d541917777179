use super::*;

fn list() -> Effect {
    Effect::List {
        resource: PODS,
        namespace: Some("n".into()),
        fields: "",
    }
}

/// Returns a page with Pods of these names, and the token of the next one.
fn page(names: &[&str], next: &str) -> (u16, serde_json::Value) {
    let items: Vec<_> = names.iter().map(|name| json!({"metadata": {"name": name}})).collect();
    let metadata = json!({"resourceVersion": "7", "continue": next});
    (200, json!({"kind": "PodList", "metadata": metadata, "items": items}))
}

fn served(names: &[&str]) -> (u16, serde_json::Value) {
    let resources: Vec<_> = names.iter().map(|name| json!({"name": name})).collect();
    (200, json!({"kind": "APIResourceList", "resources": resources}))
}

/// Runs a list and a deletion. Returns the result, the names of the listed objects until the one
/// with the name `used`, and the requests.
async fn listed(script: Vec<(u16, serde_json::Value)>) -> (&'static str, String, Vec<String>) {
    let (doer, _writer, asked) = applier(script);
    let names = Mutex::new(String::new());
    let observe = |progress: Progress<'_>| {
        let Progress::Request(_, RequestState::Listed(object)) = progress else {
            return false;
        };
        let object: serde_json::Value = serde_json::from_str(object.get()).unwrap();
        let name = object["metadata"]["name"].as_str().unwrap();
        names.lock().push_str(name);
        name == "u"
    };
    let plan = Plan::of(vec![list(), delete()]);
    let applied = doer.run_with_progress(&plan, observe).await;
    (name(&applied), names.into_inner(), asked.lock().clone())
}

#[tokio::test]
async fn the_plan_continues_after_all_pages_if_the_reconciler_accepts_each_object() {
    let (applied, names, asked) = listed(vec![page(&["a", "b"], "t"), page(&["c"], "")]).await;
    assert_eq!((applied, &*names), ("done", "abc"));
    let pods = "GET /api/v1/namespaces/n/pods";
    assert_eq!(asked, [pods, pods, "DELETE /api/v1/namespaces/n/pods/a"]);
    let (applied, names, asked) = listed(vec![page(&["a"], "t"), page(&["u", "c"], "")]).await;
    assert_eq!((applied, &*names), ("stale", "au"));
    assert_eq!(asked, [pods, pods]);
    let empty = json!({"kind": "PodList", "metadata": {"resourceVersion": "7"}, "items": null});
    assert_eq!(listed(vec![(200, empty)]).await.0, "done");
}

#[tokio::test]
async fn only_a_list_counts_and_a_resource_that_discovery_lacks() {
    let not_found = || error_response(404, "NotFound");
    let no_items = json!({"kind": "PodList", "metadata": {"resourceVersion": "7"}});
    let other = json!({"kind": "Pod", "metadata": {"resourceVersion": "7"}, "items": []});
    let table = [
        (vec![(200, json!({}))], "failed", 1),
        (vec![(200, no_items)], "failed", 1),
        (vec![(200, other)], "failed", 1),
        (vec![error_response(403, "Forbidden")], "refused", 1),
        (vec![error_response(503, "ServiceUnavailable")], "failed", 1),
        (vec![page(&["a"], "t"), error_response(410, "Expired")], "stale", 2),
        (vec![not_found(), served(&["pods", "secrets"])], "failed", 2),
        (vec![not_found(), not_found()], "failed", 2),
        (vec![not_found(), (200, json!({"kind": "Status"}))], "failed", 2),
        (
            vec![not_found(), (200, json!({"kind": "Status", "resources": []}))],
            "failed",
            2,
        ),
        (vec![not_found(), served(&["secrets"])], "done", 3),
    ];
    for (script, expected, requests) in table {
        let (applied, _, asked) = listed(script.clone()).await;
        assert_eq!((applied, asked.len()), (expected, requests), "{script:?}: {asked:?}");
    }
}
