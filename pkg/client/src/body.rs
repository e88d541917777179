//! A response body that records metrics and returns an error at its deadline.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use prometheus::Histogram;
use tokio::time::{Instant, Sleep};
use tower::BoxError;

/// The reason why a call was dropped before its response was complete.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum CallAborted {
    /// The call exceeded its time limit.
    #[error("no complete response within {0:?}")]
    TimedOut(Duration),
    /// The call got no connection within its time limit.
    #[error("no connection to the apiserver within {0:?}")]
    NotConnected(Duration),
    /// The fence closed while the request was in flight. The apiserver may or may not have executed
    /// it.
    #[error("request dropped in flight: the write fence closed")]
    FenceClosed,
}

/// The metrics to observe when the body has been read or dropped.
pub(crate) struct CallMetrics {
    /// The time at which the caller made the call.
    pub(crate) started: Instant,
    pub(crate) durations: Histogram,
    pub(crate) sizes: Histogram,
}

/// Wraps the body of a response. Without the deadline, a connection that stalls in mid-body would
/// block its reader forever.
pub(crate) struct TimedBody<B> {
    inner: B,
    /// `None` for an open watch: its reader applies its own idle timeout.
    deadline: Option<(Pin<Box<Sleep>>, CallAborted)>,
    size: u64,
    /// `None` for an open watch, because its duration does not depend on the apiserver.
    metrics: Option<CallMetrics>,
}

impl<B> TimedBody<B> {
    pub(crate) fn new(inner: B, deadline: Option<(Instant, CallAborted)>, metrics: Option<CallMetrics>) -> Self {
        Self {
            inner,
            deadline: deadline.map(|(at, reason)| (Box::pin(tokio::time::sleep_until(at)), reason)),
            size: 0,
            metrics,
        }
    }
}

impl<B> Body for TimedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(cx) {
            if let Some(Ok(frame)) = &frame {
                self.size += frame.data_ref().map_or(0, |data| data.len() as u64);
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        if let Some((sleep, reason)) = &mut self.deadline
            && sleep.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Some(Err(Box::new(*reason))));
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<B> Drop for TimedBody<B> {
    fn drop(&mut self) {
        let Some(metrics) = &self.metrics else { return };
        metrics.durations.observe(metrics.started.elapsed().as_secs_f64());
        #[expect(clippy::cast_precision_loss, reason = "a histogram's sum is a float")]
        metrics.sizes.observe(self.size as f64);
    }
}
