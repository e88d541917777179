//! The HTTPS listeners of the daemon: their access control, endpoints and threads.

use std::{convert::Infallible, future::pending, net::SocketAddr, sync::Arc};

use axum::Router;
use portreeve_auth::DelegatedAccess;
use portreeve_client::Connection;
use portreeve_manager::Manager;
use portreeve_reconcile::{Clock, Descriptor, Shutdown};
use portreeve_serving::{HealthCheckers, HttpEndpoints, Server};
use tokio::task::JoinSet;

use crate::{
    client::AGENT, error::Error, metrics::Metrics, options::Options, serving_certificate::SecretCertificate, webhooks,
};

/// The bound listeners.
pub(crate) struct Listeners {
    /// Health, metrics and debug pages, and their access control; `None` if `--secure-port=0`
    /// disables it.
    https: Option<(Server, DelegatedAccess)>,
    /// Admission webhooks; `None` if `--webhook-port=0` disables it.
    webhooks: Option<webhooks::Listener>,
}

/// The tasks of listeners that serve.
pub(crate) type Serving = JoinSet<Result<(), Error>>;

/// Binds the listeners and sets up their access control.
///
/// With `loopback_port`, health and metrics are served on this port of 127.0.0.1, or on any free
/// one if it is 0.
pub(crate) async fn bind(
    options: &Options,
    loopback_port: Option<u16>,
    metrics: &Metrics,
    enabled: &[Descriptor],
) -> Result<Listeners, Error> {
    let port = options.serving.secure_port;
    if port != 0 && port == options.webhook.webhook_port {
        return Err(Error::SamePort { port });
    }
    let server = match loopback_port {
        Some(port) => Server::bind_loopback(port, &options.serving).map(Some),
        None => Server::bind(&options.serving),
    };
    let https = match server.map_err(Error::Serving)? {
        Some(server) => {
            let Metrics { client, access, .. } = metrics;
            let access = DelegatedAccess::new(&options.auth, &options.client, AGENT, client, access.clone()).await;
            Some((server, access.map_err(Error::Access)?))
        }
        None => None,
    };
    let webhooks = webhooks::bind(options, enabled).await?;
    Ok(Listeners { https, webhooks })
}

/// What the listeners serve.
pub(crate) struct Content<'a> {
    pub(crate) manager: &'a Manager,
    /// Routes beside those of health and metrics.
    pub(crate) extra_routes: Router,
    pub(crate) metrics: &'a Metrics,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Listeners {
    /// Returns the address and the certificate of the listener for health and metrics.
    pub(crate) fn https(&self) -> Option<(SocketAddr, Vec<u8>)> {
        let (server, _) = self.https.as_ref()?;
        Some((server.local_addr(), server.certificate().to_vec()))
    }

    /// Serves until `close` is requested, and webhooks until some time after `stop` is requested.
    /// Requests `stop` when a listener ends. Also returns the certificate of `--tls-secret`.
    pub(crate) fn serve(
        mut self,
        options: &Options,
        content: Content<'_>,
        close: &Shutdown,
        stop: &Shutdown,
    ) -> Result<(Serving, Option<Arc<SecretCertificate>>), Error> {
        let Content {
            manager,
            extra_routes,
            metrics,
            clock,
        } = content;
        let certificate = self.secret_certificate(options, metrics, &clock);
        let mut serving = JoinSet::new();
        if let Some((server, access)) = self.https {
            let endpoints = HttpEndpoints {
                access: Arc::new(access),
                health: health(manager.health(), certificate.as_ref()),
                metrics: metrics.serving.clone(),
                extra_routes,
            };
            serve(server, endpoints, &mut serving, close, stop)?;
        }
        if let Some(listener) = self.webhooks {
            let delay = options.webhook.webhook_shutdown_delay;
            let informers = manager.informers();
            serving.spawn(listener.serve(&informers, metrics, certificate.as_ref(), clock, stop, delay)?);
        }
        Ok((serving, certificate))
    }

    /// Returns the certificate of `--tls-secret`, if the flag is set and there is a listener.
    fn secret_certificate(
        &mut self,
        options: &Options,
        metrics: &Metrics,
        clock: &Arc<dyn Clock>,
    ) -> Option<Arc<SecretCertificate>> {
        let secret = options.serving.secret.tls_secret.as_ref()?;
        let sink = match (&self.https, &self.webhooks) {
            (Some((server, _)), _) => server.certificate_sink(),
            (None, Some(webhooks)) => webhooks.certificate_sink(),
            (None, None) => return None,
        };
        if let Some(webhooks) = &mut self.webhooks {
            webhooks.follow_certificate(&sink);
        }
        let metrics = metrics.serving.clone();
        Some(SecretCertificate::new(secret, sink, metrics, Arc::clone(clock)))
    }
}

/// Returns the checks with that of the certificate.
fn health(health: HealthCheckers, certificate: Option<&Arc<SecretCertificate>>) -> HealthCheckers {
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

/// Serves these endpoints in a task of `serving`.
fn serve(
    server: Server,
    endpoints: HttpEndpoints,
    serving: &mut Serving,
    close: &Shutdown,
    stop: &Shutdown,
) -> Result<(), Error> {
    let listener = server.spawn("secure", endpoints, &close.token());
    let mut listener = listener.map_err(Error::Serving)?;
    let stop = stop.clone();
    serving.spawn(async move {
        let end = listener.ended().await;
        // The daemon must not continue without health endpoints and metrics.
        stop.request();
        end.map_err(Error::Serving)
    });
    Ok(())
}

/// Waits until the listeners are closed.
pub(crate) async fn join(mut serving: Serving) -> Result<(), Error> {
    let mut result = Ok(());
    while let Some(end) = serving.join_next().await {
        let end = end.unwrap_or(Err(Error::Serving(portreeve_serving::Error::ThreadExited)));
        result = result.and(end);
    }
    result
}
