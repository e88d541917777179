//! Tests of the metrics as a scrape reports them.

use portreeve_metrics::Registry;
use prometheus::TextEncoder;
use tokio::time::{Instant, advance};

use super::millis;
use crate::{Lane, Metrics, Outcome, Queue, RetryBudget};

/// Returns the sample lines of a registry that contain `part`.
fn scrape(registry: &Registry, part: &str) -> Vec<String> {
    let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
    let samples = text
        .lines()
        .filter(|line| !line.starts_with('#') && line.contains(part));
    samples.map(str::to_owned).collect()
}

#[tokio::test(start_paused = true)]
async fn a_new_queue_shows_every_series_at_zero() {
    let registry = Registry::new();
    let metrics = Metrics::register(&registry).unwrap();
    assert!(registry.gather().is_empty());
    let _queue: Queue<&str> = Queue::new("jobs", &metrics);
    let samples: Vec<String> = scrape(&registry, "")
        .into_iter()
        .filter(|line| !line.contains("_bucket"))
        .collect();
    assert_eq!(
        samples,
        [
            r#"portreeve_retry_budget_tokens{name="jobs"} 100"#,
            r#"workqueue_adds_total{name="jobs"} 0"#,
            r#"workqueue_depth{name="jobs"} 0"#,
            r#"workqueue_held_retries{name="jobs"} 0"#,
            r#"workqueue_longest_running_processor_seconds{name="jobs"} 0"#,
            r#"workqueue_queue_duration_seconds_sum{name="jobs"} 0"#,
            r#"workqueue_queue_duration_seconds_count{name="jobs"} 0"#,
            r#"workqueue_retries_total{name="jobs"} 0"#,
            r#"workqueue_unfinished_work_seconds{name="jobs"} 0"#,
            r#"workqueue_work_duration_seconds_sum{name="jobs"} 0"#,
            r#"workqueue_work_duration_seconds_count{name="jobs"} 0"#,
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn metrics_follow_a_key_through_the_queue() {
    let registry = Registry::new();
    let queue = Queue::new("jobs", &Metrics::register(&registry).unwrap());
    for key in ["a", "b", "c"] {
        queue.add(key, Lane::Urgent);
    }
    queue.add_at("d", Instant::now() + millis(500), Lane::Urgent);
    advance(millis(250)).await;
    assert_eq!(scrape(&registry, "depth"), [r#"workqueue_depth{name="jobs"} 3"#]);

    let a = queue.take().await.unwrap();
    advance(millis(125)).await;
    let b = queue.take().await.unwrap();
    advance(millis(125)).await;
    queue.add("a", Lane::Urgent);
    // c is ready, d became ready as time advanced, and a will be ready again.
    assert_eq!(scrape(&registry, "depth"), [r#"workqueue_depth{name="jobs"} 3"#]);
    assert_eq!(scrape(&registry, "adds"), [r#"workqueue_adds_total{name="jobs"} 4"#]);
    assert_eq!(
        scrape(&registry, "longest"),
        [r#"workqueue_longest_running_processor_seconds{name="jobs"} 0.25"#]
    );
    assert_eq!(
        scrape(&registry, "unfinished"),
        [r#"workqueue_unfinished_work_seconds{name="jobs"} 0.375"#]
    );

    a.finish(Outcome::Forget);
    b.finish(Outcome::Retry);
    assert_eq!(scrape(&registry, "adds"), [r#"workqueue_adds_total{name="jobs"} 5"#]);
    assert_eq!(
        scrape(&registry, "retries_total"),
        [r#"workqueue_retries_total{name="jobs"} 2"#]
    );
    assert_eq!(
        scrape(&registry, "unfinished"),
        [r#"workqueue_unfinished_work_seconds{name="jobs"} 0"#]
    );
    assert_eq!(
        scrape(&registry, "work_duration_seconds_sum"),
        [r#"workqueue_work_duration_seconds_sum{name="jobs"} 0.375"#]
    );
    assert_eq!(
        scrape(&registry, "queue_duration_seconds_sum"),
        [r#"workqueue_queue_duration_seconds_sum{name="jobs"} 0.625"#]
    );
}

#[tokio::test(start_paused = true)]
async fn held_retries_are_not_part_of_the_depth() {
    let registry = Registry::new();
    let metrics = Metrics::register(&registry).unwrap();
    let queue = Queue::with_retry_budget("jobs", &metrics, RetryBudget::new(0.001, 1), |_| 0);
    for key in ["a", "b", "c"] {
        queue.add(key, Lane::Urgent);
        queue.take().await.unwrap().finish(Outcome::Retry);
    }
    advance(millis(250)).await;
    assert_eq!(scrape(&registry, "depth"), [r#"workqueue_depth{name="jobs"} 1"#]);
    assert_eq!(scrape(&registry, "held"), [r#"workqueue_held_retries{name="jobs"} 2"#]);
}

#[tokio::test(start_paused = true)]
async fn the_tokens_of_the_retry_budget_are_counted_at_the_scrape() {
    let registry = Registry::new();
    let metrics = Metrics::register(&registry).unwrap();
    let queue = Queue::with_retry_budget("jobs", &metrics, RetryBudget::new(1.0, 2), |_| 0);
    let unlimited = Queue::with_retry_budget("pods", &metrics, RetryBudget::new(0.0, 2), |_| 0);
    unlimited.add("a", Lane::Urgent);
    let tokens = || scrape(&registry, "tokens");
    assert_eq!(tokens(), [r#"portreeve_retry_budget_tokens{name="jobs"} 2"#]);
    queue.add("a", Lane::Urgent);
    queue.take().await.unwrap().finish(Outcome::Retry);
    advance(millis(100)).await;
    let retry = queue.take().await.unwrap();
    retry.charge(3);
    assert_eq!(tokens(), [r#"portreeve_retry_budget_tokens{name="jobs"} -2"#]);
    retry.finish(Outcome::Retry);
    advance(millis(2500)).await;
    assert_eq!(tokens(), [r#"portreeve_retry_budget_tokens{name="jobs"} 0"#]);
}

#[tokio::test(start_paused = true)]
async fn direct_work_is_counted_under_the_name_of_a_queue() {
    let registry = Registry::new();
    let metrics = Metrics::register(&registry).unwrap();
    let queue = Queue::new("jobs", &metrics);
    let _other: Queue<&str> = Queue::new("pods", &metrics);
    queue.add("a", Lane::Urgent);
    metrics.direct("jobs").done(millis(1), millis(1));
    assert_eq!(
        scrape(&registry, "workqueue_adds_total"),
        [
            r#"workqueue_adds_total{name="jobs"} 2"#,
            r#"workqueue_adds_total{name="pods"} 0"#,
        ]
    );
    assert_eq!(
        scrape(&registry, "workqueue_depth"),
        [r#"workqueue_depth{name="jobs"} 1"#, r#"workqueue_depth{name="pods"} 0"#]
    );
}

#[tokio::test(start_paused = true)]
async fn durations_use_the_buckets_of_kubernetes() {
    let registry = Registry::new();
    let queue = Queue::new("jobs", &Metrics::register(&registry).unwrap());
    queue.add("a", Lane::Urgent);
    advance(millis(20)).await;
    let work = queue.take().await.unwrap();
    advance(millis(2000)).await;
    work.finish(Outcome::Forget);
    let counts = |family: &str| -> Vec<u64> {
        let families = registry.gather();
        let family = families.iter().find(|found| found.name() == family).unwrap();
        let buckets = family.get_metric()[0].get_histogram().get_bucket();
        let bounds: Vec<f64> = buckets
            .iter()
            .map(|bucket| bucket.upper_bound().log10().round())
            .collect();
        assert_eq!(bounds, [-8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0]);
        buckets
            .iter()
            .map(prometheus::proto::Bucket::cumulative_count)
            .collect()
    };
    assert_eq!(
        counts("workqueue_queue_duration_seconds"),
        [0, 0, 0, 0, 0, 0, 0, 1, 1, 1]
    );
    assert_eq!(
        counts("workqueue_work_duration_seconds"),
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    );
}

#[tokio::test(start_paused = true)]
async fn queues_with_the_same_name_are_summed() {
    let registry = Registry::new();
    let metrics = Metrics::register(&registry).unwrap();
    let first = Queue::new("jobs", &metrics);
    let second = Queue::new("jobs", &metrics);
    let other = Queue::new("pods", &metrics);
    first.add("a", Lane::Urgent);
    second.add("a", Lane::Urgent);
    other.add("a", Lane::Urgent);
    assert_eq!(
        scrape(&registry, "depth"),
        [r#"workqueue_depth{name="jobs"} 2"#, r#"workqueue_depth{name="pods"} 1"#]
    );
    let _slow = first.take().await;
    advance(millis(250)).await;
    let _fast = second.take().await;
    advance(millis(250)).await;
    assert_eq!(
        scrape(&registry, r#"longest_running_processor_seconds{name="jobs""#),
        [r#"workqueue_longest_running_processor_seconds{name="jobs"} 0.5"#]
    );
}

#[tokio::test(start_paused = true)]
async fn a_dropped_queue_loses_its_gauges_and_keeps_its_counters() {
    let registry = Registry::new();
    let metrics = Metrics::register(&registry).unwrap();
    let queue = Queue::new("jobs", &metrics);
    queue.add("a", Lane::Urgent);
    drop(queue);
    assert!(scrape(&registry, "depth").is_empty());
    assert_eq!(scrape(&registry, "adds"), [r#"workqueue_adds_total{name="jobs"} 1"#]);
}
