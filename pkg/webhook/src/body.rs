//! Reads the bodies of requests and sends those of responses, within a limit for all of them
//! together.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use futures::stream;
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The largest body: an update carries two objects, and etcd stores objects of up to 1.5 MiB, to
/// which JSON may add escapes. The limit is that of controller-runtime.
pub(crate) const LARGEST: usize = 7 * 1024 * 1024;
/// The most bytes of all bodies of requests and responses, without those that are free. More than
/// that waits.
const MOST_BUFFERED: usize = 32 * 1024 * 1024;
/// The bytes of each body that do not wait. Nearly all objects are smaller, so that slow clients
/// with large bodies do not delay them.
const FREE: usize = 64 * 1024;
/// The bytes of a response that are handed to the connection at once.
const CHUNK: usize = 64 * 1024;

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
pub(crate) struct Buffers(Arc<Semaphore>);

/// The memory of one request: of its body and of its response.
#[derive(Debug)]
pub(crate) struct Reserved {
    _permit: OwnedSemaphorePermit,
}

impl Default for Buffers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST_BUFFERED)))
    }
}

impl Buffers {
    /// Reads a body. The memory for all of it is reserved before, for the largest if its length is
    /// not known: bodies that each wait for their last bytes would block each other.
    pub(crate) async fn read(&self, mut body: Body) -> Result<(Vec<u8>, Reserved), Error> {
        let length = body.size_hint().exact();
        let length = length.map_or(LARGEST, |length| usize::try_from(length).unwrap_or(usize::MAX));
        if length > LARGEST {
            return Err(Error::TooLong);
        }
        // The body and its response exist at the same time, and are about as long. Far below
        // `u32::MAX`.
        let permits = u32::try_from(2 * length.saturating_sub(FREE)).unwrap_or(u32::MAX);
        let reserved = Arc::clone(&self.0).acquire_many_owned(permits).await;
        let permit = reserved.map_err(|_| Error::Closing)?;
        let mut read = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(Error::Read)?.into_data() else {
                continue;
            };
            if read.len() + data.len() > LARGEST {
                return Err(Error::TooLong);
            }
            if read.capacity() == 0 {
                read.reserve_exact(length.min(LARGEST));
            }
            read.extend_from_slice(&data);
        }
        Ok((read, Reserved { _permit: permit }))
    }
}

impl Reserved {
    /// Returns the body of a response. The memory stays reserved until the client has read it.
    pub(crate) fn into_body(self, response: Vec<u8>) -> Body {
        let rest = (Bytes::from(response), self);
        let chunks = stream::unfold(rest, async |(mut rest, reserved)| {
            let chunk = rest.split_to(rest.len().min(CHUNK));
            (!chunk.is_empty()).then(|| (Ok::<_, std::convert::Infallible>(Frame::data(chunk)), (rest, reserved)))
        });
        Body::new(StreamBody::new(chunks))
    }
}
