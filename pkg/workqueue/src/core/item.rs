//! The state of one key, and when it is due.

use tokio::time::Instant;

use super::ready_queue::{Lane, Ticket};

#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) failures: u32,
    pub(super) lane: Lane,
    /// The position of the key in the ordered map of its state.
    pub(super) ticket: Ticket,
    /// When a waiting key is due, or when the run of a running key started.
    pub(super) at: Instant,
    /// Whether a delayed key becomes urgent when its time comes.
    pub(super) timed: bool,
    /// Whether a ready or running key is a retry that has a token.
    pub(super) has_token: bool,
    pub(super) state: State,
}

impl Item {
    /// Returns whether the key is running and an outage has ended since its run began.
    pub(super) fn outage_has_ended(&self) -> bool {
        matches!(self.state, State::Running { outage_ended: true, .. })
    }

    /// Returns the due time of a delayed key.
    pub(super) fn due(&self) -> Due {
        Due {
            when: self.at,
            lane: self.lane,
            timed: self.timed,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    /// It waits for a requested time.
    Delayed,
    /// It waits for the backoff of its failure.
    Backoff {
        /// A requested time at or after the end of the backoff.
        later: Option<Instant>,
        /// Whether the end of an outage ends it.
        is_unavailable: bool,
    },
    /// The backoff has passed, and it waits for a token.
    Held {
        /// A requested time, at which it needs no token.
        later: Option<Instant>,
    },
    Ready,
    Running {
        /// When the key is due again, if it was added while running.
        again: Option<Due>,
        /// Whether an outage has ended since the run began.
        outage_ended: bool,
    },
}

/// When a key is due, and in which lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    pub(super) when: Instant,
    pub(super) lane: Lane,
    /// Whether the key becomes urgent when its time comes, but not before.
    pub(super) timed: bool,
}

impl Due {
    /// Merges two due times: returns the earlier time in the higher lane.
    ///
    /// If only one of the two is timed, the earlier one is returned unchanged, because a timed key
    /// becomes urgent only at its own time. If both have the same time, the timed one is returned.
    pub(super) fn or(self, other: Self) -> Self {
        if self.timed == other.timed {
            return Self {
                when: self.when.min(other.when),
                lane: self.lane.min(other.lane),
                timed: self.timed,
            };
        }
        let (timed, untimed) = if self.timed { (self, other) } else { (other, self) };
        if untimed.when < timed.when { untimed } else { timed }
    }
}
