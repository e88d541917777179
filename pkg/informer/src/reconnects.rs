//! Counts how often a watch lists again and how often it resumes, by reason.
//!
//! Architecture Invariant: pure. The reasons are a closed set, so the counts have a fixed size.

/// Why a watch lists again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RelistReason {
    /// A new term begins: this replica has become the leader.
    Term,
    /// The version from which to continue has expired (HTTP 410).
    Expired,
    /// Watches brought nothing for so long that something may withhold events.
    Silence,
    /// The watch failed such that its version is of no further use, or several watches ended at
    /// once.
    WatchFailed,
    /// A reader was attached, or one asked for a list because its model may lack changes.
    Reader,
    /// The last list failed.
    ListFailed,
    /// The objects are stored in another version now.
    Version,
}

/// Why a watch that ended resumes from its last version.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RestartReason {
    /// The apiserver ended it, as it does every few minutes.
    Closed,
    /// It ended right after it was accepted.
    EndedAtOnce,
    /// It received nothing within the idle timeout.
    Idle,
    /// Its connection broke.
    Broken,
    /// The apiserver rejected it or could not be reached.
    Rejected,
}

impl RelistReason {
    const ALL: [Self; 7] = [
        Self::Term,
        Self::Expired,
        Self::Silence,
        Self::WatchFailed,
        Self::Reader,
        Self::ListFailed,
        Self::Version,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::Term => "term",
            Self::Expired => "expired",
            Self::Silence => "silence",
            Self::WatchFailed => "watch_failed",
            Self::Reader => "reader",
            Self::ListFailed => "list_failed",
            Self::Version => "version",
        }
    }
}

impl RestartReason {
    const ALL: [Self; 5] = [
        Self::Closed,
        Self::EndedAtOnce,
        Self::Idle,
        Self::Broken,
        Self::Rejected,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::EndedAtOnce => "ended_at_once",
            Self::Idle => "idle",
            Self::Broken => "broken",
            Self::Rejected => "rejected",
        }
    }
}

/// How often a watch has listed again and has resumed.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Reconnects {
    relists: [u64; RelistReason::ALL.len()],
    restarts: [u64; RestartReason::ALL.len()],
}

impl Reconnects {
    pub(crate) fn count_relist(&mut self, reason: RelistReason) {
        self.relists[reason as usize] += 1;
    }

    pub(crate) fn count_restart(&mut self, reason: RestartReason) {
        self.restarts[reason as usize] += 1;
    }

    /// Returns the number of lists after the first, by each reason.
    pub fn relists(&self) -> impl Iterator<Item = (&'static str, u64)> {
        RelistReason::ALL.into_iter().map(RelistReason::label).zip(self.relists)
    }

    /// Returns the number of watches that resumed from the last version, by the reason why each
    /// earlier one ended.
    pub fn restarts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        RestartReason::ALL
            .into_iter()
            .map(RestartReason::label)
            .zip(self.restarts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_own_count() {
        let mut counts = Reconnects::default();
        for reason in RelistReason::ALL {
            counts.count_relist(reason);
        }
        for reason in RestartReason::ALL {
            counts.count_restart(reason);
        }
        assert!(counts.relists().chain(counts.restarts()).all(|(_, count)| count == 1));
        counts.count_relist(RelistReason::Reader);
        counts.count_restart(RestartReason::Rejected);
        assert!(counts.relists().any(|count| count == ("reader", 2)));
        assert!(counts.restarts().any(|count| count == ("rejected", 2)));
    }
}
