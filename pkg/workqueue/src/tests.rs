//! Tests of the async queue around the core: sleeping, waking, cancellation, `Work` and metrics.
//! Tests that depend on time run with paused time.

mod histories;
mod manual_poll;
mod metrics;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use portreeve_metrics::Registry;
use tokio::{
    sync::Semaphore,
    task::{JoinSet, yield_now},
    time::{Instant, timeout},
};

use super::{Key, Lane, Metrics, Outcome, Queue};

fn queue<K: Key>() -> Queue<K> {
    Queue::new("test", &Metrics::register(&Registry::new()).unwrap())
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[tokio::test(start_paused = true)]
async fn a_failing_key_is_retried_after_at_most_5_10_and_20_ms() {
    let queue = queue();
    queue.add("a", Lane::Routine);
    let mut last = Instant::now();
    for (failures, delay) in [(0, 0), (1, 5), (2, 10), (3, 20)] {
        let work = queue.take().await.unwrap();
        assert_eq!((work.failures(), work.lane()), (failures, Lane::Routine));
        // Tokio's timers tick in milliseconds.
        assert!((millis(delay / 2)..=millis(delay + 1)).contains(&last.elapsed()));
        last = Instant::now();
        work.finish(Outcome::Retry);
    }
}

#[tokio::test(start_paused = true)]
async fn the_key_of_a_panicked_worker_is_retried() {
    let queue = queue();
    queue.add("a", Lane::Urgent);
    let mut tasks = JoinSet::new();
    let worker = queue.clone();
    tasks.spawn(async move {
        let _work = worker.take().await;
        panic!("simulated panic in a reconcile");
    });
    assert!(tasks.join_next().await.unwrap().unwrap_err().is_panic());
    assert_eq!(queue.take().await.unwrap().failures(), 1);
}

#[tokio::test]
async fn a_worker_that_never_waits_lets_other_tasks_run() {
    let queue = queue();
    let mut tasks = JoinSet::new();
    let worker = queue.clone();
    tasks.spawn(async move {
        while let Some(work) = worker.take().await {
            worker.add(0, Lane::Routine);
            work.finish(Outcome::Forget);
        }
    });
    queue.add(0, Lane::Routine);
    yield_now().await;
    queue.close();
    tasks.join_all().await;
}

/// Runs eight workers on several threads, and a producer that changes 200 objects repeatedly. Each
/// object has a version, which a worker reads like a reconcile reads the cache. No object ever has
/// two workers, and some worker reads the last version of each object.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_workers_share_no_key_and_miss_no_change() {
    const OBJECTS: usize = 200;
    const CHANGES: u64 = 50;
    #[derive(Default)]
    struct Object {
        version: AtomicU64,
        held: AtomicBool,
        complete: AtomicBool,
    }
    let queue = queue();
    let objects: Arc<HashMap<usize, Object>> = Arc::new((0..OBJECTS).map(|key| (key, Object::default())).collect());
    let complete = Arc::new(Semaphore::new(0));
    let mut workers = JoinSet::new();
    for worker in 0..8 {
        let (queue, objects, complete) = (queue.clone(), Arc::clone(&objects), Arc::clone(&complete));
        workers.spawn(async move {
            let mut runs = 0;
            while let Some(work) = queue.take().await {
                let object = &objects[work.key()];
                assert!(
                    !object.held.swap(true, Ordering::SeqCst),
                    "two holders of {}",
                    work.key()
                );
                let version = object.version.load(Ordering::SeqCst);
                yield_now().await;
                object.held.store(false, Ordering::SeqCst);
                runs += 1;
                if (runs + worker) % 7 == 0 {
                    work.finish(Outcome::Retry);
                    continue;
                }
                work.finish(Outcome::Forget);
                if version == CHANGES && !object.complete.swap(true, Ordering::SeqCst) {
                    complete.add_permits(1);
                }
            }
        });
    }
    for change in 1..=CHANGES {
        for (key, object) in objects.iter() {
            object.version.store(change, Ordering::SeqCst);
            let lane = if change % 3 == 0 { Lane::Urgent } else { Lane::Routine };
            match change % 2 {
                0 => queue.add(*key, lane),
                _ => queue.add_at(*key, Instant::now() + Duration::from_micros(change * 50), lane),
            }
        }
        yield_now().await;
    }
    let all = complete.acquire_many(u32::try_from(OBJECTS).unwrap());
    timeout(Duration::from_mins(1), all).await.unwrap().unwrap().forget();
    queue.close();
    timeout(Duration::from_mins(1), workers.join_all()).await.unwrap();
    timeout(Duration::from_mins(1), queue.drained()).await.unwrap();
}
