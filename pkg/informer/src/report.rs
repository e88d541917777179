//! What an informer says of itself, for health checks and metrics.

use std::sync::Arc;

use parking_lot::Mutex;
use portreeve_api::ObjectKey;
use portreeve_client::Answer;
use tokio::time::Instant;

/// The state of one watch.
#[derive(Clone, Debug)]
pub struct Report {
    /// What is watched: `foos.v1alpha1.samplecontroller.k8s.io`, with the namespace and selectors if it has any.
    pub name: String,
    /// Whether a list was ever complete.
    pub synced: bool,
    /// When the apiserver was last heard of for this watch.
    pub last_contact: Option<Instant>,
    /// Why it does not make progress now, if it does not.
    pub trouble: Option<Trouble>,
    /// Objects that exist and cannot be decoded, and why.
    pub undecodable: Vec<(ObjectKey, String)>,
    /// How many objects are stored.
    pub objects: usize,
}

/// A failure that the loop is backing off from.
#[derive(Clone, Debug)]
pub struct Trouble {
    /// What kind of failure.
    pub answer: Answer,
    /// The error and its sources.
    pub message: String,
}

/// Where the loop notes how it fares. Cheap to clone; all clones are one note.
#[derive(Clone, Debug, Default)]
pub struct Reporting(Arc<Mutex<Noted>>);

#[derive(Clone, Debug, Default)]
pub(crate) struct Noted {
    pub(crate) last_contact: Option<Instant>,
    pub(crate) trouble: Option<Trouble>,
}

impl Reporting {
    /// The apiserver answered, or sent something. Returns whether something was wrong until now.
    pub(crate) fn contact(&self, now: Instant) -> bool {
        let mut noted = self.0.lock();
        noted.last_contact = Some(now);
        noted.trouble.take().is_some()
    }

    /// Something is wrong. Returns whether that is news: nothing was wrong before, or something of another kind.
    pub(crate) fn trouble(&self, trouble: Trouble) -> bool {
        let kind = trouble.answer;
        let before = self.0.lock().trouble.replace(trouble);
        before.is_none_or(|before| before.answer != kind)
    }

    /// Why it does not make progress now, if it does not.
    pub fn present(&self) -> Option<Trouble> {
        self.0.lock().trouble.clone()
    }

    /// When the apiserver was last heard of.
    pub fn last_contact(&self) -> Option<Instant> {
        self.0.lock().last_contact
    }

    pub(crate) fn noted(&self) -> Noted {
        self.0.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_news_once_and_so_is_its_end() {
        let reporting = Reporting::default();
        let trouble = |answer| {
            let message = "why".to_owned();
            reporting.trouble(Trouble { answer, message })
        };
        assert!(!reporting.contact(Instant::now()));
        assert!(trouble(Answer::Transient));
        assert!(!trouble(Answer::Transient));
        assert!(trouble(Answer::Forbidden));
        assert!(reporting.contact(Instant::now()));
        assert!(!reporting.contact(Instant::now()));
    }
}
