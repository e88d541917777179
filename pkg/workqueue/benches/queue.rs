//! Measures the cost of adding a key, taking it and finishing it, on one core.
//!
//! The target is one million keys per second.

#![expect(clippy::expect_used, reason = "a benchmark without its setup has nothing to measure")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use portreeve_metrics::Registry;
use portreeve_workqueue::{Lane, Metrics, Outcome, Queue};
use tokio::runtime::{Builder, Runtime};

/// A key like those of objects, with two shared strings.
type Key = (Arc<str>, Arc<str>);

fn keys(count: usize) -> Vec<Key> {
    let namespace: Arc<str> = "default".into();
    let key = |index| (Arc::clone(&namespace), format!("foo-{index:05}").into());
    (0..count).map(key).collect()
}

fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_time().build();
    runtime.expect("failed to build a single-threaded runtime")
}

async fn run_all(queue: &Queue<Key>, keys: &[Key]) {
    for key in keys {
        queue.add(key.clone(), Lane::Routine);
    }
    for _ in keys {
        if let Some(work) = queue.take().await {
            black_box(work.key());
            work.finish(Outcome::Forget);
        }
    }
}

/// Measures one key at a time, and a burst of 1,000 keys.
fn queue(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("queue");
    let runtime = runtime();
    for count in [1, 1000] {
        let metrics = Metrics::register(&Registry::new()).expect("a new registry must not hold metrics");
        let queue = Queue::new("keys", &metrics);
        let keys = keys(count);
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(format!("add, take and done, {count} at a time"), |bencher| {
            bencher.iter(|| runtime.block_on(run_all(&queue, &keys)));
        });
    }
}

criterion_group!(benches, queue);
criterion_main!(benches);
