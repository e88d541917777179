//! What to issue, and when.
//!
//! | | lifetime | replaced |
//! |---|---|---|
//! | CA | 1 year | after two thirds of it |
//! | certificate | 30 days | after two thirds of it, or when a newer CA has been published for an hour |
//!
//! A CA that is replaced stays among the published ones until it expires, but its key is thrown
//! away. So a client that reads the published CAs at least once an hour can verify the certificate
//! at any time.

use std::{collections::BTreeSet, sync::Arc};

use data_encoding::BASE64;
use jiff::{SignedDuration, Timestamp};
use portreeve_api::{Metadata, ObjectKey, Resource};
use portreeve_reconcile::{Effect, EventContent, Next, Object, Plan, Target};
use rcgen::KeyPair;
use serde_json::{Map, Value, json};

use crate::{
    CONFIG_MAPS, SECRETS,
    certificate::Certificate,
    issue::{self, BACKDATED, FreshKeys, Issued},
    stored::{AUTHORITIES, AUTHORITY_KEY, CERTIFICATE, CERTIFICATE_KEY, CachedConfigMap, CachedSecret},
};

/// How long a CA is published before it signs the certificate in use.
const PUBLISHED_BEFORE_USE: SignedDuration = SignedDuration::from_hours(1);
/// How often a missing ConfigMap is reported.
const REPORTED_EVERY: SignedDuration = SignedDuration::from_hours(1);
/// The number of published CAs. Usually there are one or two.
const MAX_AUTHORITIES: usize = 3;

/// Everything that a decision knows.
pub(crate) struct Observed {
    pub(crate) secret: Arc<CachedSecret>,
    /// The key of the ConfigMap that the flag names, and the ConfigMap if it exists.
    pub(crate) config_map: Option<(ObjectKey, Option<Arc<CachedConfigMap>>)>,
    /// The DNS names of the certificate.
    pub(crate) names: BTreeSet<String>,
    pub(crate) fresh: FreshKeys,
}

/// The CAs, the newest first.
struct Authorities {
    certificates: Vec<Certificate>,
    /// The key of the newest one, in PEM.
    key: String,
    is_new: bool,
}

/// Decides what to write. Plans nothing if a certificate cannot be created, which does not happen
/// with names that the flag accepts.
pub(crate) fn decide(observed: &Observed, now: Timestamp) -> Plan {
    if observed.secret.metadata.is_terminating() {
        return Plan::nothing();
    }
    planned(observed, now).unwrap_or_else(Plan::nothing)
}

fn planned(observed: &Observed, now: Timestamp) -> Option<Plan> {
    let secret = &observed.secret;
    let authorities = authorities(observed, now)?;
    let current = usable_certificate(observed, &authorities, now);
    let newest = authorities.certificates.first()?;
    let renewal = current.as_ref().map(|current| renewal(current, newest));
    let issued = match renewal {
        Some(renewal) if renewal > now => None,
        _ => {
            let key = KeyPair::from_pem(&authorities.key).ok()?;
            let fresh = observed.fresh.certificate.as_ref().ok()?;
            issue::certificate(fresh, observed.names.clone(), (newest, key), now)
        }
    };

    let bundle: String = authorities
        .certificates
        .iter()
        .map(|authority| &*authority.pem)
        .collect();
    let mut effects = Vec::new();
    effects.extend(update_of_secret(secret, &authorities, issued.as_ref(), &bundle));
    effects.extend(publication(observed, &bundle, now));
    if authorities.is_new {
        let message = format!("Created a CA that expires at {}", newest.not_after);
        effects.push(event(secret, EventContent::normal("CreatedCA", "Create", message)));
    }
    let certificate = issued.map(|issued| issued.certificate);
    if let Some(certificate) = &certificate {
        let names: Vec<_> = certificate.names.iter().map(String::as_str).collect();
        let message = format!(
            "Issued a certificate for {} that expires at {}",
            names.join(", "),
            certificate.not_after
        );
        effects.push(event(
            secret,
            EventContent::normal("IssuedCertificate", "Issue", message),
        ));
    }

    let certificate = certificate.or(current)?;
    let expiries = authorities.certificates.iter().map(|authority| authority.not_after);
    let is_missing = matches!(observed.config_map, Some((_, None)));
    let report = is_missing.then(|| now.saturating_add(REPORTED_EVERY).unwrap_or(Timestamp::MAX));
    let times = expiries
        .chain([self::renewal(&certificate, newest), newest.renewal()])
        .chain(report);
    Some(Plan {
        effects,
        next: times.filter(|time| *time > now).min().map_or(Next::OnChange, Next::At),
    })
}

