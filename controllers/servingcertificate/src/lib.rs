//! serving-certificate-controller maintains the certificate with which the daemon serves HTTPS: a
//! CA and a certificate of it in one Secret, and the CA's certificate in a ConfigMap for clients,
//! in webhook configurations and in definitions.
//!
//! `decide.rs` decides what to issue and when, and `publish.rs` what to publish in each object.
//! `certificate.rs` reads certificates, and `issue.rs` creates them. The daemon adds this
//! controller when `--tls-issue-names` is set. It is not one of the controllers that
//! `--controllers` selects, because it serves the daemon itself.
//!
//! This crate is the home of the serving certificate. Elsewhere are what every replica does,
//! whether it leads or not, and what needs the command line:
//!
//! - TLS itself, with certificates from files and the self-signed one: `pkg/serving/src/tls.rs`;
//! - following the Secret: `pkg/daemon/src/serving_certificate.rs`;
//! - the permissions for single objects: `pkg/daemon/src/manifests/rbac.rs`.
//!
//! The Secret and each object that publishes CAs have keys of their own in the queue, so that a
//! rejected write delays no other.
//!
//! # Decisions
//!
//! - Each decision derives from the Secret and from the objects that publish CAs, so a leader may
//!   stop after any write. Only the grace period is in the leader's memory.
//! - The Secret is created by an apply with resourceVersion 1, which no object has: the apiserver
//!   creates it or answers 409. An apply names its object, so RBAC can limit the right to that
//!   name.
//! - CAs of a lost Secret are not copied to other objects, so that whoever may write the ConfigMap
//!   cannot add a CA to a webhook.
//! - A missing certificate does not fail `/readyz`: during an update, the first replica of a
//!   version that issues certificates must become ready before it can lead.
//!
//! Architecture Invariant: a private key reaches only the Secret. No type that holds one implements
//! `Debug`.

mod authorities;
mod bundle;
mod certificate;
mod decide;
mod issue;
mod publish;
mod settings;
mod stored;
mod waits;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use portreeve_api::{ObjectKey, Resource};
use portreeve_informer::{Informer, Watch};
use portreeve_reconcile::{
    BuildError, Context, Descriptor, Effect, EventContent, KeyedController, Plan, ReadinessCheck, ReadinessChecker,
    ReadinessStatus, Reconciler, Registrations, ServerClock,
};

use crate::{
    bundle::BundleLocation,
    issue::FreshKeys,
    publish::ObservedBundle,
    settings::Settings,
    stored::{CachedBundle, CachedSecret, SECRETS},
    waits::Memory,
};

const NAME: &str = "serving-certificate-controller";

/// The flags of the listener, by their IDs.
const SECRET: &str = "tls_secret";
const NAMES: &str = "tls_issue_names";
const CONFIG_MAP: &str = "tls_ca_config_map";
const BUNDLES: &str = "tls_ca_bundles";
const GRACE_PERIOD: &str = "tls_ca_grace_period";
const AUTHORITY_LIFETIME: &str = "tls_ca_lifetime";
const CERTIFICATE_LIFETIME: &str = "tls_certificate_lifetime";

/// The descriptor of serving-certificate-controller. `portreeve rbac` adds its permissions when the
/// flags name a Secret; they are limited to single objects, so they are not among `rules`.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    log_target: module_path!(),
    aliases: &["serving-certificate"],
    on_by_default: false,
    in_testenv: false,
    crds: &[],
    policies: &[],
    rules: &[],
    webhooks: Vec::new,
    flags: Vec::new,
    build,
};

fn build(ctx: &Context<'_>) -> Result<Registrations, BuildError> {
    let secret = object(&ctx.flag::<String>(SECRET)?)?;
    let secrets: Informer<CachedSecret> = ctx.informer(one(SECRETS, &secret));
    let bundles = locations(ctx)?.into_iter().map(|location| {
        let informer: Informer<CachedBundle> = ctx.informer(one(location.resource.clone(), &location.key));
        (location, informer)
    });
    let bundles: Vec<_> = bundles.collect();
    let reconciler = CertificateReconciler {
        secret: secret.clone(),
        secrets: secrets.clone(),
        bundles: bundles.clone(),
        settings: Arc::new(settings(ctx)?),
        memory: Mutex::default(),
        server_clock: ctx.shared.server_clock.clone(),
    };
    let all: Vec<_> = bundles.iter().map(|(location, _)| location.queue_key()).collect();
    let all: Vec<_> = std::iter::once(secret.clone()).chain(all).collect();
    // Nothing reports a Secret that has never existed.
    let mut controller = KeyedController::new(ctx, "serving_certificate", reconciler)
        .start_with([secret.clone()])
        .watch(&secrets, move |_| all.clone());
    for (location, informer) in bundles {
        let keys = [location.queue_key(), secret.clone()];
        controller = controller.watch(&informer, move |_| keys.clone());
    }
    let mut registrations = controller.build();
    registrations.readiness_checkers.push(clock_checker(ctx));
    Ok(registrations)
}

