//! Who sends a request, and whether they may see what they ask for.
//!
//! [`AccessControl`] decides; this crate asks it before routing and writes Kubernetes' responses to
//! requests that are not served.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use futures::future::BoxFuture;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING, USER_AGENT,
};
use http::{HeaderMap, HeaderName, Method, Request, StatusCode};
use rustls::pki_types::CertificateDer;
use tokio::time::timeout;

use crate::AllowedPaths;
use crate::allowed_paths::is_plain;

/// The name of a user without credentials.
const ANONYMOUS: &str = "system:anonymous";
/// The path whose readers may see the reasons of health checks.
const METRICS_PATH: &str = "/metrics";
/// The time limit for finding out whether the reasons may be seen.
const REASONS_LIMIT: Duration = Duration::from_secs(1);
/// The headers that handlers see. All others may contain credentials.
const KEPT_HEADERS: [HeaderName; 8] = [
    ACCEPT,
    ACCEPT_ENCODING,
    CONNECTION,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    HOST,
    TRANSFER_ENCODING,
    USER_AGENT,
];

/// An authenticated user, or the anonymous one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// The name, such as `system:serviceaccount:monitoring:prometheus`.
    pub name: String,
    /// The UID, or an empty text.
    pub uid: String,
    /// The groups.
    pub groups: Vec<String>,
    /// Further fields, which authorizers may use.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// Returns the user of a request without credentials.
    pub fn anonymous() -> Self {
        Self {
            name: ANONYMOUS.to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
            ..Self::default()
        }
    }

    /// Returns whether nobody is authenticated.
    pub fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS
    }
}

/// Whether a user may do something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The user may do it.
    Allowed,
    /// The user may not do it, for this reason, which may be empty.
    Denied(String),
}

/// The reason why credentials are not accepted, or why nobody can decide on a request now.
///
/// It is a text, because it goes into the log and, from [`AccessControl::authorize`], into the
/// response: an implementation leaves out the secrets that an error and its sources may contain.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct AccessError(String);

impl AccessError {
    /// Returns an error with a text that contains no secrets.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// Authenticates and authorizes requests.
pub trait AccessControl: Send + Sync {
    /// Returns whether the credentials in these headers were accepted lately. Whoever sends them
    /// keeps the connection while they are checked again; those of others end first.
    fn is_known(&self, headers: &HeaderMap) -> bool {
        _ = headers;
        false
    }

    /// Returns who sends a request with these client certificates (the first is the client's own)
    /// and headers. A request without credentials is [`User::anonymous`]. Nobody has verified the
    /// certificates, except that the client has the key of the first one.
    ///
    /// # Errors
    ///
    /// Returns an error when the credentials are not accepted or cannot be checked.
    fn authenticate<'a>(
        &'a self,
        certificates: &'a [CertificateDer<'static>],
        headers: &'a HeaderMap,
    ) -> BoxFuture<'a, Result<User, AccessError>>;

    /// Decides whether the user may use the verb (an HTTP method in lower case) on the path.
    ///
    /// # Errors
    ///
    /// Returns an error when nobody can decide now.
    fn authorize<'a>(
        &'a self,
        user: &'a User,
        verb: &'a str,
        path: &'a str,
    ) -> BoxFuture<'a, Result<Decision, AccessError>>;

    /// Does the work that access control needs while the listener serves. Returns the reason if
    /// the listener must end.
    fn maintain(&self) -> BoxFuture<'_, String>;
}

/// The access control of a listener: what is open to everybody, and who decides on the rest.
#[derive(Clone)]
pub(crate) struct Access {
    allowed: Arc<AllowedPaths>,
    control: Arc<dyn AccessControl>,
}

impl Access {
    pub(crate) fn new(allowed: AllowedPaths, control: Arc<dyn AccessControl>) -> Self {
        Self {
            allowed: Arc::new(allowed),
            control,
        }
    }

    /// Returns whether the credentials in these headers were accepted lately.
    pub(crate) fn is_known(&self, headers: &HeaderMap) -> bool {
        self.control.is_known(headers)
    }

    /// Admits a request, removes its credentials and adds its [`Viewer`], or returns the response.
    pub(crate) async fn admit<B>(
        &self,
        request: &mut Request<B>,
        certificates: &[CertificateDer<'static>],
    ) -> Result<(), Response> {
        let user = match self.control.authenticate(certificates, request.headers()).await {
            Ok(user) => user,
            Err(AccessError(err)) => {
                tracing::debug!(err, "failed to authenticate request");
                return Err(unauthorized());
            }
        };
        let path = request.uri().path();
        if !self.allowed.allow(path) {
            let verb = request.method().as_str().to_ascii_lowercase();
            match self.control.authorize(&user, &verb, path).await {
                Ok(Decision::Allowed) => {}
                Ok(Decision::Denied(reason)) => return Err(forbidden(&user, &verb, path, &reason)),
                Err(AccessError(err)) => {
                    tracing::debug!(err, user = user.name, path, "failed to authorize request");
                    return Err(internal_error(path, &err));
                }
            }
            // The routes would decode what the review has seen as it is.
            if !is_plain(path) {
                return Err(StatusCode::NOT_FOUND.into_response());
            }
        }
        remove_credentials(request.headers_mut());
        request.extensions_mut().insert(Viewer {
            access: self.clone(),
            user: Arc::new(user),
        });
        Ok(())
    }
}

/// The sender of an admitted request.
#[derive(Clone)]
pub(crate) struct Viewer {
    access: Access,
    user: Arc<User>,
}

impl Viewer {
    /// Returns whether the sender may see the reasons of health checks, which name objects and
    /// quote errors. They are for those who may read `/metrics`. Probes do not depend on the
    /// apiserver: an anonymous sender needs no review, and an answer that is late is a no.
    pub(crate) async fn may_see_reasons(&self) -> bool {
        if self.access.allowed.allow(METRICS_PATH) {
            return true;
        }
        if self.user.is_anonymous() {
            return false;
        }
        let verb = Method::GET.as_str().to_ascii_lowercase();
        let decision = self.access.control.authorize(&self.user, &verb, METRICS_PATH);
        matches!(timeout(REASONS_LIMIT, decision).await, Ok(Ok(Decision::Allowed)))
    }
}

fn remove_credentials(headers: &mut HeaderMap) {
    let other = headers.keys().filter(|name| !KEPT_HEADERS.contains(name));
    for name in other.cloned().collect::<Vec<HeaderName>>() {
        headers.remove(name);
    }
}

fn unauthorized() -> Response {
    status(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized", "")
}

fn forbidden(user: &User, verb: &str, path: &str, reason: &str) -> Response {
    let path = format!("{path:?}");
    let message = escape(&format!("User {:?} cannot {verb} path {path}", user.name));
    let reason = if reason.is_empty() {
        String::new()
    } else {
        format!(": {reason}")
    };
    let message = format!("forbidden: {message}{reason}");
    status(StatusCode::FORBIDDEN, "Forbidden", &message, r#","details":{}"#)
}

/// Returns a response that contains a `Status`.
pub(crate) fn status(code: StatusCode, reason: &str, message: &str, details: &str) -> Response {
    let body = format!(
        r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":{},"reason":"{reason}"{details},"code":{}}}"#,
        json_string(message),
        code.as_u16()
    );
    (code, [(CONTENT_TYPE, "application/json")], body + "\n").into_response()
}

fn internal_error(path: &str, error: &str) -> Response {
    let text = escape(&format!("Internal Server Error: {path:?}: {error}\n"));
    (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
}

/// Escapes what could be read as HTML, as in Kubernetes.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
