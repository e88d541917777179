//! What a controller has to do, from which `portreeve testenv` derives whether nothing is left.

use std::sync::Arc;

use portreeve_informer::ServedResources;
use portreeve_workqueue::{Key, Queue, QueueActivity};

/// What a controller has to do at one time.
#[derive(Clone, Debug, Default)]
pub struct Activity {
    /// Whether its workers run. Until then its queues may lack items.
    pub is_running: bool,
    /// The number of items that workers have taken so far.
    pub taken: u64,
    /// The items to process now, those being processed, and those to retry.
    pub left: Vec<String>,
    /// The items that wait for a time, such as the next run of a schedule.
    pub waiting: Vec<String>,
    /// The resources that the controller knows; `None` unless it follows discovery.
    pub served: Option<Arc<ServedResources>>,
}

impl Activity {
    /// Adds the items of a queue. `name` is the queue's name in metrics, and `format_key` formats a
    /// key.
    pub fn add_queue<K: Key>(&mut self, name: &str, queue: &Queue<K>, format_key: impl Fn(&K) -> String) {
        let QueueActivity {
            taken,
            unfinished,
            scheduled,
        } = queue.activity();
        self.taken += taken;
        let unfinished = unfinished.iter();
        self.left
            .extend(unfinished.map(|key| format!("{name}: {}", format_key(key))));
        let scheduled = scheduled.iter();
        self.waiting
            .extend(scheduled.map(|(key, wait)| format!("{name}: {} in {} s", format_key(key), wait.as_secs())));
    }
}

/// A controller and a function that returns what it has to do.
#[derive(Clone)]
pub struct ActivityChecker {
    /// The name of the controller.
    pub controller: &'static str,
    /// Returns the current activity. It may take locks, but must not wait for requests.
    pub check: Arc<dyn Fn() -> Activity + Send + Sync>,
}

impl ActivityChecker {
    /// Creates the checker of a controller.
    pub fn new(controller: &'static str, check: impl Fn() -> Activity + Send + Sync + 'static) -> Self {
        Self {
            controller,
            check: Arc::new(check),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use portreeve_metrics::Registry;
    use portreeve_workqueue::{Lane, Metrics, Outcome};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn retries_are_left_and_scheduled_items_wait() {
        let queue = Queue::new("foo", &Metrics::register(&Registry::new()).unwrap());
        let in_a_minute = Instant::now() + Duration::from_mins(1);
        for (key, outcome) in [
            ("done", Outcome::Forget),
            ("timed", Outcome::At(in_a_minute)),
            ("failed", Outcome::Retry),
        ] {
            queue.add(key, Lane::Urgent);
            queue.take().await.unwrap().finish(outcome);
        }
        queue.add("ready", Lane::Urgent);
        let mut activity = Activity::default();
        activity.add_queue("foo", &queue, |key| (*key).to_owned());
        activity.left.sort();
        assert_eq!(activity.taken, 3);
        assert_eq!(activity.left, ["foo: failed", "foo: ready"]);
        assert_eq!(activity.waiting, ["foo: timed in 60 s"]);
    }
}
