//! Compares the model of `Notify` with tokio's: equal calls return equal results and wake the same
//! waiters.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Wake,
};

use proptest::prelude::*;

use super::*;

/// How often a waiter was woken.
#[derive(Default)]
struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The common interface of both types, so that one function can test them.
trait Waits: Future<Output = ()> {
    fn enable_waiter(self: Pin<&mut Self>) -> bool;
}

impl Waits for Notified<'_> {
    fn enable_waiter(self: Pin<&mut Self>) -> bool {
        self.enable()
    }
}

impl Waits for tokio::sync::futures::Notified<'_> {
    fn enable_waiter(self: Pin<&mut Self>) -> bool {
        self.enable()
    }
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Arrive,
    /// The `n`th waiter, modulo the number of waiters.
    Enable(usize),
    Poll(usize),
    Leave(usize),
    One,
    All,
}

struct Waiter<F> {
    future: Pin<Box<F>>,
    woken: Arc<Counter>,
    is_done: bool,
}

/// Runs the calls. Returns for each call its result and how often each waiter has been woken so
/// far.
fn run<F: Waits>(calls: &[Call], notified: impl Fn() -> F, one: impl Fn(), all: impl Fn()) -> Vec<String> {
    let mut waiters: Vec<Waiter<F>> = Vec::new();
    let mut results = Vec::new();
    for call in calls {
        let count = waiters.len().max(1);
        let mut completed = None;
        match *call {
            Call::Arrive => waiters.push(Waiter {
                future: Box::pin(notified()),
                woken: Arc::default(),
                is_done: false,
            }),
            Call::Enable(n) | Call::Poll(n) => {
                if let Some(waiter) = waiters.get_mut(n % count).filter(|waiter| !waiter.is_done) {
                    let future = waiter.future.as_mut();
                    waiter.is_done = if matches!(call, Call::Enable(_)) {
                        future.enable_waiter()
                    } else {
                        let waker = Waker::from(Arc::clone(&waiter.woken));
                        future.poll(&mut Context::from_waker(&waker)).is_ready()
                    };
                    completed = Some(waiter.is_done);
                }
            }
            Call::Leave(n) => {
                if !waiters.is_empty() {
                    waiters.remove(n % count);
                }
            }
            Call::One => one(),
            Call::All => all(),
        }
        let woken = waiters.iter().map(|waiter| waiter.woken.0.load(Ordering::Relaxed));
        results.push(format!(
            "{call:?}: {completed:?}, woken {:?}",
            woken.collect::<Vec<_>>()
        ));
    }
    results
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let any = any::<usize>;
    let call = prop_oneof![
        4 => Just(Call::Arrive),
        4 => any().prop_map(Call::Enable),
        6 => any().prop_map(Call::Poll),
        3 => any().prop_map(Call::Leave),
        5 => Just(Call::One),
        2 => Just(Call::All),
    ];
    prop::collection::vec(call, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_model_of_notify_behaves_like_tokios(calls in calls()) {
        let (model, real) = (Notify::new(), tokio::sync::Notify::new());
        let by_model = run(&calls, || model.notified(), || model.notify_one(), || model.notify_waiters());
        let by_tokio = run(&calls, || real.notified(), || real.notify_one(), || real.notify_waiters());
        prop_assert_eq!(by_model, by_tokio);
    }
}
