//! The request to end.

use tokio_util::sync::CancellationToken;

/// Asks everything that holds a clone to end. Once asked, it stays so.
#[derive(Clone, Debug, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    /// A request that nobody has made yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// One that this one, or [`Shutdown::request`] on the result, makes.
    #[must_use]
    pub fn child(&self) -> Self {
        Self(self.0.child_token())
    }

    /// Makes the request.
    pub fn request(&self) {
        self.0.cancel();
    }

    /// Waits until it is made.
    pub async fn requested(&self) {
        self.0.cancelled().await;
    }

    /// The same request, for those who know tokio's type only.
    pub fn token(&self) -> CancellationToken {
        self.0.clone()
    }
}
