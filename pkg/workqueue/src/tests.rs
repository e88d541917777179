//! Tests of the async queue around the core: sleeping, waking, cancellation, `Work` and metrics.
//! Tests that depend on time run with paused time.

mod histories;
mod manual_poll;
mod metrics;
mod wakeups;

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
async fn a_taker_receives_a_key_that_is_added_later() {
    let queue = queue();
    let mut tasks = JoinSet::new();
    let taker = queue.clone();
    tasks.spawn(async move { taker.take().await.map(|work| *work.key()) });
    yield_now().await;
    queue.add("a", Lane::Urgent);
    assert_eq!(tasks.join_next().await.unwrap().unwrap(), Some("a"));
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
async fn a_scheduled_key_is_taken_at_its_time() {
    let queue = queue();
    let start = Instant::now();
    queue.add_at("a", start + millis(70), Lane::Urgent);
    queue.take().await.unwrap().finish(Outcome::At(start + millis(200)));
    assert_eq!(start.elapsed(), millis(70));
    queue.take().await.unwrap().finish(Outcome::Forget);
    assert_eq!(start.elapsed(), millis(200));
    assert_eq!(queue.observe().delayed, 0);
}

#[tokio::test(start_paused = true)]
async fn dropped_work_is_retried() {
    let queue = queue();
    queue.add("a", Lane::Urgent);
    drop(queue.take().await);
    assert_eq!(queue.observe().delayed, 1);
    assert_eq!(queue.take().await.unwrap().failures(), 1);
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

#[tokio::test(start_paused = true)]
async fn the_key_of_an_aborted_worker_is_retried() {
    let queue = queue();
    queue.add("a", Lane::Urgent);
    let mut tasks = JoinSet::new();
    let worker = queue.clone();
    tasks.spawn(async move {
        let _work = worker.take().await;
        std::future::pending::<()>().await;
    });
    while queue.observe().running == 0 {
        yield_now().await;
    }
    tasks.shutdown().await;
    assert_eq!(queue.take().await.unwrap().failures(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_take_that_times_out_loses_no_key() {
    let queue = queue();
    queue.add_at("a", Instant::now() + millis(50), Lane::Urgent);
    for _ in 0..4 {
        assert!(timeout(millis(10), queue.take()).await.is_err());
    }
    let start = Instant::now();
    assert!(queue.take().await.is_some());
    assert_eq!(start.elapsed(), millis(10));
}

#[tokio::test(start_paused = true)]
async fn close_ends_every_taker_and_drops_waiting_keys() {
    let queue = queue();
    let mut takers = JoinSet::new();
    queue.add_at("later", Instant::now() + millis(50), Lane::Urgent);
    for _ in 0..4 {
        let taker = queue.clone();
        takers.spawn(async move { taker.take().await.is_none() });
    }
    yield_now().await;
    assert!(!queue.is_closed());
    queue.close();
    queue.close();
    assert!(queue.is_closed());
    assert_eq!(takers.join_all().await, [true; 4]);
    queue.add("a", Lane::Urgent);
    assert!(queue.take().await.is_none());
    assert_eq!(queue.observe(), super::QueueSnapshot::default());
}

#[tokio::test(start_paused = true)]
async fn drained_waits_for_the_last_run() {
    let queue = queue();
    queue.drained().await;
    queue.add("a", Lane::Urgent);
    queue.add("b", Lane::Urgent);
    let a = queue.take().await.unwrap();
    let b = queue.take().await.unwrap();
    queue.close();
    a.finish(Outcome::Forget);
    assert!(timeout(millis(10), queue.drained()).await.is_err());
    let mut tasks = JoinSet::new();
    let waiter = queue.clone();
    tasks.spawn(async move { waiter.drained().await });
    yield_now().await;
    b.finish(Outcome::Retry);
    timeout(millis(10), tasks.join_all()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn observe_returns_how_long_work_is_held() {
    let queue = queue();
    queue.add("a", Lane::Urgent);
    queue.add("b", Lane::Routine);
    let held = queue.take().await.unwrap();
    tokio::time::advance(millis(40)).await;
    let snapshot = queue.observe();
    assert_eq!((snapshot.ready, snapshot.oldest_ready), (1, Some(millis(40))));
    assert_eq!(
        (snapshot.running, snapshot.longest_running, snapshot.unfinished),
        (1, Some(millis(40)), millis(40))
    );
    drop(held);
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
