//! Works around the defects of `kube-leader-election` 0.44 without changing it.
//!
//! Its `LeaseLock` reads the Lease, compares the time in it with the local clock, and patches
//! without a precondition. This has the following consequences:
//!
//! - The lock may report to two candidates that they acquired an expired Lease.
//! - A renewal can overwrite a takeover.
//! - A candidate whose clock is 20 s ahead takes the Lease from a live leader.
//! - A Lease with an empty field is a permanent error.
//! - The lock uses the holder's name as field manager. The apiserver limits field managers to 128
//!   characters, so a holder with a longer name cannot renew.
//!
//! [`Guard`] is the service under the lock's own client. It shows the lock a Lease with every field
//! filled. The renewal time in it is either now or long ago, according to this process's
//! [`ObservedRecord`]. Writes carry the last known resourceVersion, the full holder name (the lock
//! only distinguishes [`ME`] from other holders), the time of the injected clock, and the program
//! as field manager.
//!
//! A renewal uses the version of the last write and skips the read. Known changes of annotations do
//! not make the renewal stale. This file can be removed once the crate does all of this.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::BodyExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Client, client::Body};
use parking_lot::Mutex;
use portreeve_client::Fence;
use serde_json::{Value, json};
use tokio::sync::watch;
use tower::{BoxError, Service};

use crate::{
    LeaseFence, WallClock, annotations, boot_clock,
    elector::{BootTime, ObservedRecord},
};

/// The holder name that the lock sees for this process.
pub(crate) const ME: &str = "this-process";
/// The holder name that the lock sees for every other holder.
const ANOTHER: &str = "another";

/// The last known Lease, and how to present it to the lock. Clones share their state.
#[derive(Clone)]
pub(crate) struct LeaseCache {
    state: Arc<Mutex<CacheState>>,
    snapshot: watch::Sender<Lease>,
    /// How often the resourceVersion was seen to decrease.
    decreases: watch::Sender<u64>,
}

struct CacheState {
    me: String,
    lease_duration: Duration,
    observed: Option<ObservedRecord>,
    /// The last response to a read or write, or `None` if it is outdated.
    lease: Option<CachedLease>,
    uid: Option<String>,
    attempt: Attempt,
    /// The last write of the current attempt.
    write: Option<LeaseWrite>,
}

/// A write of the Lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseWrite {
    /// When the request started.
    pub(crate) began: BootTime,
    /// The `Date` of the response, if the apiserver has accepted the write.
    pub(crate) date: Option<Timestamp>,
}

/// A response: as the lock sees it, and decoded.
struct CachedLease {
    lease: Value,
    snapshot: Lease,
}

/// The parameters of the next attempt.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attempt {
    /// Whether to read the Lease instead of relying on the cached one.
    pub(crate) live: bool,
    /// Whether the candidate leads. A leader renews, but never takes back a Lease that another
    /// candidate held in the meantime.
    pub(crate) leading: bool,
    /// Whether a candidate that does not lead may take a free Lease.
    pub(crate) may_acquire: bool,
    /// How long to wait after the Lease becomes free, so that other processes can take it.
    pub(crate) acquire_delay: Duration,
}

impl LeaseCache {
    pub(crate) fn new(me: String, lease_duration: Duration) -> Self {
        let state = CacheState {
            me,
            lease_duration,
            observed: None,
            lease: None,
            uid: None,
            attempt: Attempt::default(),
            write: None,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            snapshot: watch::Sender::new(Lease::default()),
            decreases: watch::Sender::new(0),
        }
    }

    /// Starts an attempt: sets how to present the Lease to the lock from now on.
    pub(crate) fn prepare(&self, attempt: Attempt) {
        let mut state = self.state.lock();
        state.attempt = attempt;
        state.write = None;
    }

    /// Returns whether the Lease is free as far as is known, or was not observed yet.
    pub(crate) fn may_be_free(&self, acquire_delay: Duration) -> bool {
        let state = self.state.lock();
        let free_from = |observed: &ObservedRecord| observed.free_from(state.lease_duration) + acquire_delay;
        state
            .observed
            .as_ref()
            .is_none_or(|observed| boot_clock::now() >= free_from(observed))
    }

    /// Returns the last write of the current attempt, if it has sent one.
    pub(crate) fn last_write(&self) -> Option<LeaseWrite> {
        self.state.lock().write
    }

    /// Returns the last observation of the Lease.
    pub(crate) fn observed(&self) -> Option<ObservedRecord> {
        self.state.lock().observed.clone()
    }

    fn me(&self) -> String {
        self.state.lock().me.clone()
    }

    pub(crate) fn uid(&self) -> Option<String> {
        self.state.lock().uid.clone()
    }

