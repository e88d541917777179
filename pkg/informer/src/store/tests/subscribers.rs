//! Tests with random subscriptions: each subscriber can rebuild the store from the stored objects
//! at its start, later changes, and resyncs.

use std::sync::Mutex;

use proptest::prelude::*;
use tokio_util::sync::CancellationToken;

use super::{
    properties::{events, identity, replay},
    *,
};
use crate::{
    Informer, Sink, Subscription,
    informer::{Core, Handle},
    readers::Reader,
    scripted::foos,
    shared_watch::{Attachment, SharedWatch},
};

type Replayed = Arc<Mutex<BTreeMap<ObjectKey, String>>>;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Applies the next events, this many.
    ApplyEvents(usize),
    Subscribe,
    /// Drops the subscription with this index.
    Unsubscribe(usize),
    Resync,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1..5_usize).prop_map(Step::ApplyEvents),
        2 => Just(Step::Subscribe),
        1 => any::<usize>().prop_map(Step::Unsubscribe),
        1 => Just(Step::Resync),
    ];
    proptest::collection::vec(step, 0..40)
}

/// Returns an informer whose watch has no loop.
fn informer() -> Informer<Foo> {
    let shared = SharedWatch::new(foos(), CancellationToken::new());
    let core = Arc::new(Core::new(&shared));
    Informer(Arc::new(Handle {
        attachment: Attachment::new(shared, Reader::optional(Arc::clone(&core))),
        _task_guard: CancellationToken::new().drop_guard(),
        core,
    }))
}

fn subscribe(informer: &Informer<Foo>) -> (Replayed, Subscription) {
    let replayed = Replayed::default();
    let target = Arc::clone(&replayed);
    let subscription = informer.subscribe(move |delta| {
        let mut replayed = target.lock().expect("no handler has panicked");
        replay(&mut replayed, delta);
    });
    (replayed, subscription)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn every_subscriber_can_rebuild_the_store(events in events(), steps in steps()) {
        let informer = informer();
        let core = Arc::clone(&informer.0.core);
        let mut remaining = events.iter();
        let mut sink = Arc::clone(&core);
        let mut subscribers = vec![subscribe(&informer)];
        let mut unsubscribed = Vec::new();
        for step in steps {
            match step {
                Step::ApplyEvents(count) => remaining.by_ref().take(count).for_each(|line| sink.apply(event(line))),
                Step::Subscribe => subscribers.push(subscribe(&informer)),
                Step::Unsubscribe(n) if !subscribers.is_empty() => {
                    let n = n % subscribers.len();
                    let (replayed, subscription) = subscribers.remove(n);
                    drop(subscription);
                    let last = replayed.lock().expect("no handler has panicked").clone();
                    unsubscribed.push((replayed, last));
                }
                Step::Resync => core.resync(),
                Step::Unsubscribe(_) => {}
            }
            let objects = informer.list();
            let stored: BTreeMap<_, _> = objects
                .iter()
                .map(|object| (object.metadata.key(), identity(object)))
                .collect();
            for (replayed, _) in &subscribers {
                prop_assert_eq!(&*replayed.lock().expect("no handler has panicked"), &stored);
            }
            for (replayed, last) in &unsubscribed {
                prop_assert_eq!(&*replayed.lock().expect("no handler has panicked"), last, "a dropped subscription received a change");
            }
        }
    }
}
