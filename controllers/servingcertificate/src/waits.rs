//! How long the leader has observed something, by its monotonic clock. The clocks of replicas
//! differ, so a time that another replica has written says nothing about it. A new leader waits
//! again.
//!
//! Architecture Invariant: pure.

use std::time::Instant;

use jiff::SignedDuration;

/// What the leader observes when it decides about the Secret.
pub(crate) struct SecretState {
    /// The newest CA in the Secret, in PEM.
    pub(crate) newest: Option<String>,
    /// Whether every object that publishes CAs contains that one.
    pub(crate) is_published: bool,
    /// Whether the Secret has a certificate with its key and its CA.
    pub(crate) is_complete: bool,
}

/// Since when the leader has observed it.
#[derive(Default)]
pub(crate) struct Memory {
    newest: Option<String>,
    stored: Option<Instant>,
    published: Option<Instant>,
    incomplete: Option<Instant>,
}

/// For how long the leader has observed it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Waits {
    /// That the newest CA is in the Secret. Zero if there is none.
    pub(crate) stored: SignedDuration,
    /// That every object that publishes CAs contains it, without an interruption.
    pub(crate) published: Option<SignedDuration>,
    /// That the Secret has no certificate with its key and its CA.
    pub(crate) incomplete: Option<SignedDuration>,
}

impl Memory {
    /// Remembers what was observed now, and returns for how long.
    pub(crate) fn update(&mut self, state: SecretState, now: Instant) -> Waits {
        if self.newest != state.newest {
            *self = Self {
                newest: state.newest,
                incomplete: self.incomplete,
                ..Self::default()
            };
        }
        let since = |started: &mut Option<Instant>, is_so: bool| {
            *started = is_so.then(|| started.unwrap_or(now));
            started.map(|started| {
                let elapsed = now.saturating_duration_since(started);
                SignedDuration::try_from(elapsed).unwrap_or(SignedDuration::MAX)
            })
        };
        let is_stored = self.newest.is_some();
        Waits {
            stored: since(&mut self.stored, is_stored).unwrap_or_default(),
            published: since(&mut self.published, is_stored && state.is_published),
            incomplete: since(&mut self.incomplete, !state.is_complete),
        }
    }
}
