//! Futures that tests poll by hand, and only after a wake-up, as a runtime does.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

/// Whether a future may be polled.
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

pub(super) struct Waiter<T> {
    future: Pin<Box<dyn Future<Output = T>>>,
    woken: Arc<Flag>,
}

impl<T> Waiter<T> {
    /// Creates a waiter that may be polled at once.
    pub(super) fn new(future: impl Future<Output = T> + 'static) -> Self {
        Self {
            future: Box::pin(future),
            woken: Arc::new(Flag(AtomicBool::new(true))),
        }
    }

    pub(super) fn is_woken(&self) -> bool {
        self.woken.0.load(Ordering::SeqCst)
    }

    /// Polls the future if it was woken, and returns its output if it completed. It must not be
    /// polled after that.
    pub(super) fn poll(&mut self) -> Option<T> {
        if !self.woken.0.swap(false, Ordering::SeqCst) {
            return None;
        }
        let waker = Waker::from(Arc::clone(&self.woken));
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }
}
