//! Tests of loops that read the version in which objects are stored.

use super::*;
use crate::scripted::{Call, DEFINITIONS, ResponseBody};

const V1ALPHA1: &str = "/apis/samplecontroller.k8s.io/v1alpha1/foos";
const V1: &str = "/apis/samplecontroller.k8s.io/v1/foos";

/// A list with the definition of Foos, whose objects are stored in these versions.
fn definition(stored: &[&str], v1_served: bool) -> Value {
    generation(1, stored, v1_served)
}

/// A list with a generation of the definition.
fn generation(generation: i64, stored: &[&str], v1_served: bool) -> Value {
    json!({"items": [{
        "metadata": {"generation": generation},
        "spec": {"versions": [{"name": "v1alpha1", "served": true}, {"name": "v1", "served": v1_served}]},
        "status": {"storedVersions": stored},
    }]})
}

#[tokio::test(start_paused = true)]
async fn the_loop_follows_the_stored_version() {
    let mut fixture = Fixture::with_versions(&["v1alpha1", "v1"]);
    let call = fixture.server.expect_list().await;
    assert_eq!(call.path, DEFINITIONS);
    assert_eq!(
        call.query["fieldSelector"],
        "metadata.name%3Dfoos.samplecontroller.k8s.io"
    );
    call.answer(&definition(&["v1alpha1"], true));
    fixture
        .server
        .call_for(V1ALPHA1)
        .await
        .answer(&list(10, &[foo("a", 5)]));
    fixture
        .server
        .call_for(DEFINITIONS)
        .await
        .answer(&definition(&["v1alpha1"], true));
    let watch = fixture.server.call_for(V1ALPHA1).await.watch();

    // During a migration, objects are stored in both versions.
    fixture.crd_signal.notify(false);
    let call = fixture.server.call_for(DEFINITIONS).await;
    call.answer(&definition(&["v1alpha1", "v1"], true));
    settle().await;
    assert!(!watch.is_abandoned());

    fixture.crd_signal.notify(false);
    fixture
        .server
        .call_for(DEFINITIONS)
        .await
        .answer(&definition(&["v1"], true));
    fixture
        .server
        .call_for(DEFINITIONS)
        .await
        .answer(&definition(&["v1"], true));
    fixture.server.call_for(V1).await.answer(&list(20, &[foo("a", 5)]));
    assert!(watch.is_abandoned());
    assert_eq!(fixture.server.call_for(V1).await.query["resourceVersion"], "20");
    assert_eq!(
        fixture.events(),
        ["relisting", "listed a@5", "synced", "relisting", "listed a@5", "synced"]
    );
    let relists = fixture.reporter.status().reconnects;
    assert!(relists.relists().any(|count| count == ("version", 1)));
}

