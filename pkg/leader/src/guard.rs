//! What `kube-leader-election` 0.44 lacks, put around it without changing it.
//!
//! Its `LeaseLock` reads the Lease, decides by comparing the time written there with the local clock, and patches without a precondition:
//! two candidates can both be told that they acquired an expired Lease, a renewal can win against a takeover, a clock that is 20 s ahead
//! steals from a live leader, a Lease with an empty field is an error for ever, and the holder's name, which may be longer than 128 bytes,
//! is used as field manager, which may not: such a holder cannot renew.
//!
//! [`Guard`] is the service under the lock's own client. Reads come out of it as the lock has to see them: with every field filled, and
//! with a renewal time that is now or long ago, as the [`ObservedRecord`] of this process says. Writes go through it with the resourceVersion that
//! was last read, the holder's whole name (the lock only knows [`ME`] and others), the time of the injected clock, and the program as
//! field manager. A renewal relies on what was last written and does without the read; annotations that have changed since, as far as that
//! was heard, do not make it stale. When the crate does all of this, this file goes.

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
use serde_json::{Value, json};
use tokio::sync::watch;
use tower::{BoxError, Service};

use crate::{
    WallClock,
    annotations::LeaseSnapshot,
    boot_clock,
    elector::{BootTime, ObservedRecord},
};

/// What the lock takes this process to be called.
pub(crate) const ME: &str = "this-process";
/// And everybody else.
const ANOTHER: &str = "another";

/// What is known of the Lease, and how the lock is to see it. Cheap to clone; all clones are one.
#[derive(Clone)]
pub(crate) struct LeaseCache {
    state: Arc<Mutex<CacheState>>,
    snapshot: watch::Sender<LeaseSnapshot>,
}

struct CacheState {
    me: String,
    lease_duration: Duration,
    observed: Option<ObservedRecord>,
    /// As it was last read or written, and not known to be gone since.
    lease: Option<Known>,
    uid: Option<String>,
    attempt: Attempt,
}

/// An answer, and what of it concerns others than the lock.
struct Known {
    lease: Value,
    snapshot: LeaseSnapshot,
}

/// How the next attempt goes about it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attempt {
    /// Read the Lease instead of relying on what is known of it.
    pub(crate) live: bool,
    /// Who leads renews, and never takes a Lease back that was another's meanwhile.
    pub(crate) leading: bool,
    /// How much longer than necessary a free Lease is left to others.
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
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            snapshot: watch::Sender::new(LeaseSnapshot::default()),
        }
    }

    /// How the lock is to see the Lease from now on.
    pub(crate) fn prepare(&self, attempt: Attempt) {
        self.state.lock().attempt = attempt;
    }

    /// The Lease as it was last seen.
    pub(crate) fn observed(&self) -> Option<ObservedRecord> {
        self.state.lock().observed.clone()
    }

    fn me(&self) -> String {
        self.state.lock().me.clone()
    }

    pub(crate) fn uid(&self) -> Option<String> {
        self.state.lock().uid.clone()
    }

    /// The watch has seen the Lease. What it tells may be older than what was read: that only prolongs the wait for it.
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

    /// Somebody in this process has written to the Lease, and this was the answer. It says nothing about who leads.
    pub(crate) fn record_write(&self, lease: Lease) {
        self.snapshot.send_if_modified(|snapshot| snapshot.update(lease.into()));
    }

    /// What is noted on the Lease, now and from now on.
    pub(crate) fn lease_snapshots(&self) -> watch::Receiver<LeaseSnapshot> {
        self.snapshot.subscribe()
    }

    /// The watch has seen the Lease's end.
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
            .send_if_modified(|snapshot| snapshot.mark_deleted(last.into()));
    }

    /// The Lease was read or written, and this was the answer; `asked` is the revision that was known before.
    fn record_response(&self, lease: &Value, asked: Option<u64>) -> Result<(), BoxError> {
        let read: Lease = serde_json::from_value(lease.clone())?;
        let record = read.spec.clone().unwrap_or_default();
        let snapshot = LeaseSnapshot::from(read);
        self.snapshot
            .send_if_modified(|known| known.update_from_response(snapshot.clone(), asked));
        let mut state = self.state.lock();
        state.observed = Some(ObservedRecord::observe(
            state.observed.take(),
            record,
            boot_clock::now(),
        ));
        state.uid.clone_from(&snapshot.uid);
        state.lease = Some(Known {
            lease: lease.clone(),
            snapshot,
        });
        Ok(())
    }

    /// Which revision of the Lease is known.
    fn revision(&self) -> Option<u64> {
        self.snapshot.borrow().revision()
    }

    fn invalidate(&self) {
        self.state.lock().lease = None;
    }

    /// What the lock gets to see of a Lease that exists.
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
        let own = i32::try_from(state.lease_duration.as_secs()).unwrap_or(i32::MAX);
        let mut lease = lease.clone();
        lease["spec"] = json!({
            "holderIdentity": holder,
            "leaseDurationSeconds": observed.record.lease_duration_seconds.unwrap_or(own),
            "leaseTransitions": observed.record.lease_transitions.unwrap_or(0),
            "renewTime": stamp(renewed),
        });
        lease
    }

    /// What is shown instead of nothing, while a Lease that does not exist is not ours to make.
    fn held_placeholder(&self, asked: Option<u64>) -> Option<Value> {
        self.snapshot
            .send_if_modified(|snapshot| snapshot.mark_not_found(asked));
        let mut state = self.state.lock();
        state.lease = None;
        let observed = ObservedRecord::observe_missing(state.observed.take(), &state.me, boot_clock::now());
        let is_free = state.is_free(&observed, boot_clock::now());
        state.observed = Some(observed);
        drop(state);
        let nothing = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {}});
        (!is_free).then(|| self.lease_for_lock(&nothing))
    }

    /// What a renewal need not read.
    fn cached_lease(&self) -> Option<Value> {
        let state = self.state.lock();
        let known = state.lease.as_ref().filter(|_| !state.attempt.live);
        known.map(|known| known.lease.clone())
    }

    /// What a write relies on. An empty version would be no precondition.
    fn version(&self) -> Option<Value> {
        let state = self.state.lock();
        let known = state.lease.as_ref()?;
        let snapshot = self.snapshot.borrow();
        let version = snapshot.version_for(&known.snapshot);
        (!version.is_empty()).then(|| Value::from(version))
    }
}