    /// Applies a watch event. The event may be older than the last read, which only prolongs the
    /// wait for the Lease.
    pub(crate) fn apply_watch_event(&self, lease: Lease) {
        let record = lease.spec.clone().unwrap_or_default();
        {
            let mut state = self.state.lock();
            state.observed = Some(ObservedRecord::observe(
                state.observed.take(),
                record,
                boot_clock::now(),
            ));
        }
        self.record_write(lease);
    }

    /// Records the response to a write by another part of this process. It does not affect who
    /// leads.
    pub(crate) fn record_write(&self, lease: Lease) {
        self.snapshot
            .send_if_modified(|snapshot| annotations::update(snapshot, lease));
    }

    /// Subscribes to the last known state of the Lease. It has no UID if no Lease is known to
    /// exist.
    pub(crate) fn lease_snapshots(&self) -> watch::Receiver<Lease> {
        self.snapshot.subscribe()
    }

    /// Subscribes to the number of times that the Lease's resourceVersion was seen to decrease.
    pub(crate) fn decreases(&self) -> watch::Receiver<u64> {
        self.decreases.subscribe()
    }

    /// Applies the watch's DELETED event.
    pub(crate) fn apply_delete_event(&self, last: Lease) {
        {
            let mut state = self.state.lock();
            state.lease = None;
            state.observed = Some(ObservedRecord::observe_missing(
                state.observed.take(),
                &state.me,
                boot_clock::now(),
            ));
        }
        self.snapshot
            .send_if_modified(|snapshot| annotations::mark_deleted(snapshot, last));
    }

    /// Records the response to a read or write. `known_at_request` is the revision that was known
    /// when the request was sent.
    fn record_response(&self, lease: &Value, known_at_request: Option<u64>) -> Result<(), BoxError> {
        let snapshot: Lease = serde_json::from_value(lease.clone())?;
        let record = snapshot.spec.clone().unwrap_or_default();
        if annotations::is_older_than(&snapshot, known_at_request) {
            self.decreases.send_modify(|count| *count += 1);
        }
        self.snapshot
            .send_if_modified(|known| annotations::update_from_response(known, snapshot.clone(), known_at_request));
        let mut state = self.state.lock();
        state.observed = Some(ObservedRecord::observe(
            state.observed.take(),
            record,
            boot_clock::now(),
        ));
        state.uid.clone_from(&snapshot.metadata.uid);
        state.lease = Some(CachedLease {
            lease: lease.clone(),
            snapshot,
        });
        Ok(())
    }

    /// Returns the known revision of the Lease.
    fn revision(&self) -> Option<u64> {
        annotations::revision(&self.snapshot.borrow())
    }

    fn invalidate(&self) {
        self.state.lock().lease = None;
    }

    /// Returns an existing Lease in the form that the lock sees.
    fn lease_for_lock(&self, lease: &Value) -> Value {
        let state = self.state.lock();
        let observed = state.observed.clone().unwrap_or_default();
        let renewed = if state.is_free(&observed, boot_clock::now()) {
            Timestamp::UNIX_EPOCH
        } else {
            Timestamp::now()
        };
        let holder = match observed.holder() {
            Some(holder) if holder == state.me => ME,
            Some(_) => ANOTHER,
            None => "",
        };
        let own_seconds = i32::try_from(state.lease_duration.as_secs()).unwrap_or(i32::MAX);
        let mut lease = lease.clone();
        lease["spec"] = json!({
            "holderIdentity": holder,
            "leaseDurationSeconds": observed.record.lease_duration_seconds.unwrap_or(own_seconds),
            "leaseTransitions": observed.record.lease_transitions.unwrap_or(0),
            "renewTime": format_micro_time(renewed),
        });
        lease
    }

    /// Records that a read did not find the Lease. If this process may not create it yet, returns a
    /// held Lease to present to the lock instead.
    fn held_placeholder(&self, known_at_request: Option<u64>) -> Option<Value> {
        self.snapshot
            .send_if_modified(|snapshot| annotations::mark_not_found(snapshot, known_at_request));
        let mut state = self.state.lock();
        state.lease = None;
        let observed = ObservedRecord::observe_missing(state.observed.take(), &state.me, boot_clock::now());
        let is_free = state.is_free(&observed, boot_clock::now());
        state.observed = Some(observed);
        drop(state);
        let nothing = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {}});
        (!is_free).then(|| self.lease_for_lock(&nothing))
    }

    /// Returns the cached Lease, unless the attempt must read it.
    fn cached_lease(&self) -> Option<Value> {
        let state = self.state.lock();
        let known = state.lease.as_ref().filter(|_| !state.attempt.live);
        known.map(|known| known.lease.clone())
    }

    /// Returns the resourceVersion for a write, if it is known. It is never empty, because the
    /// apiserver ignores an empty one.
    fn version(&self) -> Option<Value> {
        let state = self.state.lock();
        let known = state.lease.as_ref()?;
        let snapshot = self.snapshot.borrow();
        let version = annotations::version_for(&snapshot, &known.snapshot);
        (!version.is_empty()).then(|| Value::from(version))
    }
}

