//! Detects outages of the apiserver, and ends the waits that they have caused.
//!
//! Every request of every connection of the process is recorded. While none succeeds, one task
//! probes the apiserver ([`Outage::probe`]). The first probe that succeeds ends the outage, and the
//! waits.

mod state;

use std::time::Duration;

use http::Request;
use kube::Client;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use self::state::OutageState;
pub(crate) use self::state::RequestResult;
use crate::{TimeLimit, is_unavailable};

/// The interval of probes in the first minute without a success.
const PROBE_INTERVAL: Duration = Duration::from_millis(250);
/// The interval of probes after that.
const LONG_PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// How long the short interval applies.
const SHORT_INTERVAL_LIMIT: Duration = Duration::from_mins(1);
/// The time limit of a probe. Then the next probe opens another connection.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time within which all waits end after an outage. It spreads the requests of a process and
/// those of several processes.
const SPREAD: Duration = Duration::from_millis(200);
/// The time that each of many waits adds to [`SPREAD`]. A TLS handshake costs the apiserver about
/// this much.
const SPREAD_EACH: Duration = Duration::from_millis(1);
/// The longest wait during an outage.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// A record of whether requests to the apiserver succeed. Clones share the state; create one per
/// process.
///
/// An outage is a time of at least one second in which every request fails with a 5xx or without a
/// response, those of [`Outage::probe`] included.
#[derive(Clone, Debug, Default)]
pub struct Outage(watch::Sender<OutageState>);

/// The number of outages that have ended. Take it before a request: an outage that ends while the
/// request is in flight then ends the wait after its failure.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct OutageCount(u64);

impl Outage {
    /// Returns how many outages have ended.
    pub fn count(&self) -> OutageCount {
        OutageCount(self.0.borrow().ends)
    }

    /// Returns whether a request has failed and none has succeeded since.
    pub fn is_failing(&self) -> bool {
        self.0.borrow().failing_since().is_some()
    }

    /// Returns whether there is an outage.
    pub fn is_outage(&self) -> bool {
        self.0.borrow().is_outage()
    }

    /// Returns the shortest wait after a request that failed because the apiserver is unavailable:
    /// 30 s during an outage, otherwise zero.
    ///
    /// During an outage, waits last until its end or for 30 s. An apiserver that is starting
    /// rejects requests, or asks to retry them later, and an end of the outage does not end the
    /// waits after such responses.
    pub fn min_wait(&self) -> Duration {
        if self.is_outage() { MAX_WAIT } else { Duration::ZERO }
    }

    /// Waits until another outage than the counted ones has ended, and returns the new count.
    pub async fn next_end(&self, count: OutageCount) -> OutageCount {
        let mut state = self.0.subscribe();
        match state.wait_for(|state| state.ends != count.0).await {
            Ok(state) => OutageCount(state.ends),
            // The sender is part of `self`, so this branch is unreachable.
            Err(_) => count,
        }
    }

    /// Waits until another outage than the counted ones has ended, and then for a random time of
    /// less than 200 ms.
    pub async fn ended(&self, count: OutageCount) {
        self.next_end(count).await;
        sleep(Self::spread()).await;
    }

    /// Waits out the backoff `wait` after a request that failed because the apiserver is
    /// unavailable, and that was sent after `count` was taken. Returns whether the end of an outage
    /// ended the wait.
    ///
    /// The end of an outage ends all of the `waits` that it has caused within a time that grows
    /// with their number, because each may open a connection to an apiserver that has just started.
    pub async fn back_off(&self, wait: Duration, count: OutageCount, waits: usize) -> bool {
        let ended = async {
            self.next_end(count).await;
            sleep(spread_of(waits).mul_f64(fastrand::f64())).await;
        };
        tokio::select! {
            () = ended => true,
            () = sleep(wait.max(self.min_wait())) => false,
        }
    }

    /// Returns a random time within which to end one wait.
    pub fn spread() -> Duration {
        SPREAD.mul_f64(fastrand::f64())
    }

    /// Probes the apiserver while no request succeeds. Never returns. Run it once per process, with
    /// a client whose requests are recorded here.
    ///
    /// With a backoff of up to 30 s, no other request may be sent for a long time. The probe is
    /// `/readyz`, which every account may read (`system:public-info-viewer`). It is sent every
    /// 250 ms, after a minute every 500 ms.
    pub async fn probe(&self, client: &Client) {
        let mut state = self.0.subscribe();
        loop {
            // The sender is part of `self`, so this cannot fail.
            let since = match state.wait_for(|state| state.failing_since().is_some()).await {
                Ok(state) => state.failing_since(),
                Err(_) => None,
            };
            let is_long = since.is_some_and(|since| since.elapsed() >= SHORT_INTERVAL_LIMIT);
            sleep(if is_long { LONG_PROBE_INTERVAL } else { PROBE_INTERVAL }).await;
            if !self.is_failing() {
                continue;
            }
            // The client records the result too, but it does not know that this is a probe.
            let result = match readyz(client).await {
                Ok(()) => RequestResult::Success,
                Err(error) if !is_unavailable(&error) => RequestResult::Rejected,
                Err(_) => RequestResult::Unavailable,
            };
            self.0
                .send_if_modified(|state| state.record_probe(result, Instant::now()));
        }
    }

    /// Records the result of a request that has ended.
    pub(crate) fn record(&self, result: RequestResult) {
        let now = Instant::now();
        self.0.send_if_modified(|state| state.record(result, now));
    }
}

/// Returns the time within which to end this many waits: 1 ms for each, but from 200 ms to 30 s.
fn spread_of(waits: usize) -> Duration {
    let waits = u32::try_from(waits).unwrap_or(u32::MAX);
    SPREAD_EACH.saturating_mul(waits).clamp(SPREAD, MAX_WAIT)
}

/// Asks the apiserver whether it is ready to serve, for at most 5 s.
///
/// # Errors
///
/// Returns an error if it does not answer with a 200.
pub async fn readyz(client: &Client) -> Result<(), kube::Error> {
    let request = Request::get("/readyz")
        .extension(TimeLimit(PROBE_TIMEOUT))
        .body(Vec::new())
        .map_err(kube::Error::HttpError)?;
    client.request_text(request).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_spread_by_their_number() {
        let table = [(0, 200), (55, 200), (1_559, 1_559), (4_700, 4_700), (60_000, 30_000)];
        for (waits, millis) in table {
            assert_eq!(spread_of(waits), Duration::from_millis(millis), "{waits}");
        }
    }
}
