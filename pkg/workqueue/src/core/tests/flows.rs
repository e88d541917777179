//! Tests of keys that are equal but have different flows.

use std::{
    hash::{Hash, Hasher},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    backoff::Backoff,
    core::{Core, Flow, Lane, Outcome, RetryBudget, Take},
};

/// A key whose flow takes no part in comparisons.
#[derive(Clone, Copy, Debug)]
struct FlowKey(u8, Flow);

impl PartialEq for FlowKey {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for FlowKey {}

impl Hash for FlowKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

#[test]
fn key_in_the_queue_keeps_its_flow() {
    let mut core = Core::new(Backoff::DEFAULT, RetryBudget::new(10.0, 1), |key: &FlowKey| key.1);
    let start = Instant::now();
    let at = |millis| start + Duration::from_millis(millis);
    for key in [FlowKey(1, 1), FlowKey(2, 1)] {
        core.add(key, Lane::Urgent, at(0));
        core.take(at(0));
        core.done(&key, Outcome::Retry, 0.0, at(0));
    }
    // The first retry has the only token, and the second is held in flow 1.
    assert!(matches!(core.take(at(5)), Take::Run(run) if run.key == FlowKey(1, 0)));
    assert_eq!(core.observe(at(5)).held, 1);
    core.add_at(FlowKey(2, 9), at(50), Lane::Urgent, at(6));
    core.add(FlowKey(2, 9), Lane::Urgent, at(7));
    assert_eq!(core.observe(at(7)).held, 0);
    assert!(matches!(core.take(at(7)), Take::Run(run) if run.key.1 == 1));
    core.done(&FlowKey(2, 9), Outcome::Forget, 0.0, at(8));
    core.done(&FlowKey(1, 9), Outcome::Forget, 0.0, at(8));
    // A key that has left the queue is added with a new flow.
    core.add(FlowKey(2, 9), Lane::Urgent, at(9));
    assert!(matches!(core.take(at(9)), Take::Run(run) if run.key.1 == 9));
    assert_eq!(core.take(at(1_000)), Take::Idle);
}
