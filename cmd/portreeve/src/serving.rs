//! The HTTPS listener of the daemon: its access control, its endpoints and its thread.

use std::{convert::Infallible, future::pending, sync::Arc};

use axum::Router;
use portreeve_auth::DelegatedAccess;
use portreeve_client::Connection;
use portreeve_reconcile::{Clock, Shutdown};
use portreeve_serving::{HealthCheckers, HttpEndpoints, Server};
use tokio::task::JoinSet;

use crate::{AGENT, Error, metrics::Metrics, options::Options, serving_certificate::SecretCertificate};

/// The bound listener and its access control, or `None` if `--secure-port=0` disables it.
pub(crate) type Listener = Option<(Server, DelegatedAccess)>;

/// The task of a listener that serves.
pub(crate) type Serving = JoinSet<Result<(), portreeve_serving::Error>>;

/// Binds the listener and sets up its access control.
pub(crate) async fn bind(options: &Options, metrics: &Metrics) -> Result<Listener, Error> {
    let Some(server) = Server::bind(&options.serving).map_err(Error::Serving)? else {
        return Ok(None);
    };
    let Metrics { client, access, .. } = metrics;
    let access = DelegatedAccess::new(&options.auth, &options.client, AGENT, client, access.clone()).await;
    Ok(Some((server, access.map_err(Error::Access)?)))
}

/// Returns the certificate of `--tls-secret`, if the flag is set and there is a listener.
pub(crate) fn secret_certificate(
    options: &Options,
    listener: Option<&(Server, DelegatedAccess)>,
    metrics: &portreeve_serving::Metrics,
    clock: Arc<dyn Clock>,
) -> Option<Arc<SecretCertificate>> {
    let secret = options.serving.secret.tls_secret.as_ref()?;
    let (server, _) = listener?;
    let sink = server.certificate_sink();
    Some(SecretCertificate::new(secret, sink, metrics.clone(), clock))
}

/// Returns the checks with that of the certificate.
pub(crate) fn health(health: HealthCheckers, certificate: Option<&Arc<SecretCertificate>>) -> HealthCheckers {
    let Some(certificate) = certificate else {
        return health;
    };
    HealthCheckers {
        readyz: certificate.add_check(health.readyz),
        ..health
    }
}

/// Returns a future that follows the Secret and never ends.
pub(crate) fn follow_secret(
    certificate: Option<Arc<SecretCertificate>>,
    connection: &Connection,
) -> Result<impl Future<Output = Infallible> + use<>, portreeve_client::Error> {
    let client = connection.client("serving-certificate")?;
    Ok(async move {
        match certificate {
            Some(certificate) => certificate.follow(client).await,
            None => pending().await,
        }
    })
}

/// Serves health, metrics and the other routes until `close` is requested. Requests `stop` when the
/// listener ends.
pub(crate) fn serve(
    listener: Listener,
    health: HealthCheckers,
    extra_routes: Router,
    metrics: portreeve_serving::Metrics,
    (close, stop): (&Shutdown, &Shutdown),
) -> Result<Serving, Error> {
    let mut serving = JoinSet::new();
    let Some((server, access)) = listener else {
        return Ok(serving);
    };
    let endpoints = HttpEndpoints {
        access: Arc::new(access),
        health,
        metrics,
        extra_routes,
    };
    let mut listener = server.spawn(endpoints, &close.token()).map_err(Error::Serving)?;
    let stop = stop.clone();
    serving.spawn(async move {
        let end = listener.ended().await;
        // The daemon must not continue without health endpoints and metrics.
        stop.request();
        end
    });
    Ok(serving)
}

/// Waits until the listener, if there is one, is closed.
pub(crate) async fn join(mut serving: Serving) -> Result<(), Error> {
    let mut result = Ok(());
    while let Some(end) = serving.join_next().await {
        let end = end.unwrap_or(Err(portreeve_serving::Error::ThreadExited));
        result = result.and(end.map_err(Error::Serving));
    }
    result
}
