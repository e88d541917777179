//! Reads that attempts share: with many namespaces, most of their requests would be the same.

use tokio::{sync::Mutex, time::Instant};

/// The last result of a read, and when the read began.
pub(super) struct SharedRead<T>(Mutex<Option<(Instant, T)>>);

impl<T> Default for SharedRead<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T: Clone> SharedRead<T> {
    /// Returns the result of `read`, or that of another caller's, if that read began after this
    /// call.
    pub(super) async fn get(&self, read: impl Future<Output = T>) -> T {
        self.get_unless(|_, _| false, read).await
    }

    /// As [`get`](Self::get), but also returns the last result if `suffices` accepts it and the
    /// beginning of its read.
    pub(super) async fn get_unless(&self, suffices: impl Fn(Instant, &T) -> bool, read: impl Future<Output = T>) -> T {
        let called = Instant::now();
        let mut last = self.0.lock().await;
        let is_usable = |began: &Instant, result: &T| *began >= called || suffices(*began, result);
        if let Some((_, result)) = last.as_ref().filter(|(began, result)| is_usable(began, result)) {
            return result.clone();
        }
        let began = Instant::now();
        let result = read.await;
        *last = Some((began, result.clone()));
        result
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicU32, sync::atomic::Ordering::Relaxed, time::Duration};

    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn callers_share_only_reads_that_begin_after_their_call() {
        let (shared, reads) = (SharedRead::default(), AtomicU32::new(0));
        let get = async |after| {
            sleep(Duration::from_secs(after)).await;
            let read = async {
                sleep(Duration::from_secs(3)).await;
                reads.fetch_add(1, Relaxed)
            };
            shared.get(read).await
        };
        // The second and the third call come during the first read, so they share the second.
        assert_eq!(tokio::join!(get(0), get(1), get(2), get(4)), (0, 1, 1, 2));
    }
}
