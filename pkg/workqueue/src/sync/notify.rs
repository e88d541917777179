//! A model of tokio's `Notify`, as far as the queue uses it: what its documentation promises, behind one lock.

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

/// Wakes those who wait for it.
#[derive(Debug)]
pub(crate) struct Notify {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the next one to wait need not.
    permit: bool,
    /// How often everybody was woken.
    calls: usize,
    /// How many have ever enlisted.
    tickets: usize,
    /// Who waits, in the order of coming.
    waiters: VecDeque<(usize, Option<Waker>)>,
    /// Who was woken alone and has not noticed yet.
    chosen: Vec<usize>,
}

/// One who waits, from the first poll or `enable` on.
#[derive(Debug)]
pub(crate) struct Notified<'a> {
    notify: &'a Notify,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Made when everybody had been woken so often.
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

    /// Waits to be woken: also by each `notify_waiters` from now on, polled or not.
    pub(crate) fn notified(&self) -> Notified<'_> {
        Notified {
            notify: self,
            stage: Stage::New(self.state.lock().calls),
        }
    }

    /// Wakes who has waited longest; when nobody waits, whoever comes next need not.
    pub(crate) fn notify_one(&self) {
        let waker = self.state.lock().choose();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Wakes everybody who waits now.
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
    fn choose(&mut self) -> Option<Waker> {
        let Some((ticket, waker)) = self.waiters.pop_front() else {
            self.permit = true;
            return None;
        };
        self.chosen.push(ticket);
        waker
    }

    /// Whether this one was woken alone, which counts once.
    fn unchoose(&mut self, ticket: usize) -> bool {
        let place = self.chosen.iter().position(|chosen| *chosen == ticket);
        place.map(|place| self.chosen.swap_remove(place)).is_some()
    }

    fn advance(&mut self, stage: Stage, waker: Option<&Waker>) -> Stage {
        match stage {
            // Who was woken with everybody leaves the permit to others.
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
                        self.unchoose(ticket);
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
    /// Waits from now on. Whether it is over already.
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
    /// Who was woken alone and leaves without having noticed hands it on.
    fn drop(&mut self) {
        let Stage::Waiting(ticket) = self.stage else { return };
        let waker = {
            let mut state = self.notify.state.lock();
            state.waiters.retain(|(waiter, _)| *waiter != ticket);
            if state.unchoose(ticket) { state.choose() } else { None }
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
