//! Tests of lists: they are consistent and paged, and never applied in part.

use super::*;

#[tokio::test(start_paused = true)]
async fn the_first_list_is_consistent_and_paged() {
    let mut fixture = Fixture::new();
    let call = fixture.server.expect_list().await;
    assert_eq!(call.path, "/apis/samplecontroller.k8s.io/v1alpha1/foos");
    // Without a resourceVersion the apiserver answers from a quorum read.
    assert_eq!(call.query.keys().collect::<Vec<_>>(), ["limit"]);
    assert_eq!(call.query["limit"], "500");
    assert_eq!(call.accept, None);
    call.answer(&page(10, "p2", &[foo("a", 1)]));
    let call = fixture.server.expect_list().await;
    assert_eq!(call.query.keys().collect::<Vec<_>>(), ["continue", "limit"]);
    assert_eq!(call.query["continue"], "p2");
    call.answer(&page(10, "p3", &[foo("b", 2)]));
    let call = fixture.server.expect_list().await;
    assert_eq!(call.query["continue"], "p3");
    call.answer(&list(10, &[foo("c", 3)]));
    fixture.server.expect_watch(10).await;
    assert_eq!(
        fixture.events(),
        ["relisting", "listed a@1", "listed b@2", "listed c@3", "synced"]
    );
}

