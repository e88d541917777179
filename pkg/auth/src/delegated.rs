//! Authenticates and authorizes requests to the listener with the help of the apiserver.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use http::HeaderMap;
use kube::Client;
use parking_lot::RwLock;
use portreeve_client::{AlwaysOpen, Connection, Outage, error_chain};
use portreeve_serving::{AccessControl, AccessError, Decision, User};
use rustls::pki_types::{CertificateDer, UnixTime};
use tokio::time::Instant;

use crate::{
    Args,
    access_review::{AccessReviewer, DecisionTtls},
    bearer::bearer_token,
    client_certificate::{CertificateError, Subject},
    lookup::{LookupError, Sources, keep_up_to_date},
    metrics::Metrics,
    request_header::HeaderNames,
    review::{ReviewClients, ReviewError},
    token_review::TokenReviewer,
    trust::{Trust, TrustedProxies},
};

/// The limit for reviews of known and of unknown users each, in requests per second. More would
/// only help who guesses tokens.
const REVIEW_QPS: f32 = 50.0;
/// The number of reviews that may exceed the limit in a burst.
const REVIEW_BURST: u32 = 100;
/// The time limit of one request to the apiserver.
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// The group of every user that has shown valid credentials.
const AUTHENTICATED: &str = "system:authenticated";
/// The group of the anonymous user.
const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group that is allowed everything, even if the apiserver does not answer.
const PRIVILEGED: &str = "system:masters";

/// Delegated authentication and authorization cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A kubeconfig cannot be used.
    #[error("failed to set up the connection of {flag}")]
    Connect {
        /// The flag that names the kubeconfig.
        flag: &'static str,
        /// The cause.
        #[source]
        source: portreeve_client::Error,
    },
    /// The CAs of client certificates cannot be read.
    #[error("failed to read the CAs of client certificates")]
    ClientCa(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The operating system has no randomness.
    #[error("failed to generate a random key")]
    Random,
}

/// Credentials that are not accepted.
#[derive(Debug, thiserror::Error)]
enum AuthenticationError {
    #[error(transparent)]
    Certificate(CertificateError),
    #[error("the common name {name:?} is not one of the allowed front proxies")]
    ProxyName { name: String },
    #[error("the bearer token is invalid")]
    Token,
    #[error(transparent)]
    Review(ReviewError),
}

/// Authenticates requests by client certificates, headers of front proxies and bearer tokens, and
/// authorizes them by `SubjectAccessReviews`.
///
/// All requests that it sends belong to the runtime that serves, so that a stuck worker runtime
/// does not affect them.
pub struct DelegatedAccess {
    authentication: Connection,
    authorization: Connection,
    lookup: Client,
    sources: Sources,
    /// Trusts nobody until the first lookup.
    trust: RwLock<Trust>,
    tokens: TokenReviewer,
    access: AccessReviewer,
    metrics: Metrics,
}