/// Returns the CAs to publish, with a new one if the newest cannot sign or is due for renewal.
fn authorities(observed: &Observed, now: Timestamp) -> Option<Authorities> {
    let mut certificates = Certificate::read_all(&observed.secret.text(AUTHORITIES));
    let key = observed.secret.text(AUTHORITY_KEY);
    let can_sign = certificates.first().is_some_and(|newest| {
        let is_its_key = has_key(newest, &key);
        is_its_key && newest.is_own_authority() && newest.is_valid(now) && now < newest.renewal()
    });
    certificates.retain(|authority| authority.is_own_authority() && authority.is_valid(now));
    if can_sign {
        certificates.truncate(MAX_AUTHORITIES);
        return Some(Authorities {
            certificates,
            key,
            is_new: false,
        });
    }
    let Issued { certificate, key } = issue::authority(observed.fresh.authority.as_ref().ok()?, now)?;
    certificates.insert(0, certificate);
    certificates.truncate(MAX_AUTHORITIES);
    Some(Authorities {
        certificates,
        key,
        is_new: true,
    })
}

/// Returns whether this is the certificate's key, in PEM.
fn has_key(certificate: &Certificate, key: &str) -> bool {
    let public_key = KeyPair::from_pem(key).map(|key| rcgen::PublicKeyData::subject_public_key_info(&key));
    public_key.is_ok_and(|public_key| public_key == certificate.public_key)
}

/// Returns the certificate in the Secret, unless it must be replaced at once.
fn usable_certificate(observed: &Observed, authorities: &Authorities, now: Timestamp) -> Option<Certificate> {
    let text = observed.secret.text(CERTIFICATE);
    let certificate = Certificate::read_all(&text).into_iter().next()?;
    // Anything else in the text would be served too.
    let is_usable = certificate.pem == text
        && certificate.is_valid(now)
        && certificate.names == observed.names
        && has_key(&certificate, &observed.secret.text(CERTIFICATE_KEY))
        && authorities
            .certificates
            .iter()
            .any(|authority| certificate.is_signed_by(authority));
    is_usable.then_some(certificate)
}

/// Returns when to replace the certificate: when it is due, or, if the newest CA has not signed it,
/// as soon as that CA may be used.
fn renewal(certificate: &Certificate, newest: &Certificate) -> Timestamp {
    if certificate.is_signed_by(newest) {
        return certificate.renewal();
    }
    let usable_since = newest.not_before.saturating_add(BACKDATED + PUBLISHED_BEFORE_USE);
    usable_since.unwrap_or(Timestamp::MAX)
}

/// Returns the write of the Secret, if its content changes.
fn update_of_secret(
    secret: &CachedSecret,
    authorities: &Authorities,
    issued: Option<&Issued>,
    bundle: &str,
) -> Option<Effect> {
    let (certificate, key) = match issued {
        Some(Issued { certificate, key }) => (certificate.pem.clone(), key.clone()),
        None => (secret.text(CERTIFICATE), secret.text(CERTIFICATE_KEY)),
    };
    let desired = [
        (AUTHORITIES, bundle),
        (AUTHORITY_KEY, &authorities.key),
        (CERTIFICATE, &certificate),
        (CERTIFICATE_KEY, &key),
    ];
    if desired.iter().all(|(key, text)| secret.text(key) == *text) {
        return None;
    }
    let data = desired.map(|(key, text)| (key.to_owned(), BASE64.encode(text.as_bytes()).into()));
    Some(apply(&SECRETS, &secret.metadata, &Map::from_iter(data)))
}

/// Returns the write of the ConfigMap, if the published CAs change.
fn publication(observed: &Observed, bundle: &str, now: Timestamp) -> Option<Effect> {
    let (key, config_map) = observed.config_map.as_ref()?;
    let Some(config_map) = config_map else {
        let message = format!("Cannot publish the CA: configmap {key} does not exist; create it, and leave it empty");
        // Once an hour, because an apiserver keeps events for an hour.
        let hour = now.as_second() / 3600;
        let content = EventContent::warning("ConfigMapNotFound", "Publish", message).report_once(hour.to_string());
        return Some(event(&observed.secret, content));
    };
    let is_published = config_map
        .data
        .get(AUTHORITIES)
        .is_some_and(|published| published == bundle);
    let data = Map::from_iter([(AUTHORITIES.to_owned(), bundle.into())]);
    (!is_published).then(|| apply(&CONFIG_MAPS, &config_map.metadata, &data))
}

fn apply(resource: &Resource, metadata: &Metadata, data: &Map<String, Value>) -> Effect {
    let key = metadata.key();
    let body = json!({
        "apiVersion": resource.api_version(),
        "kind": resource.kind,
        "metadata": { "name": key.name, "namespace": key.namespace },
        "data": data,
    });
    Effect::Apply {
        object: Object {
            resource: resource.clone(),
            key,
            body,
        },
        uid: Arc::clone(&metadata.uid),
        version: Arc::clone(&metadata.resource_version),
    }
}

fn event(secret: &CachedSecret, content: EventContent) -> Effect {
    Effect::Event(Target::of(&SECRETS, &secret.metadata), content)
}

#[cfg(test)]
mod tests;
