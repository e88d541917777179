//! Lines and items decoded for one reader, for tests.

use super::*;

/// A line of a watch, as one reader receives it.
#[derive(Debug)]
pub(crate) enum Decoded<T> {
    Event { event: Event<T>, version: Option<String> },
    Bookmark { version: Option<String> },
    Failed(Box<kube::core::Status>),
}

pub(crate) fn decode_line<T: WatchedObject>(line: &[u8]) -> Result<Decoded<T>, JsonError> {
    Ok(match read_line(line)? {
        WatchMessage::Event(event) => {
            let (event, version) = decode(event);
            Decoded::Event { event, version }
        }
        WatchMessage::Bookmark { version } => Decoded::Bookmark { version },
        WatchMessage::Failed(status) => Decoded::Failed(status),
    })
}

pub(crate) fn decode_item<T: WatchedObject>(raw: &RawValue) -> Event<T> {
    decode(RawEvent::Listed(raw)).0
}
