//! The listener for admission webhooks. Every replica serves it, whether it leads or not.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use portreeve_api::{Metadata, Resource};
use portreeve_auth::CertificateAccess;
use portreeve_client::ApiErrorKind;
use portreeve_informer::{Factory, Index, Informer, Projection, Report, Watch, indexes};
use portreeve_reconcile::{Clock, Descriptor, Shutdown, admission::Webhook};
use portreeve_serving::{AllowedPaths, CertificateSink, PortLimits, Server, Service};
use portreeve_webhook::{ParameterLister, Readiness, Routes, declared};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;

use crate::{error::Error, metrics::Metrics, options::Options, serving_certificate::SecretCertificate};

const PORT_FLAG: &str = "--webhook-port";
const CLIENT_CA_FLAG: &str = "--webhook-client-ca-file";
/// The only path that needs no client certificate.
const READYZ: &str = "/readyz";
/// An apiserver opens a connection for each call in progress, and has at most a few hundred writes
/// in progress. It closes a connection that was unused for 90 s (`IdleConnTimeout` of Go's default
/// transport, which apimachinery's `SetOldTransportDefaults` sets), and fails the call if this
/// listener closes it first.
const LIMITS: PortLimits = PortLimits {
    connections: 1024,
    idle: Duration::from_mins(2),
    // Longer than any call of an apiserver.
    response: Duration::from_secs(10),
};
/// How long a replica without a certificate is not ready. It must become ready then, because
/// otherwise no replica of a version that issues certificates could ever lead.
const CERTIFICATE_WAIT: Duration = Duration::from_secs(30);

/// The bound listener and its access control.
pub(crate) struct Listener {
    server: Server,
    access: CertificateAccess,
    webhooks: Vec<Webhook>,
}

/// Binds the listener. Returns `None` if `--webhook-port=0` disables it.
pub(crate) async fn bind(options: &Options, enabled: &[Descriptor]) -> Result<Option<Listener>, Error> {
    let args = &options.webhook;
    let ca = args.webhook_client_ca_file.clone();
    let open = if ca.is_some() { READYZ } else { "/*" };
    let allowed: AllowedPaths = open.parse().map_err(Error::AllowedPath)?;
    let webhooks = declared(enabled).map_err(Error::Webhooks)?;
    let server = Server::bind_port(args.webhook_port, PORT_FLAG, allowed, LIMITS, &options.serving);
    let Some(server) = server.map_err(Error::ServingWebhooks)? else {
        if args.is_delay_ignored() {
            tracing::warn!("ignoring --webhook-shutdown-delay, because --webhook-port is 0");
        }
        return Ok(None);
    };
    if webhooks.is_empty() {
        tracing::warn!("serving only /readyz on --webhook-port, because no enabled controller has webhooks");
    }
    let access = match ca {
        Some(path) => CertificateAccess::from_file(CLIENT_CA_FLAG, path)
            .await
            .map_err(Error::WebhookClients)?,
        None => CertificateAccess::everybody(),
    };
    Ok(Some(Listener {
        server,
        access,
        webhooks,
    }))
}

impl Listener {
    /// Returns the certificate of the listener, to be replaced.
    pub(crate) fn certificate_sink(&self) -> CertificateSink {
        self.server.certificate_sink()
    }

    /// Uses the certificates of another listener.
    pub(crate) fn follow_certificate(&mut self, sink: &CertificateSink) {
        self.server.follow_certificate(sink);
    }

    /// Serves until some time after `stop` is requested. The result ends with the listener, and
    /// requests `stop` if it ends before.
    pub(crate) fn serve(
        self,
        informers: &Factory,
        metrics: &Metrics,
        certificate: Option<&Arc<SecretCertificate>>,
        clock: Arc<dyn Clock>,
        stop: &Shutdown,
        delay: Duration,
    ) -> Result<impl Future<Output = Result<(), Error>> + use<>, Error> {
        let routes = Routes {
            parameters: parameters(&self.webhooks, informers),
            webhooks: self.webhooks,
            readiness: readiness(certificate, stop),
            metrics: metrics.webhooks.clone(),
            clock,
        };
        let service = Service {
            access: Arc::new(self.access),
            routes: routes.into_router(),
            metrics: metrics.serving.clone(),
        };
        let close = Shutdown::new();
        let listener = self.server.spawn("webhooks", service, &close.token());
        let mut listener = listener.map_err(Error::ServingWebhooks)?;
        let stop = stop.clone();
        Ok(async move {
            let end = tokio::select! {
                end = listener.ended() => end,
                () = closing_time(&stop, delay) => {
                    close.request();
                    listener.ended().await
                }
            };
            stop.request();
            end.map_err(Error::ServingWebhooks)
        })
    }
}

