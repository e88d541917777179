//! Faults in response bodies.

use std::io;

use bytes::{Bytes, BytesMut};
use futures::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::fault::BodyFault;
use super::rules::{RuleId, Rules};

/// The error that breaks a connection.
pub(crate) type Broken = Box<dyn std::error::Error + Send + Sync>;

/// A response body for a client.
pub(crate) type Body = UnsyncBoxBody<Bytes, Broken>;

/// The mask that corrupts a byte. No byte of JSON stays valid in its place.
const GARBAGE: u8 = 0x80;

/// Returns the error of a connection that a fault breaks.
pub(crate) fn broken() -> Broken {
    Box::new(io::Error::from(io::ErrorKind::ConnectionReset))
}

/// Signals that the rule of a fault was healed.
#[derive(Clone)]
pub(crate) struct HealSignal {
    rules: watch::Receiver<Rules>,
    rule: RuleId,
}

impl HealSignal {
    /// Returns the signal for a fault of this rule.
    pub(crate) fn of(rule: RuleId, rules: &watch::Sender<Rules>) -> Self {
        let rules = rules.subscribe();
        Self { rules, rule }
    }

    /// Returns whether the rule was healed.
    pub(crate) fn is_healed(&self) -> bool {
        self.rules.borrow().is_healed(self.rule)
    }

    /// Waits until the rule is healed.
    pub(crate) async fn healed(mut self) {
        // If the sender is gone, nothing can heal the rule, and the connection ends too.
        let _ = self.rules.wait_for(|rules| rules.is_healed(self.rule)).await;
    }
}

/// A body and its read position.
struct FaultyBody {
    body: Incoming,
    rest: Bytes,
    passed: u64,
    is_over: bool,
}

impl FaultyBody {
    /// Returns the next bytes, or `None` at the end of the body.
    async fn next(&mut self) -> Option<Result<Bytes, Broken>> {
        while self.rest.is_empty() {
            match self.body.frame().await? {
                // The apiserver sends no trailers, so they are ignored.
                Ok(frame) => self.rest = frame.into_data().unwrap_or_default(),
                Err(error) => return Some(Err(error.into())),
            }
        }
        Some(Ok(std::mem::take(&mut self.rest)))
    }

    /// Returns the next bytes before the offset `at`, or `None` at that offset or at the end.
    async fn next_before(&mut self, at: u64) -> Option<Result<Bytes, Broken>> {
        let left = usize::try_from(at - self.passed).unwrap_or(usize::MAX);
        if left == 0 {
            return None;
        }
        let mut data = match self.next().await? {
            Ok(data) => data,
            Err(error) => return Some(Err(error)),
        };
        if data.len() > left {
            self.rest = data.split_off(left);
        }
        self.passed += data.len() as u64;
        Some(Ok(data))
    }
}

/// Applies a fault to a response body. A fault that has not taken effect before it is healed has no
/// effect.
pub(crate) fn apply_fault(body: Incoming, how: BodyFault, heal_signal: HealSignal) -> Body {
    let state = FaultyBody {
        body,
        rest: Bytes::new(),
        passed: 0,
        is_over: false,
    };
    let next = move |mut state: FaultyBody| {
        let heal_signal = heal_signal.clone();
        async move {
            let part = if state.is_over {
                None
            } else {
                part(&mut state, how, heal_signal).await
            };
            state.is_over = part.as_ref().is_none_or(Result::is_err);
            part.map(|part| (part.map(Frame::data), state))
        }
    };
    StreamBody::new(stream::unfold(state, next)).boxed_unsync()
}

async fn part(state: &mut FaultyBody, how: BodyFault, heal_signal: HealSignal) -> Option<Result<Bytes, Broken>> {
    if heal_signal.is_healed() && !matches!(how, BodyFault::CorruptAt(at) if state.passed == at) {
        return state.next().await;
    }
    match how {
        BodyFault::CutAt(at) => {
            if let Some(data) = state.next_before(at).await {
                return Some(data);
            }
            if state.passed < at {
                return None;
            }
            // Let the connection write the previous bytes first.
            yield_now().await;
            Some(Err(broken()))
        }
        BodyFault::TruncateAt(at) => state.next_before(at).await,
        BodyFault::StallAt(at) => {
            if let Some(data) = state.next_before(at).await {
                return Some(data);
            }
            if state.passed < at {
                return None;
            }
            heal_signal.healed().await;
            Some(Err(broken()))
        }
        BodyFault::CorruptAt(at) => {
            if state.passed < at
                && let Some(data) = state.next_before(at).await
            {
                return Some(data);
            }
            let data = tokio::select! {
                () = heal_signal.healed() => return Some(Err(broken())),
                data = state.next() => data?,
            };
            Some(data.map(|data| {
                let garbled: BytesMut = data.iter().map(|byte| byte ^ GARBAGE).collect();
                garbled.freeze()
            }))
        }
        BodyFault::Throttle { bytes, pause } => {
            sleep(pause).await;
            state.next_before(state.passed + bytes as u64).await
        }
    }
}
