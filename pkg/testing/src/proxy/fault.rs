//! What may happen to a request and to its answer.

use std::time::Duration;

use super::canned::CannedResponse;

/// A fault of one request, whatever the line does to all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The proxy answers in the apiserver's place, which never hears of it.
    Respond(CannedResponse),
    /// The connection breaks. The apiserver never hears of it.
    Cut,
    /// The apiserver does as it is asked, and then the connection breaks instead of its answer.
    DropResponse,
    /// Nothing happens: neither does the apiserver hear of it, nor is anybody told. Healing breaks the connection.
    BlackHole,
    /// The apiserver hears of it so much later.
    DelayRequest(Duration),
    /// Each part of the answer comes so much later: of a watch, its events.
    DelayResponse(Duration),
    /// Who asks for pages of a list gets pages of so many objects, from the apiserver.
    LimitPageSize(u32),
    /// The answer's head comes as it is, and this becomes of its body.
    Body(BodyFault),
}

/// What becomes of a body, from a byte on that is counted from zero. A body that ends before that byte comes as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFault {
    /// The connection breaks there.
    CutAt(u64),
    /// It ends there, as if that were all of it.
    TruncateAt(u64),
    /// Nothing more comes, and nobody is told. Healing breaks the connection.
    StallAt(u64),
    /// From there on it is garbage, of the length that it has. Healing breaks the connection.
    CorruptAt(u64),
    /// It comes in pieces of so many bytes, with a pause before each.
    Throttle {
        /// The most that comes at a time.
        bytes: usize,
        /// How long nothing comes between two pieces.
        pause: Duration,
    },
}
