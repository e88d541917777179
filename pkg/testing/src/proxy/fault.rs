//! The faults that the proxy applies to single requests and their responses.

use std::time::Duration;

use super::canned::CannedResponse;

/// A fault of one request, independent of the mode of the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The proxy responds itself and does not forward the request.
    Respond(CannedResponse),
    /// The connection breaks, and the proxy does not forward the request.
    Cut,
    /// The apiserver handles the request, and then the connection breaks without a response.
    DropResponse,
    /// The proxy holds the request without forwarding it or closing the connection. Healing breaks
    /// the connection.
    BlackHole,
    /// The connection breaks at once, and healing forwards the request. Its sender cannot take it
    /// back, as when another proxy on the way holds it.
    ForwardLate,
    /// The proxy forwards the request after this delay.
    DelayRequest(Duration),
    /// The proxy delays each part of the response, for example each event of a watch.
    DelayResponse(Duration),
    /// The `Date` of the response is this much later.
    LaterDate(Duration),
    /// Paged lists get pages of this size from the apiserver.
    LimitPageSize(u32),
    /// The head of the response is unchanged, and the body gets this fault.
    Body(BodyFault),
}

/// A fault of a response body, starting at a byte offset. A shorter body is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFault {
    /// The connection breaks at this offset.
    CutAt(u64),
    /// The body ends regularly at this offset.
    TruncateAt(u64),
    /// Nothing arrives after this offset, and the connection stays open. Healing breaks it.
    StallAt(u64),
    /// The bytes from this offset are garbage; the length is unchanged. Healing breaks the
    /// connection.
    CorruptAt(u64),
    /// The body arrives in small pieces, with a pause before each.
    Throttle {
        /// The maximum size of a piece in bytes.
        bytes: usize,
        /// The pause before each piece.
        pause: Duration,
    },
}