impl DelegatedAccess {
    /// Sets up the connections. Sends no request yet. `daemon` is the connection of flags that name
    /// no kubeconfig.
    ///
    /// # Errors
    ///
    /// Returns an error when a kubeconfig cannot be used.
    pub async fn new(
        args: &Args,
        daemon: &portreeve_client::Args,
        program: &str,
        requests: &portreeve_client::Metrics,
        metrics: Metrics,
    ) -> Result<Self, Error> {
        let connect = async |flag, kubeconfig: &Option<_>| {
            let args = portreeve_client::Args {
                kubeconfig: kubeconfig.clone().or_else(|| daemon.kubeconfig.clone()),
                // The address of --master is the daemon's.
                master: daemon.master.clone().filter(|_| kubeconfig.is_none()),
                kube_api_qps: REVIEW_QPS,
                kube_api_burst: REVIEW_BURST,
                ..portreeve_client::Args::default()
            };
            let settings = portreeve_client::Settings {
                program: program.to_owned(),
                call_limit: CALL_LIMIT,
                // Reviews change nothing, so standbys and dry runs send them too.
                fence: Arc::new(AlwaysOpen),
                metrics: requests.clone(),
                // Another apiserver has its own outages.
                outage: Outage::default(),
            };
            let connection = Connection::open(&args, settings).await;
            connection.map_err(|source| Error::Connect { flag, source })
        };
        let authentication = connect("--authentication-kubeconfig", &args.authentication_kubeconfig).await?;
        let authorization = connect("--authorization-kubeconfig", &args.authorization_kubeconfig).await?;
        let client = |connection: &Connection, component, flag| {
            let client = connection.client(component);
            client.map_err(|source| Error::Connect { flag, source })
        };
        let clients = |connection: &Connection, component, flag| {
            let other = connection.with_rate_limit(REVIEW_QPS, REVIEW_BURST);
            Ok(ReviewClients {
                known: client(connection, component, flag)?,
                unknown: client(&other, component, flag)?,
            })
        };
        let lookup = client(&authentication, "authentication", "--authentication-kubeconfig")?;
        let tokens = TokenReviewer::new(
            clients(&authentication, "authentication", "--authentication-kubeconfig")?,
            args.authentication_token_webhook_cache_ttl,
            metrics.clone(),
        );
        let ttls = DecisionTtls {
            authorized: args.authorization_webhook_cache_authorized_ttl,
            unauthorized: args.authorization_webhook_cache_unauthorized_ttl,
        };
        let access = clients(&authorization, "authorization", "--authorization-kubeconfig")?;
        Ok(Self {
            lookup,
            sources: sources(args),
            trust: RwLock::default(),
            tokens: tokens.map_err(|_| Error::Random)?,
            access: AccessReviewer::new(access, ttls, metrics.clone()),
            authentication,
            authorization,
            metrics,
        })
    }

    /// Tries all kinds of credentials in Kubernetes' order. Returns `None` if there are none, and
    /// the first error if none is accepted.
    async fn find_user(
        &self,
        certificates: &[CertificateDer<'static>],
        headers: &HeaderMap,
    ) -> Result<Option<User>, AuthenticationError> {
        let mut failure = None;
        if !certificates.is_empty() {
            let trust = self.trust.read().clone();
            match by_certificate(&trust, certificates, headers, UnixTime::now()) {
                Ok(Some(user)) => return Ok(Some(user)),
                Ok(None) => {}
                Err(error) => failure = Some(error),
            }
        }
        if let Some(token) = bearer_token(headers) {
            match self.tokens.authenticate(&token).await {
                Ok(Some(user)) => return Ok(Some(User::clone(&user))),
                Ok(None) => failure = failure.or(Some(AuthenticationError::Token)),
                Err(error) => failure = failure.or(Some(AuthenticationError::Review(error))),
            }
        }
        failure.map_or(Ok(None), Err)
    }

    async fn keep_up_to_date(&self) -> LookupError {
        tokio::select! {
            failed = keep_up_to_date(&self.sources, &self.lookup, &self.trust) => failed,
            never = self.authentication.reload_credentials("authentication") => match never {},
            never = self.authorization.reload_credentials("authorization") => match never {},
        }
    }
}

impl AccessControl for DelegatedAccess {
    fn is_known(&self, headers: &HeaderMap) -> bool {
        bearer_token(headers).is_some_and(|token| self.tokens.is_known(&token))
    }

    fn authenticate<'a>(
        &'a self,
        certificates: &'a [CertificateDer<'static>],
        headers: &'a HeaderMap,
    ) -> BoxFuture<'a, Result<User, AccessError>> {
        Box::pin(async move {
            let started = Instant::now();
            let found = self.find_user(certificates, headers).await;
            let result = if found.is_ok() { "success" } else { "error" };
            self.metrics.authentication.observe(result, started.elapsed());
            match found {
                Ok(None) => Ok(User::anonymous()),
                Ok(Some(user)) => Ok(with_group(user)),
                Err(error) => Err(AccessError::new(error_chain(&error))),
            }
        })
    }

    fn authorize<'a>(
        &'a self,
        user: &'a User,
        verb: &'a str,
        path: &'a str,
    ) -> BoxFuture<'a, Result<Decision, AccessError>> {
        Box::pin(async move {
            let started = Instant::now();
            let decision = if user.groups.iter().any(|group| group == PRIVILEGED) {
                Ok(Decision::Allowed)
            } else {
                self.access.authorize(user, verb, path).await
            };
            let result = match &decision {
                Ok(Decision::Allowed) => "allowed",
                Ok(Decision::Denied(_)) => "no-opinion",
                Err(_) => "error",
            };
            self.metrics.authorization.observe(result, started.elapsed());
            decision.map_err(|error| AccessError::new(error_chain(&error)))
        })
    }

    fn maintain(&self) -> BoxFuture<'_, String> {
        Box::pin(async { error_chain(&self.keep_up_to_date().await) })
    }
}

