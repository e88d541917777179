//! The check that every mutating request passes before it is sent.

use http::HeaderMap;
use tokio::time::Instant;

/// Decides whether this process may write now.
///
/// The client checks the fence once for each mutating request, after the rate limiter. Leader
/// election implements it, so that only the leader writes.
///
/// After the check, the request may still wait for a credential refresh, a DNS lookup, a TCP
/// connection and a TLS handshake. On a bad network this takes seconds. The time that
/// [`Fence::admit`] returns bounds all of it: the client drops the request at that time, whether it
/// was sent or not.
///
/// Every method except GET, HEAD and OPTIONS counts as mutating. Reviews (`TokenReview`,
/// `SubjectAccessReview`) are POSTs that change nothing. A component that must send them without
/// leading needs a connection with its own fence that admits them.
pub trait Fence: Send + Sync + 'static {
    /// Admits a request and returns the time at which the client must drop it if it is still in
    /// flight. `None` sets no deadline.
    ///
    /// # Errors
    ///
    /// Returns [`Fenced`] with the reason when this process must not write. The queue retries with
    /// backoff.
    fn admit(&self) -> Result<Option<Instant>, Fenced>;

    /// Examines the headers of the response to a request behind this fence, also of a read. A
    /// response with an unexpected `Date` may close the fence.
    fn observe(&self, _response: &HeaderMap) {}
}

/// A write that the fence rejected before it left this process.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not sent: {0}")]
pub struct Fenced(pub &'static str);

/// The fence of a process that needs no leadership. It admits everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct AlwaysOpen;

impl Fence for AlwaysOpen {
    fn admit(&self) -> Result<Option<Instant>, Fenced> {
        Ok(None)
    }
}

/// The fence of `--dry-run`. It admits nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadOnly;

impl Fence for ReadOnly {
    fn admit(&self) -> Result<Option<Instant>, Fenced> {
        Err(Fenced("--dry-run writes nothing"))
    }
}