/// Waits until the Service has had time to stop sending requests.
async fn closing_time(stop: &Shutdown, delay: Duration) {
    stop.requested().await;
    tokio::time::sleep(delay).await;
}

/// Returns the decision of `/readyz`: whether the Service should send requests to this replica.
/// Leadership and informers do not matter.
fn readiness(certificate: Option<&Arc<SecretCertificate>>, stop: &Shutdown) -> Readiness {
    let (certificate, stop, started) = (certificate.cloned(), stop.token(), Instant::now());
    Arc::new(move || {
        let certificate = certificate.as_ref();
        let lacks_certificate = certificate.is_some_and(|certificate| !certificate.is_loaded());
        let is_refused = certificate.is_some_and(|certificate| certificate.is_refused());
        unready(stop.is_cancelled(), is_refused, lacks_certificate, started.elapsed()).map(str::to_owned)
    })
}

/// Returns why a replica that started `age` ago should not get requests.
fn unready(is_stopping: bool, is_refused: bool, lacks_certificate: bool, age: Duration) -> Option<&'static str> {
    match (is_stopping, lacks_certificate) {
        (true, _) => Some("shutting down"),
        // Clients would not trust the one that is served instead.
        (false, _) if is_refused => Some("the certificate in --tls-secret cannot be used; the log has the reason"),
        (false, true) if age < CERTIFICATE_WAIT => Some("waiting for a certificate in --tls-secret"),
        _ => None,
    }
}

/// Returns a function that lists the parameters of the webhooks, from informers.
fn parameters(webhooks: &[Webhook], informers: &Factory) -> ParameterLister {
    let resources: BTreeSet<_> = webhooks
        .iter()
        .filter_map(|webhook| webhook.parameters.as_ref())
        .map(Resource::crd_name)
        .collect();
    let sources = resources.iter().filter_map(|name| {
        let mut declared = webhooks.iter().filter_map(|webhook| webhook.parameters.as_ref());
        let resource = declared.find(|resource| resource.crd_name() == *name)?.clone();
        let informer: Informer<Parameter> = informers.informer(Watch::all(resource.clone()));
        let by_namespace: Index<Parameter> = informer.index("namespace", indexes::by_namespace);
        Some((resource, informer, by_namespace))
    });
    let sources: Vec<_> = sources.collect();
    let factory = informers.clone();
    Arc::new(move |resource, namespace| {
        let (_, informer, by_namespace) = sources.iter().find(|(listed, ..)| listed == resource)?;
        if !informer.is_synced() {
            return is_not_served(&factory, resource).then(Vec::new);
        }
        let objects = by_namespace.get(namespace).into_iter();
        Some(objects.map(|parameter| Arc::clone(&parameter.object)).collect())
    })
}

/// Returns whether the resource has no definition, and therefore no objects.
fn is_not_served(informers: &Factory, resource: &Resource) -> bool {
    let is_missing = |report: &Report| {
        let failure = report.failure.as_ref();
        report.resource == *resource && failure.is_some_and(|failure| failure.kind == ApiErrorKind::NotFound)
    };
    informers.reports().iter().any(is_missing)
}

/// An object that a webhook depends on, as a whole: its kind is the controller's business.
struct Parameter {
    metadata: Metadata,
    object: Arc<Value>,
}

impl<'de> Deserialize<'de> for Parameter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Value::deserialize(deserializer)?;
        Ok(Self {
            metadata: Metadata::deserialize(&object["metadata"]).map_err(D::Error::custom)?,
            object: Arc::new(object),
        })
    }
}

impl Projection for Parameter {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_waits_for_a_certificate_but_not_for_ever() {
        let waiting = Some("waiting for a certificate in --tls-secret");
        assert_eq!(unready(false, false, true, Duration::from_secs(29)), waiting);
        assert_eq!(unready(false, false, true, Duration::from_secs(30)), None);
        assert_eq!(unready(false, false, false, Duration::ZERO), None);
        // A certificate that exists and cannot be used is waited for as long as it takes.
        for lacks_certificate in [false, true] {
            let refused = unready(false, true, lacks_certificate, Duration::from_hours(1));
            assert!(
                refused.is_some_and(|reason| reason.contains("cannot be used")),
                "{refused:?}"
            );
        }
        assert_eq!(
            unready(true, true, false, Duration::from_hours(1)),
            Some("shutting down")
        );
    }
}