/// Adds the group of all authenticated users. A proxy may also name the anonymous user.
fn with_group(mut user: User) -> User {
    let has = |name: &str| user.groups.iter().any(|group| group == name);
    if !user.is_anonymous() && !has(UNAUTHENTICATED) && !has(AUTHENTICATED) {
        user.groups.push(AUTHENTICATED.to_owned());
    }
    user
}

fn sources(args: &Args) -> Sources {
    let headers = HeaderNames {
        username: args.requestheader_username_headers.clone(),
        uid: args.requestheader_uid_headers.clone(),
        group: args.requestheader_group_headers.clone(),
        extra_prefix: args.requestheader_extra_headers_prefix.clone(),
    };
    let proxies = args.requestheader_client_ca_file.clone();
    Sources {
        users: args.client_ca_file.clone(),
        proxies: proxies.map(|path| (path, args.requestheader_allowed_names.clone(), headers)),
        lookup: !args.authentication_skip_lookup
            && (args.client_ca_file.is_none() || args.requestheader_client_ca_file.is_none()),
        strict: args.authentication_kubeconfig.is_some() && !args.authentication_tolerate_lookup_failure,
    }
}

/// Returns the user that a proxy names or that a certificate belongs to, or `None` if certificates
/// do not count.
fn by_certificate(
    trust: &Trust,
    certificates: &[CertificateDer<'static>],
    headers: &HeaderMap,
    now: UnixTime,
) -> Result<Option<User>, AuthenticationError> {
    let proxied = match &trust.proxies {
        Some(proxies) => by_proxy(proxies, certificates, headers, now),
        None => Ok(None),
    };
    if let Ok(Some(user)) = proxied {
        return Ok(Some(user));
    }
    let Some(users) = &trust.users else { return proxied };
    match (users.verify(certificates, now).map(Subject::into_user), proxied) {
        (Ok(Some(user)), _) => Ok(Some(user)),
        (_, Err(error)) => Err(error),
        (Ok(None), Ok(_)) => Ok(None),
        (Err(error), Ok(_)) => Err(AuthenticationError::Certificate(error)),
    }
}

fn by_proxy(
    proxies: &TrustedProxies,
    certificates: &[CertificateDer<'static>],
    headers: &HeaderMap,
    now: UnixTime,
) -> Result<Option<User>, AuthenticationError> {
    let verified = proxies.ca.verify(certificates, now);
    let name = verified.map_err(AuthenticationError::Certificate)?.common_name;
    if !proxies.allowed_names.is_empty() && !proxies.allowed_names.contains(&name) {
        return Err(AuthenticationError::ProxyName { name });
    }
    Ok(proxies.headers.user(headers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_authenticated_users_join_their_group() {
        let user = |name: &str, groups: &[&str]| User {
            name: name.to_owned(),
            groups: groups.iter().copied().map(str::to_owned).collect(),
            ..User::default()
        };
        let table = [
            (user("alice", &["developers"]), &["developers", AUTHENTICATED][..]),
            (user("alice", &[AUTHENTICATED]), &[AUTHENTICATED]),
            // A front proxy forwards requests without credentials as well.
            (user("system:anonymous", &[]), &[]),
            (user("someone", &[UNAUTHENTICATED]), &[UNAUTHENTICATED]),
        ];
        for (user, expected) in table {
            assert_eq!(with_group(user).groups, expected);
        }
    }
}
