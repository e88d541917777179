//! Opens connections. The next request can continue the dial of a request that was dropped.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};
use tower::{BoxError, Service};

/// A connector that lets the next request continue the dial of a request that was dropped.
///
/// Otherwise a client that waits for less time than a dial takes would never connect, however often
/// it retries. The next request also starts a dial of its own and uses the first connection,
/// because the earlier dial may hang. All dials must have the same destination. Clones share the
/// dials.
pub(crate) struct Dialer<C: Service<Uri>> {
    connector: C,
    limit: Duration,
    abandoned: AbandonedDials<C::Response>,
}

/// The dials that no request waits for. Nothing polls them, so only what the kernel does continues.
/// Each dial drops those whose deadline has passed, so there are no more than the requests that are
/// dropped in that time.
type AbandonedDials<T> = Arc<Mutex<Vec<Dial<T>>>>;

/// A dial in progress.
struct Dial<T> {
    result: Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>,
    deadline: Instant,
}

/// A request's wait for a dial. Its drop abandons the dial.
struct Wait<T> {
    dial: Option<Dial<T>>,
    abandoned: AbandonedDials<T>,
}

/// The dial did not end in time.
#[derive(Debug, thiserror::Error)]
#[error("timed out after {0:?} while connecting to the apiserver or in the TLS handshake")]
struct TimedOut(Duration);

impl<C: Service<Uri>> Dialer<C> {
    /// Limits each dial, which includes the TLS handshake, to `limit`.
    pub(crate) fn new(connector: C, limit: Duration) -> Self {
        Self {
            connector,
            limit,
            abandoned: Arc::default(),
        }
    }
}

impl<C: Service<Uri> + Clone> Clone for Dialer<C> {
    fn clone(&self) -> Self {
        Self {
            connector: self.connector.clone(),
            limit: self.limit,
            abandoned: Arc::clone(&self.abandoned),
        }
    }
}

impl<C> Service<Uri> for Dialer<C>
where
    C: Service<Uri>,
    C::Error: Into<BoxError>,
    C::Future: Send + 'static,
    C::Response: Send + 'static,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<C::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.connector.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, destination: Uri) -> Self::Future {
        let limit = self.limit;
        let abandoned = Arc::clone(&self.abandoned);
        let dial = self.connector.call(destination);
        Box::pin(async move {
            let wait = |dial| Wait {
                dial: Some(dial),
                abandoned: Arc::clone(&abandoned),
            };
            let fresh = async { wait(Dial::start(dial, limit)).await };
            let Some(earlier) = take(&abandoned) else {
                return fresh.await;
            };
            tokio::select! {
                // If the earlier dial has ended, no other is started.
                biased;
                Ok(connection) = wait(earlier) => Ok(connection),
                result = fresh => result,
            }
        })
    }
}

impl<T> Dial<T> {
    fn start<E: Into<BoxError>>(dial: impl Future<Output = Result<T, E>> + Send + 'static, limit: Duration) -> Self {
        let deadline = Instant::now() + limit;
        let result = Box::pin(async move {
            match timeout_at(deadline, dial).await {
                Ok(ended) => ended.map_err(Into::into),
                Err(_) => Err(TimedOut(limit).into()),
            }
        });
        Self { result, deadline }
    }
}

impl<T> Future for Wait<T> {
    type Output = Result<T, BoxError>;

    fn poll(mut self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(dial) = &mut self.dial else {
            return Poll::Pending;
        };
        let result = dial.result.as_mut().poll(ctx);
        if result.is_ready() {
            self.dial = None;
        }
        result
    }
}

impl<T> Drop for Wait<T> {
    fn drop(&mut self) {
        self.abandoned.lock().extend(self.dial.take());
    }
}

/// Takes the oldest abandoned dial before its deadline.
fn take<T>(abandoned: &Mutex<Vec<Dial<T>>>) -> Option<Dial<T>> {
    let mut abandoned = abandoned.lock();
    abandoned.retain(|dial| Instant::now() < dial.deadline);
    (!abandoned.is_empty()).then(|| abandoned.remove(0))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::{sleep, timeout};
    use tower::{ServiceExt, service_fn};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// Returns a dialer whose dials take `duration` and return their number.
    fn dialer(
        duration: Duration,
    ) -> Dialer<impl Service<Uri, Response = u32, Error = BoxError, Future: Send> + Clone + Send> {
        let dials = Arc::new(AtomicU32::new(0));
        let connector = service_fn(move |_: Uri| {
            let dials = Arc::clone(&dials);
            async move {
                let number = dials.fetch_add(1, Ordering::Relaxed);
                sleep(duration).await;
                Ok(number)
            }
        });
        Dialer::new(connector, LIMIT)
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_request_gets_the_connection_of_a_dropped_one() {
        let dialer = dialer(Duration::from_secs(3));
        let request = || dialer.clone().oneshot(Uri::from_static("https://apiserver"));
        let began = Instant::now();
        for _ in 0..2 {
            timeout(Duration::from_secs(1), request()).await.unwrap_err();
        }
        assert_eq!(request().await.unwrap(), 0);
        assert_eq!(began.elapsed(), Duration::from_secs(3));
        assert_eq!(request().await.unwrap(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_finished_dial_is_used_without_another() {
        let dialer = dialer(Duration::from_secs(3));
        let request = || dialer.clone().oneshot(Uri::from_static("https://apiserver"));
        timeout(Duration::from_secs(1), request()).await.unwrap_err();
        sleep(Duration::from_secs(3)).await;
        assert_eq!(request().await.unwrap(), 0);
        assert_eq!(request().await.unwrap(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_abandoned_dial_is_not_used_after_its_deadline() {
        let dialer = dialer(Duration::from_secs(3));
        let request = || dialer.clone().oneshot(Uri::from_static("https://apiserver"));
        timeout(Duration::from_secs(2), request()).await.unwrap_err();
        sleep(LIMIT).await;
        assert_eq!(request().await.unwrap(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dial_ends_at_its_limit() {
        let began = Instant::now();
        let error = dialer(Duration::MAX)
            .oneshot(Uri::from_static("https://apiserver"))
            .await;
        assert_eq!(began.elapsed(), LIMIT);
        let error = error.unwrap_err().to_string();
        assert_eq!(
            error,
            "timed out after 10s while connecting to the apiserver or in the TLS handshake"
        );
    }
}
