//! serving-certificate-controller maintains the certificate with which the daemon serves HTTPS: a
//! CA and a certificate of it in one Secret, and the CA's certificate in a ConfigMap for clients.
//!
//! `decide.rs` decides what to issue and when. `certificate.rs` reads certificates, and `issue.rs`
//! creates them. The daemon adds this controller when `--tls-issue-names` is set. It is not one of
//! the controllers that `--controllers` selects, because it serves the daemon itself.
//!
//! Architecture Invariant: a private key reaches only the Secret. No type that holds one implements
//! `Debug`.

mod certificate;
mod decide;
mod issue;
mod stored;

use jiff::Timestamp;
use portreeve_api::{ObjectKey, Resource};
use portreeve_informer::{Informer, Watch};
use portreeve_reconcile::{
    BuildError, Context, Descriptor, Effect, EventContent, KeyedController, Plan, Reconciler, Registrations, Target,
};

use crate::{
    decide::Observed,
    issue::FreshKeys,
    stored::{CachedConfigMap, CachedSecret},
};

const NAME: &str = "serving-certificate-controller";
const SECRETS: Resource = Resource::namespaced("", "v1", "Secret", "secrets");
const CONFIG_MAPS: Resource = Resource::namespaced("", "v1", "ConfigMap", "configmaps");

/// The flags of the listener, by their IDs.
const SECRET: &str = "tls_secret";
const NAMES: &str = "tls_issue_names";
const CONFIG_MAP: &str = "tls_ca_config_map";

/// The descriptor of serving-certificate-controller. `portreeve rbac` adds its permissions when the
/// flags name a Secret; they are limited to two objects, so they are not among `rules`.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    log_target: module_path!(),
    aliases: &["serving-certificate"],
    on_by_default: false,
    crds: &[],
    policies: &[],
    rules: &[],
    webhooks: Vec::new,
    flags: Vec::new,
    build,
};

fn build(ctx: &Context<'_>) -> Result<Registrations, BuildError> {
    let secret = object(&ctx.flag::<String>(SECRET)?)?;
    let config_map = ctx.flag::<String>(CONFIG_MAP)?;
    let config_map = (!config_map.is_empty()).then(|| object(&config_map)).transpose()?;

    let secrets: Informer<CachedSecret> = ctx.informer(one(SECRETS, &secret));
    let config_maps = config_map
        .as_ref()
        .map(|key| ctx.informer::<CachedConfigMap>(one(CONFIG_MAPS, key)));
    let reconciler = CertificateReconciler {
        secrets: secrets.clone(),
        config_map: config_map.zip(config_maps.clone()),
        names: ctx.flag_values(NAMES)?,
    };
    let mut controller =
        KeyedController::new(ctx, "serving_certificate", reconciler).watch(&secrets, |delta| [delta.key()]);
    if let Some(config_maps) = config_maps {
        controller = controller.watch(&config_maps, move |_| [secret.clone()]);
    }
    Ok(controller.build())
}

/// Returns the key in a flag's value, `namespace/name`.
fn object(text: &str) -> Result<ObjectKey, BuildError> {
    let (namespace, name) = text.split_once('/').ok_or_else(|| BuildError::Refused {
        controller: NAME,
        reason: format!("expected NAMESPACE/NAME in --tls-secret and --tls-ca-config-map, not {text:?}"),
    })?;
    Ok(ObjectKey::namespaced(namespace, name))
}

/// Selects one object.
fn one(resource: Resource, key: &ObjectKey) -> Watch {
    Watch {
        namespace: key.namespace.as_deref().map(Into::into),
        fields: format!("metadata.name={}", key.name),
        ..Watch::all(resource)
    }
}

struct CertificateReconciler {
    secrets: Informer<CachedSecret>,
    config_map: Option<(ObjectKey, Informer<CachedConfigMap>)>,
    names: Vec<String>,
}

impl Reconciler for CertificateReconciler {
    type Observed = Observed;

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        let secret = self.secrets.get(key)?;
        let config_map = self.config_map.as_ref();
        Some(Observed {
            secret,
            config_map: config_map.map(|(key, informer)| (key.clone(), informer.get(key))),
            names: self.names.iter().cloned().collect(),
            fresh: FreshKeys::generate(),
        })
    }

    fn decide(&self, observed: &Observed, now: Timestamp) -> Plan {
        decide::decide(observed, now)
    }

    fn refused(&self, observed: &Observed, _effect: &Effect, why: &str, _now: Timestamp) -> Plan {
        let target = Target::of(&SECRETS, &observed.secret.metadata);
        let content = EventContent::warning("FailedUpdate", "Update", why).report_once(why);
        Plan::of(vec![Effect::Event(target, content)])
    }
}
