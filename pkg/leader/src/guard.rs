//! What `kube-leader-election` 0.44 lacks, put around it without changing it.
//!
//! Its `LeaseLock` reads the Lease, decides by comparing the time written there with the local clock, and patches without a precondition:
//! two candidates can both be told that they acquired an expired Lease, a renewal can win against a takeover, a clock that is 20 s ahead
//! steals from a live leader, a Lease with an empty field is an error for ever, and the holder's name, which may be longer than 128 bytes,
//! is used as field manager, which may not: such a holder cannot renew.
//!
//! [`Guard`] is the service under the lock's own client. Reads come out of it as the lock has to see them: with every field filled, and
//! with a renewal time that is now or long ago, as the [`Sight`] of this process says. Writes go through it with the resourceVersion that
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
    Wall, boot,
    elector::{Moment, Sight},
    notes::Noted,
};

/// What the lock takes this process to be called.
pub(crate) const ME: &str = "this-process";
/// And everybody else.
const ANOTHER: &str = "another";

/// What is known of the Lease, and how the lock is to see it. Cheap to clone; all clones are one.
#[derive(Clone)]
pub(crate) struct Book {
    page: Arc<Mutex<Page>>,
    noted: watch::Sender<Noted>,
}

struct Page {
    me: String,
    lease_duration: Duration,
    sight: Option<Sight>,
    /// As it was last read or written, and not known to be gone since.
    lease: Option<Known>,
    uid: Option<String>,
    attempt: Attempt,
}

/// An answer, and what of it concerns others than the lock.
struct Known {
    lease: Value,
    noted: Noted,
}

/// How the next attempt goes about it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attempt {
    /// Read the Lease instead of relying on what is known of it.
    pub(crate) live: bool,
    /// Who leads renews, and never takes a Lease back that was another's meanwhile.
    pub(crate) leading: bool,
    /// How much longer than necessary a free Lease is left to others.
    pub(crate) patience: Duration,
}

impl Book {
    pub(crate) fn new(me: String, lease_duration: Duration) -> Self {
        let page = Page {
            me,
            lease_duration,
            sight: None,
            lease: None,
            uid: None,
            attempt: Attempt::default(),
        };
        Self {
            page: Arc::new(Mutex::new(page)),
            noted: watch::Sender::new(Noted::default()),
        }
    }

    /// How the lock is to see the Lease from now on.
    pub(crate) fn prepare(&self, attempt: Attempt) {
        self.page.lock().attempt = attempt;
    }

    /// The Lease as it was last seen.
    pub(crate) fn sight(&self) -> Option<Sight> {
        self.page.lock().sight.clone()
    }

    fn me(&self) -> String {
        self.page.lock().me.clone()
    }

    pub(crate) fn uid(&self) -> Option<String> {
        self.page.lock().uid.clone()
    }

    /// The watch has seen the Lease. What it tells may be older than what was read: that only prolongs the wait for it.
    pub(crate) fn watched(&self, lease: Lease) {
        let record = lease.spec.clone().unwrap_or_default();
        {
            let mut page = self.page.lock();
            page.sight = Some(Sight::of(page.sight.take(), record, boot::now()));
        }
        self.heard(lease);
    }

    /// Somebody in this process has written to the Lease, and this was the answer. It says nothing about who leads.
    pub(crate) fn heard(&self, lease: Lease) {
        self.noted.send_if_modified(|noted| noted.hear(lease.into()));
    }

    /// What is noted on the Lease, now and from now on.
    pub(crate) fn notes(&self) -> watch::Receiver<Noted> {
        self.noted.subscribe()
    }

    /// The watch has seen the Lease's end.
    pub(crate) fn deleted(&self, last: Lease) {
        {
            let mut page = self.page.lock();
            page.lease = None;
            page.sight = Some(Sight::of_nothing(page.sight.take(), &page.me, boot::now()));
        }
        self.noted.send_if_modified(|noted| noted.end(last.into()));
    }

    /// The Lease was read or written, and this was the answer; `asked` is the revision that was known before.
    fn read(&self, lease: &Value, asked: Option<u64>) -> Result<(), BoxError> {
        let read: Lease = serde_json::from_value(lease.clone())?;
        let record = read.spec.clone().unwrap_or_default();
        let noted = Noted::from(read);
        self.noted.send_if_modified(|known| known.answer(noted.clone(), asked));
        let mut page = self.page.lock();
        page.sight = Some(Sight::of(page.sight.take(), record, boot::now()));
        page.uid.clone_from(&noted.uid);
        page.lease = Some(Known {
            lease: lease.clone(),
            noted,
        });
        Ok(())
    }

