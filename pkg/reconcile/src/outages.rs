//! Retries the keys that failed during an outage of the apiserver, as soon as it has ended.

use portreeve_client::Outage;
use portreeve_workqueue::{Key, Queue};

/// Ends the backoffs of [`Outcome::RetryUnavailable`](portreeve_workqueue::Outcome) whenever an
/// outage has ended. Never returns.
pub async fn retry_after_outages<K: Key>(queue: &Queue<K>, outage: &Outage) {
    let mut count = outage.count();
    loop {
        count = outage.next_end(count).await;
        queue.end_outage(Outage::spread);
    }
}