impl CacheState {
    fn is_free(&self, observed: &ObservedRecord, now: BootTime) -> bool {
        if self.attempt.leading && observed.holder().is_some() {
            return false;
        }
        if !self.attempt.leading && !self.attempt.may_acquire {
            return false;
        }
        now >= observed.free_from(self.lease_duration) + self.attempt.acquire_delay
    }
}

/// Formats a time with microseconds, as in Leases.
fn format_micro_time(time: Timestamp) -> String {
    format!("{time:.6}")
}

/// The service under the lock's client.
#[derive(Clone)]
pub(crate) struct Guard {
    pub(crate) inner: Client,
    pub(crate) cache: LeaseCache,
    /// The fence that examines the responses.
    pub(crate) fence: LeaseFence,
    /// The wall clock for the times written into the Lease. No decision depends on it.
    pub(crate) wall: WallClock,
    /// The field manager of the writes.
    pub(crate) manager: &'static str,
}

/// The reasons why the guard rejects a request of the lock.
#[derive(Debug, thiserror::Error)]
enum Error {
    /// No version is known, for example because the Lease was deleted after the read.
    #[error("cannot patch the Lease safely because it was not read before")]
    NotRead,
    /// Version 0.44 of the crate sends no such request.
    #[error("cannot guard a {0} request on the Lease; expected GET, PATCH or POST")]
    Method(Method),
}

impl Service<Request<Body>> for Guard {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // The inner client waits for its own readiness when it sends.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let guard = self.clone();
        Box::pin(async move {
            match *request.method() {
                Method::GET => guard.read(request).await,
                Method::PATCH | Method::POST => guard.write(request).await,
                ref other => Err(Error::Method(other.clone()).into()),
            }
        })
    }
}

impl Guard {
    async fn read(self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        if let Some(lease) = self.cache.cached_lease() {
            return ok_response(&self.cache.lease_for_lock(&lease));
        }
        let known_at_request = self.cache.revision();
        let response = self.inner.send(request).await?;
        self.fence.observe(response.headers());
        match response.status() {
            StatusCode::OK => {
                let lease = parse_body(response).await?;
                self.cache.record_response(&lease, known_at_request)?;
                ok_response(&self.cache.lease_for_lock(&lease))
            }
            StatusCode::NOT_FOUND => match self.cache.held_placeholder(known_at_request) {
                Some(lease) => ok_response(&lease),
                None => Ok(response),
            },
            _ => Ok(response),
        }
    }

    async fn write(self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let (mut parts, body) = request.into_parts();
        let mut lease: Value = serde_json::from_slice(&body.collect().await?.to_bytes())?;
        if parts.method == Method::PATCH {
            lease["metadata"]["resourceVersion"] = self.cache.version().ok_or(Error::NotRead)?;
        }
        let now = format_micro_time((self.wall)());
        for time in ["acquireTime", "renewTime"] {
            if let Some(written) = lease["spec"].get_mut(time) {
                *written = Value::from(&*now);
            }
        }
        if let Some(holder) = lease["spec"].get_mut("holderIdentity").filter(|holder| **holder == ME) {
            *holder = Value::from(self.cache.me());
        }
        let query = format!("{}?fieldManager={}", parts.uri.path(), self.manager);
        parts.uri = Uri::try_from(query)?;
        parts.headers.remove(header::CONTENT_LENGTH);
        let body = Body::from(serde_json::to_vec(&lease)?);
        let known_at_request = self.cache.revision();
        let mut write = LeaseWrite {
            began: boot_clock::now(),
            date: None,
        };
        self.cache.state.lock().write = Some(write);
        let response = self.inner.send(Request::from_parts(parts, body)).await;
        // Without a response, the write may not have happened. The next one has the same
        // precondition, so it is safe to send it without another read.
        let response = response?;
        self.cache.invalidate();
        if !response.status().is_success() {
            self.fence.observe(response.headers());
            return Ok(response);
        }
        write.date = portreeve_client::date(response.headers());
        self.cache.state.lock().write = Some(write);
        let lease = parse_body(response).await?;
        self.cache.record_response(&lease, known_at_request)?;
        ok_response(&lease)
    }
}

async fn parse_body(response: Response<Body>) -> Result<Value, BoxError> {
    let body = response.into_body().collect().await?.to_bytes();
    Ok(serde_json::from_slice(&body)?)
}

fn ok_response(lease: &Value) -> Result<Response<Body>, BoxError> {
    Ok(Response::new(Body::from(serde_json::to_vec(lease)?)))
}

#[cfg(test)]
mod corpus;
#[cfg(test)]
mod tests;