    /// Which revision of the Lease is known.
    fn revision(&self) -> Option<u64> {
        self.noted.borrow().revision()
    }

    fn forget(&self) {
        self.page.lock().lease = None;
    }

    /// What the lock gets to see of a Lease that exists.
    fn shown(&self, lease: &Value) -> Value {
        let page = self.page.lock();
        let sight = page.sight.clone().unwrap_or_default();
        let renewed = if page.is_free(&sight, boot::now()) {
            Timestamp::UNIX_EPOCH
        } else {
            Timestamp::now()
        };
        let holder = match sight.holder() {
            Some(holder) if holder == page.me => ME,
            Some(_) => ANOTHER,
            None => "",
        };
        let own = i32::try_from(page.lease_duration.as_secs()).unwrap_or(i32::MAX);
        let mut lease = lease.clone();
        lease["spec"] = json!({
            "holderIdentity": holder,
            "leaseDurationSeconds": sight.record.lease_duration_seconds.unwrap_or(own),
            "leaseTransitions": sight.record.lease_transitions.unwrap_or(0),
            "renewTime": stamp(renewed),
        });
        lease
    }

    /// What is shown instead of nothing, while a Lease that does not exist is not ours to make.
    fn shown_instead(&self, asked: Option<u64>) -> Option<Value> {
        self.noted.send_if_modified(|noted| noted.miss(asked));
        let mut page = self.page.lock();
        page.lease = None;
        let sight = Sight::of_nothing(page.sight.take(), &page.me, boot::now());
        let is_free = page.is_free(&sight, boot::now());
        page.sight = Some(sight);
        drop(page);
        let nothing = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {}});
        (!is_free).then(|| self.shown(&nothing))
    }

    /// What a renewal need not read.
    fn remembered(&self) -> Option<Value> {
        let page = self.page.lock();
        let known = page.lease.as_ref().filter(|_| !page.attempt.live);
        known.map(|known| known.lease.clone())
    }

    /// What a write relies on. An empty version would be no precondition.
    fn version(&self) -> Option<Value> {
        let page = self.page.lock();
        let known = page.lease.as_ref()?;
        let noted = self.noted.borrow();
        let version = noted.version_for(&known.noted);
        (!version.is_empty()).then(|| Value::from(version))
    }
}

impl Page {
    fn is_free(&self, sight: &Sight, now: Moment) -> bool {
        if self.attempt.leading && sight.holder().is_some() {
            return false;
        }
        now >= sight.free_from(self.lease_duration) + self.attempt.patience
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
    pub(crate) book: Book,
    /// The time of day, to write into the Lease. Nothing is decided by it.
    pub(crate) wall: Wall,
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
        if let Some(lease) = self.book.remembered() {
            return answer(&self.book.shown(&lease));
        }
        let asked = self.book.revision();
        let response = self.inner.send(request).await?;
        match response.status() {
            StatusCode::OK => {
                let lease = parsed(response).await?;
                self.book.read(&lease, asked)?;
                answer(&self.book.shown(&lease))
            }
            StatusCode::NOT_FOUND => match self.book.shown_instead(asked) {
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
            lease["metadata"]["resourceVersion"] = self.book.version().ok_or(Error::NotRead)?;
        }
        let now = stamp((self.wall)());
        for time in ["acquireTime", "renewTime"] {
            if let Some(written) = lease["spec"].get_mut(time) {
                *written = Value::from(&*now);
            }
        }
        if let Some(holder) = lease["spec"].get_mut("holderIdentity").filter(|holder| **holder == ME) {
            *holder = Value::from(self.book.me());
        }
        let query = format!("{}?fieldManager={}", parts.uri.path(), self.manager);
        parts.uri = Uri::try_from(query)?;
        parts.headers.remove(header::CONTENT_LENGTH);
        let body = Body::from(serde_json::to_vec(&lease)?);
        let asked = self.book.revision();
        let response = self.inner.send(Request::from_parts(parts, body)).await;
        // Whatever became of it: what was read before is not relied on any more.
        self.book.forget();
        let response = response?;
        if !response.status().is_success() {
            return Ok(response);
        }
        let lease = parsed(response).await?;
        self.book.read(&lease, asked)?;
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
