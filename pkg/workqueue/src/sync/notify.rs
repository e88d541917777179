//! A model of the parts of tokio's `Notify` that the queue uses. It implements the documented
//! guarantees behind one lock.

use std::{
    collections::VecDeque,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, Waker},
};

#[cfg(loom)]
use super::loom_sync::Mutex;
#[cfg(not(loom))]
use parking_lot::Mutex;

/// Wakes waiters.
#[derive(Debug)]
pub(crate) struct Notify {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the next waiter completes immediately.
    permit: bool,
    /// The number of `notify_waiters` calls.
    calls: usize,
    /// The number of waiters registered so far.
    tickets: usize,
    /// The registered waiters, in order of arrival.
    waiters: VecDeque<(usize, Option<Waker>)>,
    /// The waiters that `notify_one` woke and that have not been polled since.
    chosen: Vec<usize>,
}

/// A waiter, which registers at its first poll or `enable`.
#[derive(Debug)]
pub(crate) struct Notified<'a> {
    notify: &'a Notify,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Not registered yet. Holds the number of `notify_waiters` calls at its creation.
    New(usize),
    Waiting(usize),
    Done,
}

impl Notify {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State::default()),
        }
    }

    /// Creates a waiter. It also receives every later `notify_waiters`, even before its first poll.
    pub(crate) fn notified(&self) -> Notified<'_> {
        Notified {
            notify: self,
            stage: Stage::New(self.state.lock().calls),
        }
    }

    /// Wakes the waiter that has waited longest. If there is none, the next waiter completes
    /// immediately.
    pub(crate) fn notify_one(&self) {
        let waker = self.state.lock().choose();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Wakes all current waiters.
    pub(crate) fn notify_waiters(&self) {
        let waiters = {
            let mut state = self.state.lock();
            state.calls += 1;
            mem::take(&mut state.waiters)
        };
        waiters.into_iter().filter_map(|(_, waker)| waker).for_each(Waker::wake);
    }
}

impl State {
    /// Removes the first waiter for `notify_one` and returns its waker, or stores a permit.
    fn choose(&mut self) -> Option<Waker> {
        let Some((ticket, waker)) = self.waiters.pop_front() else {
            self.permit = true;
            return None;
        };
        self.chosen.push(ticket);
        waker
    }

    /// Removes a waiter from `chosen`, and returns whether it was there.
    fn remove_chosen(&mut self, ticket: usize) -> bool {
        let place = self.chosen.iter().position(|chosen| *chosen == ticket);
        place.map(|place| self.chosen.swap_remove(place)).is_some()
    }

    fn advance(&mut self, stage: Stage, waker: Option<&Waker>) -> Stage {
        match stage {
            // A waiter that `notify_waiters` woke leaves the permit to others.
            Stage::New(calls) if calls != self.calls => Stage::Done,
            Stage::New(_) if mem::take(&mut self.permit) => Stage::Done,
            Stage::New(_) => {
                self.tickets += 1;
                self.waiters.push_back((self.tickets, waker.cloned()));
                Stage::Waiting(self.tickets)
            }
            Stage::Waiting(ticket) => {
                let waiter = self.waiters.iter_mut().find(|(waiter, _)| *waiter == ticket);
                match (waiter, waker) {
                    (Some((_, old)), Some(new)) => *old = Some(new.clone()),
                    (Some(_), None) => {}
                    (None, _) => {
                        self.remove_chosen(ticket);
                        return Stage::Done;
                    }
                }
                stage
            }
            Stage::Done => Stage::Done,
        }
    }
}

impl Notified<'_> {
    /// Registers the waiter, and returns whether it has already completed.
    pub(crate) fn enable(mut self: Pin<&mut Self>) -> bool {
        self.stage = self.notify.state.lock().advance(self.stage, None);
        matches!(self.stage, Stage::Done)
    }
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.stage = self.notify.state.lock().advance(self.stage, Some(context.waker()));
        match self.stage {
            Stage::Done => Poll::Ready(()),
            Stage::New(_) | Stage::Waiting(_) => Poll::Pending,
        }
    }
}

impl Drop for Notified<'_> {
    /// Passes an unused `notify_one` on to the next waiter.
    fn drop(&mut self) {
        let Stage::Waiting(ticket) = self.stage else { return };
        let waker = {
            let mut state = self.notify.state.lock();
            state.waiters.retain(|(waiter, _)| *waiter != ticket);
            if state.remove_chosen(ticket) {
                state.choose()
            } else {
                None
            }
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