#[tokio::test(start_paused = true)]
async fn the_first_version_is_read_unless_the_stored_one_is_served_and_known() {
    for answer in [
        definition(&["v1"], false),
        definition(&["v2"], true),
        definition(&[], true),
        json!({"items": []}),
        status(403, "Forbidden"),
        json!("text"),
    ] {
        let mut fixture = Fixture::with_versions(&["v1alpha1", "v1"]);
        fixture.answer_list(&answer).await;
        assert_eq!(fixture.server.expect_list().await.path, V1ALPHA1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_version_stays_while_the_definition_cannot_be_read() {
    let mut fixture = Fixture::with_versions(&["v1alpha1", "v1"]);
    fixture.answer_list(&definition(&["v1"], true)).await;
    let call = fixture.server.expect_list().await;
    assert_eq!(call.path, V1);
    call.answer(&list(10, &[]));
    fixture.server.call_for(DEFINITIONS).await.refuse();
    let watch = fixture.server.call_for(V1).await.watch();
    watch.event("ERROR", &status(410, "Expired"));
    fixture
        .server
        .call_for(DEFINITIONS)
        .await
        .answer(&status(503, "ServiceUnavailable"));
    assert_eq!(fixture.server.expect_list().await.path, V1);
}

/// For about a second after a change, the apiserver continues its watches with the former
/// conversion.
#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_after_a_change_of_the_definition_is_followed_by_a_list() {
    let mut fixture = Fixture::with_versions(&["v1alpha1", "v1"]);
    let stored = ["v1alpha1"];
    let answer = |number| generation(number, &stored, true);
    fixture.answer_list(&answer(1)).await;
    fixture.server.call_for(V1ALPHA1).await.answer(&list(10, &[]));
    fixture.server.call_for(DEFINITIONS).await.answer(&answer(1));
    let watch = fixture.server.call_for(V1ALPHA1).await.watch();

    // The watch ends without a change: it is resumed.
    watch.end();
    fixture.server.call_for(DEFINITIONS).await.answer(&answer(1));
    let watch = fixture.server.call_for(V1ALPHA1).await.watch();

    // A change alone does not interrupt it.
    fixture.crd_signal.notify(false);
    fixture.server.call_for(DEFINITIONS).await.answer(&answer(2));
    settle().await;
    assert!(!watch.is_abandoned());
    watch.end();
    let resumed = fixture.server.call_for(V1ALPHA1).await;
    assert_eq!(resumed.query["resourceVersion"], "10");
    fixture.server.call_for(DEFINITIONS).await.answer(&answer(2));
    fixture.server.call_for(DEFINITIONS).await.answer(&answer(2));
    assert!(resumed.is_abandoned());
    let call = fixture.server.call_for(V1ALPHA1).await;
    assert!(!call.is_watch(), "{call:?}");
    call.answer(&list(20, &[foo("a", 15)]));
    assert_eq!(fixture.server.call_for(V1ALPHA1).await.query["resourceVersion"], "20");
}

/// The watch of the stored version needs no conversion, so the loop probes it.
#[tokio::test(start_paused = true)]
async fn a_conversion_that_fails_twice_is_reported_until_it_succeeds() {
    let mut fixture = Fixture::with_versions(&["v1alpha1", "v1"]);
    let mut converted = definition(&["v1alpha1"], true);
    converted["items"][0]["spec"]["conversion"] = json!({"strategy": "Webhook"});
    fixture.answer_list(&converted).await;
    fixture.server.call_for(V1ALPHA1).await.answer(&list(10, &[]));
    fixture.server.call_for(DEFINITIONS).await.answer(&converted);
    let watch = fixture.server.call_for(V1ALPHA1).await.watch();
    let conversion = |fixture: &Fixture| fixture.reporter.status().conversion;
    let mut seen = Vec::new();
    let mut failed = status(500, "InternalError");
    failed["message"] = "conversion webhook for samplecontroller.k8s.io/v1alpha1, Kind=Foo failed: EOF".into();
    for answer in [&failed, &failed, &status(503, "ServiceUnavailable"), &list(10, &[])] {
        let call = fixture.server.call_for(V1ALPHA1).await;
        assert_eq!(call.query["limit"], "100");
        call.answer(&list(10, &[]));
        // An object that is stored in one version must be converted to the other.
        let call = fixture.server.call_for(V1).await;
        assert_eq!(call.query["limit"], "100");
        seen.push(conversion(&fixture).map(|conversion| conversion.is_ok()));
        call.answer(answer);
    }
    fixture.server.call_for(V1ALPHA1).await.answer(&list(10, &[]));
    seen.push(conversion(&fixture).map(|conversion| conversion.is_ok()));
    // A failure of another kind says nothing about the conversion.
    assert_eq!(seen, [None, None, Some(false), Some(false), Some(true)]);

    // Without a webhook, there is nothing to probe.
    fixture.crd_signal.notify(false);
    let call = fixture.server.call_for(DEFINITIONS).await;
    call.answer(&definition(&["v1alpha1"], true));
    settle().await;
    assert_eq!(conversion(&fixture), None);
    assert!(!watch.is_abandoned());
}

/// A list fails because of any object, so every object is probed in turn, and a page that fails
/// again.
#[tokio::test(start_paused = true)]
async fn the_conversion_of_all_pages_is_probed() {
    let mut fixture = Fixture::with_versions(&["v1alpha1", "v1"]);
    let mut converted = definition(&["v1alpha1"], true);
    converted["items"][0]["spec"]["conversion"] = json!({"strategy": "Webhook"});
    fixture.answer_list(&converted).await;
    fixture.server.call_for(V1ALPHA1).await.answer(&list(10, &[]));
    fixture.server.call_for(DEFINITIONS).await.answer(&converted);
    let mut watches = vec![fixture.server.call_for(V1ALPHA1).await.watch()];
    let page = |next: &str| json!({"metadata": {"resourceVersion": "10", "continue": next}, "items": []});
    let mut seen = Vec::new();
    for answer in [
        page("second"),
        status(500, "InternalError"),
        page("third"),
        status(410, "Expired"),
        page(""),
        page(""),
    ] {
        let call = fixture.probe_for(V1ALPHA1, &converted, &mut watches).await;
        call.answer(&list(10, &[]));
        let call = fixture.probe_for(V1, &converted, &mut watches).await;
        seen.push(call.query.get("continue").cloned().unwrap_or_default());
        call.answer(&answer);
    }
    assert_eq!(seen, ["", "second", "second", "third", "", ""]);
}

impl Fixture {
    /// Returns the next probe of this path. Answers other requests, which follow from the time that
    /// passes.
    async fn probe_for(&mut self, path: &str, definition: &Value, watches: &mut Vec<ResponseBody>) -> Call {
        loop {
            let call = self.server.call().await;
            if call.query.get("limit").is_some_and(|limit| limit == "100") {
                assert_eq!(call.path, path);
                return call;
            }
            if call.path == DEFINITIONS {
                call.answer(definition);
            } else if call.is_watch() {
                watches.push(call.watch());
            } else {
                call.answer(&list(10, &[]));
            }
        }
    }
}
