//! What a key costs on its way through the queue: added, taken by a worker, and done, on one core.
//!
//! A million keys a second are to pass.

#![expect(clippy::expect_used, reason = "a benchmark that cannot begin has nothing to measure")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use portreeve_workqueue::{Lane, Metrics, Outcome, Queue};
use prometheus::Registry;
use tokio::runtime::{Builder, Runtime};

/// As keys of objects are: two shared strings.
type Key = (Arc<str>, Arc<str>);

fn keys(count: usize) -> Vec<Key> {
    let namespace: Arc<str> = "default".into();
    let key = |index| (Arc::clone(&namespace), format!("foo-{index:05}").into());
    (0..count).map(key).collect()
}

fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime of one thread can be made")
}

async fn pass(queue: &Queue<Key>, keys: &[Key]) {
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

/// One key at a time, and as many as a burst has.
fn queue(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("queue");
    let runtime = runtime();
    for count in [1, 1000] {
        let metrics = Metrics::register(&Registry::new()).expect("a new registry has no metrics");
        let queue = Queue::new("keys", &metrics);
        let keys = keys(count);
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(format!("add, take and done, {count} at a time"), |bencher| {
            bencher.iter(|| runtime.block_on(pass(&queue, &keys)));
        });
    }
}

criterion_group!(benches, queue);
criterion_main!(benches);
