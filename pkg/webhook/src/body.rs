//! Reads the bodies of requests within limits.

use axum::body::Body;
use http_body_util::BodyExt;
use tokio::sync::{Semaphore, SemaphorePermit};

/// The largest body: an update carries two objects, and etcd stores objects of up to 1.5 MiB, to
/// which JSON may add escapes. The limit is that of controller-runtime.
pub(crate) const LARGEST: usize = 7 * 1024 * 1024;
/// The most bytes of all bodies that are being read, without those that are free. More than that
/// waits.
const MOST_BUFFERED: usize = 32 * 1024 * 1024;
/// The bytes of each body that do not wait. Nearly all objects are smaller, so that slow clients
/// with large bodies do not delay them.
const FREE: usize = 64 * 1024;

/// A body that cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the body is longer than {LARGEST} bytes")]
    TooLong,
    #[error("the body cannot be read: {0}")]
    Read(axum::Error),
    #[error("the listener is closing")]
    Closing,
}

/// Bounds the memory of all bodies together, whoever sends them.
#[derive(Debug)]
pub(crate) struct Buffers(Semaphore);

impl Default for Buffers {
    fn default() -> Self {
        Self(Semaphore::new(MOST_BUFFERED))
    }
}

impl Buffers {
    /// Reads a body. The permits are for its memory.
    pub(crate) async fn read(&self, mut body: Body) -> Result<(Vec<u8>, Vec<SemaphorePermit<'_>>), Error> {
        let (mut read, mut permits) = (Vec::new(), Vec::new());
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(Error::Read)?.into_data() else {
                continue;
            };
            if read.len() + data.len() > LARGEST {
                return Err(Error::TooLong);
            }
            let (before, after) = (read.len().max(FREE), (read.len() + data.len()).max(FREE));
            // At most `LARGEST`, which is far below `u32::MAX`.
            let length = u32::try_from(after - before).unwrap_or(u32::MAX);
            permits.push(self.0.acquire_many(length).await.map_err(|_| Error::Closing)?);
            read.extend_from_slice(&data);
        }
        Ok((read, permits))
    }
}
