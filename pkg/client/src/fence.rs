//! The gate that every mutating request passes before it leaves.

use tokio::time::Instant;

/// Decides whether this process may change anything now.
///
/// Asked once for each mutating request, after the wait for the rate limit. Leader election implements it: who does not lead does not
/// write.
///
/// Between its word and the wire there may still be a refresh of the credentials, a look-up of the apiserver's name, a TCP connection
/// and a TLS handshake: seconds, when the network is bad. The time that [`Fence::admit`] returns bounds them all: at that time the
/// request is dropped wherever it is, sent or not.
///
/// Whatever is no GET, HEAD or OPTIONS counts as mutating. Reviews (`TokenReview`, `SubjectAccessReview`) change nothing and are POSTs: who
/// has to send them without leading needs a connection with a fence of its own that lets them pass.
pub trait Fence: Send + Sync + 'static {
    /// Lets a request through, until when: a request still under way at that time is dropped. `None` sets no end.
    ///
    /// # Errors
    ///
    /// [`Fenced`] says why nothing may be written now. The queue backs off and asks again.
    fn admit(&self) -> Result<Option<Instant>, Fenced>;
}

/// A write was refused before it left this process.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not sent: {0}")]
pub struct Fenced(pub &'static str);

/// The fence of a process that need not lead: everything passes.
#[derive(Clone, Copy, Debug, Default)]
pub struct AlwaysOpen;

impl Fence for AlwaysOpen {
    fn admit(&self) -> Result<Option<Instant>, Fenced> {
        Ok(None)
    }
}

/// The fence of `--dry-run`: nothing passes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadOnly;

impl Fence for ReadOnly {
    fn admit(&self) -> Result<Option<Instant>, Fenced> {
        Err(Fenced("--dry-run writes nothing"))
    }
}
