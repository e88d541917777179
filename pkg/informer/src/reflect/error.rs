//! Why a step of the loop failed, and what follows from it.

use std::time::Duration;

use kube::core::Status;
use portreeve_client::{ApiErrorKind, retry_after};

use crate::explain::JsonError;

/// The longest line of a watch. An object has at most 1.5 MiB in etcd, and conversion may make it longer.
pub(super) const LONGEST_LINE: usize = 16 << 20;

/// A step of the loop that failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("failed to list")]
    List(#[source] kube::Error),
    #[error("failed to watch")]
    Watch(#[source] kube::Error),
    #[error("failed to read the answer")]
    Read(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("failed to decode the answer")]
    Decode(#[source] JsonError),
    #[error("a line of the watch is longer than {LONGEST_LINE} bytes")]
    Endless,
    #[error("nothing was heard for {0:?}")]
    Silent(Duration),
    #[error("the watch ended as soon as it had begun")]
    EndedAtOnce,
    #[error("the list is no longer kept and has to be started over")]
    ListExpired,
    #[error("a panic in what takes the objects in, the log has it")]
    Panicked,
}

impl Error {
    pub(super) fn cause(&self) -> Option<&kube::Error> {
        match self {
            Self::List(source) | Self::Watch(source) => Some(source),
            _ => None,
        }
    }

    pub(super) fn kind(&self) -> ApiErrorKind {
        self.cause().map_or(ApiErrorKind::Transient, ApiErrorKind::of)
    }

    /// Whether it is worth telling of. Real apiservers send no bookmark of a resource in which nothing has happened since they started, so
    /// silence alone is none: if the apiserver is away, the next watch will fail, and if lines are held back, a list will find out.
    pub(super) fn is_reported(&self) -> bool {
        !matches!(self, Self::Silent(_))
    }

    /// Whether to list before watching again. A broken connection has lost nothing: the watch resumes where it was. After a refusal a
    /// list finds out what is true, unless all that was said is "later"; a line that could not be read would only come again; and after a
    /// panic nobody knows what was taken in.
    pub(super) fn calls_for_list(&self) -> bool {
        match self {
            Self::Decode(_) | Self::Endless | Self::Panicked => true,
            Self::Watch(error @ kube::Error::Api(status)) => retry_after(error).is_none() || is_from_the_future(status),
            _ => false,
        }
    }

    /// Whether asking for the same page again may help.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Self::List(_) | Self::Read(_)) && self.kind() == ApiErrorKind::Transient
    }
}

/// The version asked for is newer than all that the apiserver knows: etcd was restored from a backup. It says "later", which would never
/// come.
fn is_from_the_future(status: &Status) -> bool {
    let details = status.details.iter();
    details
        .flat_map(|details| &details.causes)
        .any(|cause| cause.reason == "ResourceVersionTooLarge")
}
