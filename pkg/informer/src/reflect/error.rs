//! The errors of the loop, and how it reacts to each.

use std::time::Duration;

use kube::core::Status;
use portreeve_client::{ApiErrorKind, is_unavailable, retry_after};

use crate::{explain::JsonError, reconnects::RestartReason, watch_trust::End};

/// The maximum length of a watch line in bytes. An object has at most 1.5 MiB in etcd, and
/// conversion can make it longer.
pub(super) const MAX_LINE: usize = 16 << 20;

/// A failed step of the loop.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("failed to list")]
    List(#[source] kube::Error),
    #[error("failed to watch")]
    Watch(#[source] kube::Error),
    #[error("failed to read the response")]
    Read(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("failed to decode the response")]
    Decode(#[source] JsonError),
    #[error("the watch sent a line of more than {MAX_LINE} bytes")]
    LineTooLong,
    #[error("the watch received nothing for {0:?}")]
    Silent(Duration),
    #[error("the watch ended right after it started")]
    EndedAtOnce,
    #[error("the continue token expired; the list has to start over")]
    ListExpired,
    #[error("the sink panicked (see the log)")]
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

    /// Returns whether the apiserver was unavailable.
    pub(super) fn is_unavailable(&self) -> bool {
        matches!(self, Self::Read(_)) || self.cause().is_some_and(is_unavailable)
    }

    /// Returns whether the error is reported as a failure.
    ///
    /// Silence alone is not reported, because an apiserver sends no bookmarks for a resource that
    /// has not changed since it started. If the apiserver is down, the next watch fails. If
    /// something withholds events, a later list detects it.
    pub(super) fn is_reported(&self) -> bool {
        !matches!(self, Self::Silent(_))
    }

    /// Returns how a watch with this error ended.
    pub(super) fn end(&self) -> End {
        match self {
            _ if self.kind() == ApiErrorKind::Expired => End::Expired,
            _ if self.requires_list() => End::Unusable,
            Self::Watch(_) => End::Rejected,
            _ => End::Broken,
        }
    }

    /// Returns why a watch that ended with this error resumes.
    pub(super) fn restart_reason(&self) -> RestartReason {
        match self {
            Self::EndedAtOnce => RestartReason::EndedAtOnce,
            Self::Silent(_) => RestartReason::Idle,
            Self::Watch(_) => RestartReason::Rejected,
            _ => RestartReason::Broken,
        }
    }

    /// Returns whether to list before the next watch.
    ///
    /// - A broken connection loses nothing, because the next watch resumes where the last one
    ///   ended.
    /// - After a rejected watch, a list determines the current state, unless the apiserver asked
    ///   to retry later.
    /// - After an unreadable line, a watch from the same version would receive the same line.
    /// - After a panic of the sink, it is unknown which events it has applied.
    fn requires_list(&self) -> bool {
        match self {
            Self::Decode(_) | Self::LineTooLong | Self::Panicked => true,
            Self::Watch(error @ kube::Error::Api(status)) => {
                retry_after(error).is_none() || is_version_too_large(status)
            }
            _ => false,
        }
    }

    /// Returns whether a retry of the same page may succeed.
    pub(super) fn is_transient(&self) -> bool {
        matches!(self, Self::List(_) | Self::Read(_)) && self.kind() == ApiErrorKind::Transient
    }
}

/// Returns whether the requested version is newer than any that the apiserver knows, which happens
/// after etcd is restored from a backup. The apiserver then asks to retry later, but no retry would
/// succeed.
fn is_version_too_large(status: &Status) -> bool {
    let details = status.details.iter();
    details
        .flat_map(|details| &details.causes)
        .any(|cause| cause.reason == "ResourceVersionTooLarge")
}