#[tokio::test(start_paused = true)]
async fn an_empty_list_may_have_null_items() {
    let mut fixture = Fixture::new();
    let empty = json!({"kind": "FooList", "metadata": {"resourceVersion": "10"}, "items": null});
    fixture.answer_list(&empty).await;
    fixture.server.expect_watch(10).await;
    assert_eq!(fixture.events(), ["relisting", "synced"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_page_is_retried_and_earlier_pages_are_kept() {
    let mut fixture = Fixture::new();
    fixture.answer_list(&page(10, "p2", &[foo("a", 1)])).await;
    fixture.answer_list(&page(10, "p3", &[foo("b", 2)])).await;
    let call = fixture.server.expect_list().await;
    let then = call.at;
    call.answer(&status(500, "InternalError"));
    let (wait, call) = fixture.after(then).await;
    assert!(wait >= Duration::from_millis(100), "{wait:?}");
    assert_eq!(call.query["continue"], "p3");
    assert_eq!(
        fixture.failure().as_deref(),
        Some("failed to list: it is InternalError (InternalError)")
    );
    let body = call.open(200);
    body.text(r#"{"metadata":{"resourceVersion":"10"},"items":[{"#);
    body.cut();
    let call = fixture.server.expect_list().await;
    assert_eq!(call.query["continue"], "p3");
    // There is no `Synced` event, so objects that the list has not reached yet are not deleted.
    assert_eq!(fixture.events(), ["relisting", "listed a@1", "listed b@2"]);
    call.answer(&list(10, &[foo("c", 3)]));
    fixture.server.expect_watch(10).await;
    assert_eq!(fixture.events(), ["listed c@3", "synced"]);
    assert_eq!(fixture.failure(), None);
}

#[tokio::test(start_paused = true)]
async fn a_page_that_keeps_failing_restarts_the_list() {
    let mut fixture = Fixture::new();
    fixture.answer_list(&page(10, "p2", &[foo("a", 1)])).await;
    for _ in 0..5 {
        let call = fixture.server.expect_list().await;
        assert_eq!(call.query["continue"], "p2");
        call.answer(&status(500, "InternalError"));
    }
    let call = fixture.server.expect_list().await;
    assert!(!call.query.contains_key("continue"), "{call:?}");
}

#[tokio::test(start_paused = true)]
async fn a_rejected_page_restarts_the_list() {
    let mut fixture = Fixture::new();
    fixture.answer_list(&page(10, "p2", &[foo("a", 1)])).await;
    fixture.answer_list(&status(400, "BadRequest")).await;
    let call = fixture.server.expect_list().await;
    assert!(!call.query.contains_key("continue"), "{call:?}");
}

#[tokio::test(start_paused = true)]
async fn first_pages_after_a_failed_list_do_not_count_as_contact() {
    let mut fixture = Fixture::new();
    let first = page(10, "p2", &[foo("a", 1)]);
    fixture.answer_list(&first).await;
    fixture.answer_list(&status(400, "BadRequest")).await;
    settle().await;
    let contact = fixture.reporter.status().last_contact;
    fixture.answer_list(&first).await;
    let second = fixture.server.expect_list().await;
    assert_eq!(fixture.reporter.status().last_contact, contact);
    assert!(fixture.failure().is_some());
    second.answer(&list(10, &[foo("b", 2)]));
    fixture.server.expect_watch(10).await;
    assert!(fixture.reporter.status().last_contact > contact);
    assert_eq!(fixture.failure(), None);
}

#[tokio::test(start_paused = true)]
async fn an_unpaged_list_is_tried_once() {
    let mut fixture = Fixture::new();
    fixture.answer_list(&page(10, "p2", &[foo("a", 1)])).await;
    fixture.answer_list(&status(410, "Expired")).await;
    let call = fixture.server.expect_list().await;
    assert!(!call.query.contains_key("limit"), "{call:?}");
    call.answer(&status(504, "Timeout"));
    let call = fixture.server.expect_list().await;
    assert_eq!(call.query["limit"], "500");
}

#[tokio::test(start_paused = true)]
async fn an_expired_continue_token_restarts_the_list_at_once_without_pages() {
    let mut fixture = Fixture::new();
    fixture.answer_list(&page(10, "p2", &[foo("a", 1)])).await;
    let call = fixture.server.expect_list().await;
    let then = call.at;
    call.answer(&status(410, "Expired"));
    let (elapsed, call) = fixture.after(then).await;
    assert_eq!(elapsed, Duration::ZERO);
    assert!(call.query.is_empty(), "{call:?}");
    call.answer(&list(12, &[foo("a", 1), foo("b", 2)]));
    let watch = fixture.server.expect_watch(12).await;
    assert_eq!(
        fixture.events(),
        [
            "relisting",
            "listed a@1",
            "relisting",
            "listed a@1",
            "listed b@2",
            "synced"
        ]
    );
    // The next list has pages again.
    watch.answer(&status(410, "Expired"));
    assert_eq!(fixture.server.expect_list().await.query["limit"], "500");
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_no_list_backs_off() {
    let mut fixture = Fixture::new();
    fixture
        .server
        .expect_list()
        .await
        .answer_text(200, r#"{"items": "hunter2"}"#);
    fixture.server.expect_list().await;
    let failure = fixture.failure().unwrap();
    assert!(
        failure.starts_with("failed to decode the response: invalid type, expected "),
        "{failure}"
    );
    assert!(!failure.contains("hunter2"), "{failure}");
}

#[tokio::test(start_paused = true)]
async fn a_page_that_times_out_is_requested_again_with_half_the_objects() {
    let mut fixture = Fixture::new();
    for (limit, next) in [("500", None), ("250", None)] {
        let call = fixture.server.expect_list().await;
        assert_eq!(
            (&*call.query["limit"], call.query.get("continue").map(String::as_str)),
            (limit, next)
        );
        call.answer(&status(504, "Timeout"));
    }
    let call = fixture.server.expect_list().await;
    assert_eq!(call.query["limit"], "125");
    call.answer(&page(10, "p2", &[foo("a", 1)]));
    let call = fixture.server.expect_list().await;
    assert_eq!(call.query["limit"], "125");
    call.answer(&status(504, "Timeout"));
    let call = fixture.server.expect_list().await;
    assert_eq!((&*call.query["limit"], &*call.query["continue"]), ("62", "p2"));
    // Other failures do not depend on the size.
    call.answer(&status(500, "InternalError"));
    let call = fixture.server.expect_list().await;
    assert_eq!(call.query["limit"], "62");
    call.answer(&list(10, &[foo("b", 2)]));
    fixture.server.expect_watch(10).await;
}