impl CacheState {
    fn is_free(&self, observed: &ObservedRecord, now: BootTime) -> bool {
        if self.attempt.leading && observed.holder().is_some() {
            return false;
        }
        now >= observed.free_from(self.lease_duration) + self.attempt.acquire_delay
    }
}

/// Micro time, as Leases have it.
fn stamp(time: Timestamp) -> String {
    format!("{time:.6}")
}

/// The service under the lock's client.
#[derive(Clone)]
pub(crate) struct Guard {
    pub(crate) inner: Client,
    pub(crate) cache: LeaseCache,
    /// The time of day, to write into the Lease. Nothing is decided by it.
    pub(crate) wall: WallClock,
    /// Who owns the fields that are written.
    pub(crate) manager: &'static str,
}

/// What the lock asked for cannot be guarded. It would be a change in the crate.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("the Lease is patched though it was not read")]
    NotRead,
    #[error("{0} is nothing that a lock does to a Lease")]
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
            return answer(&self.cache.lease_for_lock(&lease));
        }
        let asked = self.cache.revision();
        let response = self.inner.send(request).await?;
        match response.status() {
            StatusCode::OK => {
                let lease = parsed(response).await?;
                self.cache.record_response(&lease, asked)?;
                answer(&self.cache.lease_for_lock(&lease))
            }
            StatusCode::NOT_FOUND => match self.cache.held_placeholder(asked) {
                Some(lease) => answer(&lease),
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
        let now = stamp((self.wall)());
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
        let asked = self.cache.revision();
        let response = self.inner.send(Request::from_parts(parts, body)).await;
        // Whatever became of it: what was read before is not relied on any more.
        self.cache.invalidate();
        let response = response?;
        if !response.status().is_success() {
            return Ok(response);
        }
        let lease = parsed(response).await?;
        self.cache.record_response(&lease, asked)?;
        answer(&lease)
    }
}

async fn parsed(response: Response<Body>) -> Result<Value, BoxError> {
    let body = response.into_body().collect().await?.to_bytes();
    Ok(serde_json::from_slice(&body)?)
}

fn answer(lease: &Value) -> Result<Response<Body>, BoxError> {
    Ok(Response::new(Body::from(serde_json::to_vec(lease)?)))
}

#[cfg(test)]
mod corpus;
#[cfg(test)]
mod tests;
