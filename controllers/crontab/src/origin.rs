//! Why Jobs exist.

use jiff::Timestamp;

/// Why a Job exists.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Origin {
    /// It was created for this time of the schedule of this name.
    Scheduled(Box<str>, Timestamp),
    /// A user requested the run by setting the annotation to this value.
    RunNow(Box<str>),
    /// A user created the Job and annotated it as manual, as `kubectl create job --from` does.
    Manual,
    /// Neither the name nor the annotations show why.
    Unknown,
}