/// Returns the check of this replica's clock, which fails if it is too far from the apiserver's.
fn clock_checker(ctx: &Context<'_>) -> ReadinessChecker {
    let server_clock = ctx.shared.server_clock.clone();
    Arc::new(move || {
        let problem = server_clock.offset().and_then(decide::clock_problem);
        vec![ReadinessCheck {
            name: "clock".to_owned(),
            state: problem.map_or(ReadinessStatus::Ok, ReadinessStatus::Failed),
        }]
    })
}

fn settings(ctx: &Context<'_>) -> Result<Settings, BuildError> {
    let duration = |flag| {
        let duration = ctx.flag::<Duration>(flag)?;
        Ok(SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX))
    };
    Ok(Settings {
        names: ctx.flag_values(NAMES)?.into_iter().collect(),
        grace_period: duration(GRACE_PERIOD)?,
        authority_lifetime: duration(AUTHORITY_LIFETIME)?,
        certificate_lifetime: duration(CERTIFICATE_LIFETIME)?,
    })
}

/// Returns the objects in which the flags publish the CAs.
fn locations(ctx: &Context<'_>) -> Result<Vec<BundleLocation>, BuildError> {
    let config_map = ctx.flag::<String>(CONFIG_MAP)?;
    let config_map = (!config_map.is_empty()).then(|| object(&config_map)).transpose()?;
    let mut locations: Vec<_> = config_map.map(BundleLocation::config_map).into_iter().collect();
    for text in ctx.flag_values::<String>(BUNDLES)? {
        let location = BundleLocation::parse(&text).ok_or_else(|| BuildError::Refused {
            controller: NAME,
            reason: format!("expected RESOURCE/NAME in --tls-ca-bundles, not {text:?}"),
        })?;
        if !locations.contains(&location) {
            locations.push(location);
        }
    }
    Ok(locations)
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
    /// The key of the Secret.
    secret: ObjectKey,
    secrets: Informer<CachedSecret>,
    bundles: Vec<(BundleLocation, Informer<CachedBundle>)>,
    settings: Arc<Settings>,
    memory: Mutex<Memory>,
    server_clock: ServerClock,
}

/// What a decision knows: about the Secret, or about one object that publishes CAs.
enum Observed {
    Secret(Box<decide::Observed>),
    Bundle(ObservedBundle),
}

impl Reconciler for CertificateReconciler {
    type Observed = Observed;

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        let secret = self.secrets.get(&self.secret);
        let settings = Arc::clone(&self.settings);
        if *key == self.secret {
            let bundles = self.bundles.iter();
            let bundles: Vec<_> = bundles
                .map(|(location, informer)| (location.clone(), informer.get(&location.key)))
                .collect();
            let state = decide::secret_state(secret.as_deref(), &bundles);
            let waits = self.memory.lock().update(state, Instant::now());
            return Some(Observed::Secret(Box::new(decide::Observed {
                key: key.clone(),
                secret,
                bundles,
                settings,
                waits,
                fresh: FreshKeys::generate(),
                server_offset: self.server_clock.offset(),
            })));
        }
        let (location, informer) = self.bundles.iter().find(|(location, _)| location.queue_key() == *key)?;
        Some(Observed::Bundle(ObservedBundle {
            location: location.clone(),
            cached: informer.get(&location.key),
            secret,
            settings,
        }))
    }

    fn decide(&self, observed: &Observed, now: Timestamp) -> Plan {
        match observed {
            Observed::Secret(observed) => decide::decide(observed, now),
            Observed::Bundle(observed) => publish::decide(observed, now),
        }
    }

    fn refused(&self, observed: &Observed, _effect: &Effect, why: &str, _now: Timestamp) -> Plan {
        let (secret, remedy) = match observed {
            Observed::Secret(observed) => (&observed.secret, ""),
            Observed::Bundle(observed) => (&observed.secret, publish::remedy(why)),
        };
        // Without the Secret, the log has the reason.
        let report = secret.as_ref().map(|secret| {
            let content = EventContent::warning("FailedUpdate", "Update", format!("{why}{remedy}")).report_once(why);
            decide::event(secret, content)
        });
        Plan::of(report.into_iter().collect())
    }
}
