//! Why requests fail.

use std::time::Duration;

use kube::core::Status;
use portreeve_api::{ObjectKey, Resource};
use portreeve_client::{ApiErrorKind, Outage, error_chain, is_object_not_found, is_unavailable, retry_after};
use portreeve_garbagecollector_graph::Identity;
use portreeve_workqueue::Outcome;

/// Why a request failed.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum RequestError {
    /// The object does not exist: the apiserver's answer names it.
    #[error("the object no longer exists")]
    NotFound,
    /// The object has changed, or another one has its name.
    #[error("the object has changed since it was read")]
    Conflict,
    /// A failure that an event has reported already.
    #[error("{0}")]
    Reported(String),
    /// Any other failure. Retrying later may help, or somebody has to act.
    #[error("{message}")]
    Other {
        /// The apiserver's message.
        message: String,
        /// The kind of error.
        kind: ApiErrorKind,
        /// The delay that the apiserver asks for.
        after: Option<Duration>,
        /// Whether the apiserver was unavailable.
        is_unavailable: bool,
    },
}

impl RequestError {
    pub(crate) fn other(message: impl Into<String>) -> Self {
        Self::Other {
            message: message.into(),
            kind: ApiErrorKind::Transient,
            after: None,
            is_unavailable: false,
        }
    }

    /// Adds the resource to the message of a failed list. Its kind becomes transient, because it
    /// does not concern the object that the list was needed for.
    pub(crate) fn in_list_of(mut self, resource: &Resource) -> Self {
        if let Self::Other { message, kind, .. } = &mut self {
            *message = format!("failed to list {resource}: {message}");
            *kind = ApiErrorKind::Transient;
        }
        self
    }

    /// Adds the dependent to the message of a failure to remove its reference to an owner.
    pub(crate) fn in_release_of(mut self, dependent: &Identity) -> Self {
        if let Self::Other { message, .. } = &mut self {
            *message = format!("failed to remove the owner reference of {dependent}: {message}");
        }
        self
    }

    /// Returns the delay that the apiserver asks for.
    pub(crate) fn requested_delay(&self) -> Option<Duration> {
        let Self::Other { after, .. } = self else { return None };
        *after
    }

    /// Returns when the queue retries the item whose request failed.
    pub(crate) fn outcome(&self, outage: &Outage) -> Outcome {
        match self {
            Self::Other { after: Some(after), .. } => Outcome::RetryAfter(*after),
            Self::Other {
                is_unavailable: true, ..
            } => Outcome::RetryUnavailable(outage.min_wait()),
            _ => Outcome::Retry,
        }
    }

    /// Returns whether the failure concerns the whole resource: it may not be read, or it is not
    /// served.
    pub(crate) fn concerns_resource(&self) -> bool {
        matches!(
            self,
            Self::Other {
                kind: ApiErrorKind::Forbidden | ApiErrorKind::NotFound,
                ..
            }
        )
    }

    /// Returns whether the request failed without a reason to wait for: a conversion webhook does
    /// not work, for example.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Other {
                kind: ApiErrorKind::Transient,
                after: None,
                ..
            }
        )
    }

    /// Returns whether it is certain that the request has changed nothing.
    pub(crate) fn changed_nothing(&self) -> bool {
        match self {
            Self::NotFound | Self::Conflict => true,
            Self::Reported(_) => false,
            Self::Other { kind, after, .. } => {
                after.is_some()
                    || matches!(
                        kind,
                        ApiErrorKind::Forbidden | ApiErrorKind::Invalid | ApiErrorKind::NotFound | ApiErrorKind::Fenced
                    )
            }
        }
    }

    pub(super) fn of(error: &kube::Error, resource: &Resource, key: &ObjectKey) -> Self {
        if is_object_not_found(error, resource, key) {
            return Self::NotFound;
        }
        match ApiErrorKind::of(error) {
            ApiErrorKind::Conflict => Self::Conflict,
            kind => Self::Other {
                message: error_chain(error),
                kind,
                after: retry_after(error),
                is_unavailable: is_unavailable(error),
            },
        }
    }

    /// Classifies the error of a JSON patch, whose tests may have failed.
    pub(super) fn of_patch(error: &kube::Error, resource: &Resource, key: &ObjectKey) -> Self {
        match (ApiErrorKind::of(error), error) {
            (ApiErrorKind::Invalid, kube::Error::Api(status)) if status.code == 422 && has_no_details(status) => {
                Self::Conflict
            }
            _ => Self::of(error, resource, key),
        }
    }

    /// Returns the error of a patch whose result still has what the patch removes.
    pub(crate) fn restored() -> Self {
        Self::Other {
            message: "the patch succeeded, but an admission policy or webhook has undone it".to_owned(),
            kind: ApiErrorKind::Forbidden,
            after: None,
            is_unavailable: false,
        }
    }

    /// Returns the error of a request that met with a conflict although the object has not changed.
    pub(crate) fn unfounded_conflict() -> Self {
        Self::Other {
            message: "the request met with a conflict, but the object has not changed".to_owned(),
            kind: ApiErrorKind::Forbidden,
            after: None,
            is_unavailable: false,
        }
    }
}

/// Returns whether the status names no object and no cause. The apiserver answers like this when a
/// patch cannot be applied.
fn has_no_details(status: &Status) -> bool {
    let details = status.details.as_ref();
    details.is_none_or(|details| details.causes.is_empty() && details.name.is_empty())
}
