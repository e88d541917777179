//! The shutdown request.

use tokio_util::sync::CancellationToken;

/// A shared shutdown request. Once requested, it stays requested for all clones.
#[derive(Clone, Debug, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    /// Creates a shutdown that has not been requested.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a shutdown that is requested together with this one, or on its own through
    /// [`Shutdown::request`].
    #[must_use]
    pub fn child(&self) -> Self {
        Self(self.0.child_token())
    }

    /// Requests the shutdown.
    pub fn request(&self) {
        self.0.cancel();
    }

    /// Waits until the shutdown is requested.
    pub async fn requested(&self) {
        self.0.cancelled().await;
    }

    /// Returns the underlying token, for code that takes tokio's type.
    pub fn token(&self) -> CancellationToken {
        self.0.clone()
    }
}
