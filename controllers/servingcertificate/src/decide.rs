//! What to issue, and when.
//!
//! | | lifetime | replaced |
//! |---|---|---|
//! | CA | 1 year | after two thirds of it |
//! | certificate | 30 days | after two thirds of it, or when all clients have trusted a newer CA for the grace period |
//!
//! A new CA is written to the Secret first, then to the objects that publish CAs (`publish.rs`). It
//! signs a certificate only after the leader has read it back from all of them and the grace period
//! is over. The CA that it replaces stays published for as long as a certificate of it can be valid
//! (`authorities.rs`), but its key is thrown away. So clients can verify the certificate at any
//! time, wherever the leader or its successor stops.

use std::sync::Arc;

use data_encoding::BASE64;
use jiff::{SignedDuration, Timestamp};
use portreeve_api::ObjectKey;
use portreeve_reconcile::{ABSENT, Effect, EventContent, Next, Object, Plan, Target};
use rcgen::KeyPair;
use serde_json::{Map, json};

use crate::{
    authorities::{MAX_AUTHORITIES, removal, to_text},
    bundle::BundleLocation,
    certificate::Certificate,
    issue::{self, FreshKeys, Issued},
    settings::Settings,
    stored::{AUTHORITIES, AUTHORITY_KEY, CERTIFICATE, CERTIFICATE_KEY, CachedBundle, CachedSecret, SECRETS},
    waits::{SecretState, Waits},
};

/// How often a missing object is reported.
pub(crate) const REPORTED_EVERY: SignedDuration = SignedDuration::from_hours(1);
/// How long a Secret without a usable certificate waits for objects that do not trust the newest
/// CA, for example because the leader may not write them.
const PUBLISHED_WITHIN: SignedDuration = SignedDuration::from_mins(1);
/// By how much the clocks of the leader and of the apiserver may differ. With a wrong clock, the
/// leader would issue certificates that are not valid, and remove CAs that are.
const LARGEST_CLOCK_DIFFERENCE: SignedDuration = SignedDuration::from_hours(1);
/// How often the clocks are compared while they differ.
const CLOCK_CHECKED_EVERY: SignedDuration = SignedDuration::from_mins(1);

/// Everything that a decision about the Secret knows.
pub(crate) struct Observed {
    /// The key of the Secret.
    pub(crate) key: ObjectKey,
    /// The Secret, if it exists.
    pub(crate) secret: Option<Arc<CachedSecret>>,
    /// The objects that publish the CAs, as far as they exist.
    pub(crate) bundles: Vec<(BundleLocation, Option<Arc<CachedBundle>>)>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) waits: Waits,
    pub(crate) fresh: FreshKeys,
    /// By how much the apiserver's clock is ahead, if that is known.
    pub(crate) server_offset: Option<SignedDuration>,
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
    let secret = observed.secret.as_ref();
    if secret.is_some_and(|secret| secret.metadata.is_terminating()) {
        // It is recreated when it is gone.
        return Plan::nothing();
    }
    if let Some(problem) = observed.server_offset.and_then(clock_problem) {
        let content = EventContent::warning("ClockDiffers", "Issue", problem).report_once("clock");
        return Plan {
            effects: observed
                .secret
                .iter()
                .map(|secret| event(secret, content.clone()))
                .collect(),
            next: Next::At(now.saturating_add(CLOCK_CHECKED_EVERY).unwrap_or(Timestamp::MAX)),
        };
    }
    match &observed.secret {
        Some(secret) => planned(observed, secret, now).unwrap_or_else(Plan::nothing),
        None => creation(observed, now).unwrap_or_else(Plan::nothing),
    }
}

/// Returns why nothing may be issued, if the apiserver's clock is too far ahead or behind.
pub(crate) fn clock_problem(server_offset: SignedDuration) -> Option<String> {
    let difference = -server_offset;
    (difference.abs() > LARGEST_CLOCK_DIFFERENCE).then(|| {
        let direction = if difference.is_negative() { "behind" } else { "ahead of" };
        format!(
            "No certificate is issued, because the clock of this replica is {} s {direction} the apiserver's: set the clock",
            difference.abs().as_secs()
        )
    })
}

/// Returns the creation of the Secret, without a certificate: its CA must be published before.
fn creation(observed: &Observed, now: Timestamp) -> Option<Plan> {
    let lifetime = observed.settings.authority_lifetime;
    let authority = issue::authority(observed.fresh.authority.as_ref().ok()?, lifetime, now)?;
    let contents = [
        (AUTHORITIES, &*authority.certificate.pem),
        (AUTHORITY_KEY, &authority.key),
    ];
    let written = apply(&observed.key, "".into(), ABSENT.into(), &contents);
    Some(Plan::of(vec![written]))
}

fn planned(observed: &Observed, secret: &CachedSecret, now: Timestamp) -> Option<Plan> {
    let authorities = authorities(observed, secret, now)?;
    let newest = authorities.certificates.first()?;
    let stored = stored_certificate(secret, &authorities.certificates);
    let current = stored.as_ref().filter(|current| current.is_valid(now));
    let issued_at = issue_time(current, newest, authorities.is_new, observed, now);
    // A new CA is not even in the Secret yet.
    let issued = if authorities.is_new || issued_at > now {
        None
    } else {
        let key = KeyPair::from_pem(&authorities.key).ok()?;
        let fresh = observed.fresh.certificate.as_ref().ok()?;
        let Settings {
            names,
            certificate_lifetime,
            ..
        } = &*observed.settings;
        issue::certificate(fresh, names.clone(), newest, key, *certificate_lifetime, now)
    };

    let mut effects = Vec::new();
    effects.extend(update_of_secret(secret, &authorities, issued.as_ref()));
    if authorities.is_new {
        let message = format!("Created a CA that expires at {}", newest.not_after);
        effects.push(event(secret, EventContent::normal("CreatedCA", "Create", message)));
    }
    let renewal = match &issued {
        Some(issued) => {
            let contents = reports(observed, secret, stored.as_ref(), newest, &issued.certificate, now);
            effects.extend(contents.into_iter().map(|content| event(secret, content)));
            issued.certificate.renewal()
        }
        None => issued_at,
    };
    let lifetime = observed.settings.certificate_lifetime;
    let older = authorities.certificates.iter().skip(1);
    let removals = older.map(|authority| removal(authority, newest, lifetime));
    let times = removals.chain([renewal, newest.renewal()]);
    Some(Plan {
        effects,
        next: times.filter(|time| *time > now).min().map_or(Next::OnChange, Next::At),
    })
}

/// Returns the CAs to publish, with a new one if the newest cannot sign or is due for renewal.
fn authorities(observed: &Observed, secret: &CachedSecret, now: Timestamp) -> Option<Authorities> {
    let settings = &observed.settings;
    let mut certificates = Certificate::read_all(&secret.text(AUTHORITIES));
    let key = secret.text(AUTHORITY_KEY);
    let can_sign = certificates.first().is_some_and(|newest| {
        let is_its_key = has_key(newest, &key);
        is_its_key && newest.is_own_authority() && newest.is_valid(now) && now < newest.renewal()
    });
    certificates.retain(Certificate::is_own_authority);
    let (key, is_new) = if can_sign {
        (key, false)
    } else {
        let fresh = observed.fresh.authority.as_ref().ok()?;
        let Issued { certificate, key } = issue::authority(fresh, settings.authority_lifetime, now)?;
        certificates.insert(0, certificate);
        (key, true)
    };
    let newest = certificates.first()?.clone();
    let current = stored_certificate(secret, &certificates).filter(|current| current.is_valid(now));
    let is_in_use = |authority: &Certificate| {
        let current = current.as_ref();
        current.is_some_and(|current| current.is_signed_by(authority))
    };
    certificates.retain(|authority| {
        let is_newest = authority.pem == newest.pem;
        // A CA is never removed by the write that adds another one.
        is_new || is_newest || is_in_use(authority) || now < removal(authority, &newest, settings.certificate_lifetime)
    });
    while certificates.len() > MAX_AUTHORITIES {
        let superfluous = certificates.iter().rposition(|authority| !is_in_use(authority))?;
        certificates.remove(superfluous);
    }
    Some(Authorities {
        certificates,
        key,
        is_new,
    })
}

/// Returns whether this is the certificate's key, in PEM.
fn has_key(certificate: &Certificate, key: &str) -> bool {
    let public_key = KeyPair::from_pem(key).map(|key| rcgen::PublicKeyData::subject_public_key_info(&key));
    public_key.is_ok_and(|public_key| public_key == certificate.public_key)
}

/// Returns the certificate in the Secret if it has its key and was signed by one of the CAs.
fn stored_certificate(secret: &CachedSecret, authorities: &[Certificate]) -> Option<Certificate> {
    let text = secret.text(CERTIFICATE);
    let certificate = Certificate::read_all(&text).into_iter().next()?;
    // Anything else in the text would be served too.
    let is_complete = certificate.pem == text
        && has_key(&certificate, &secret.text(CERTIFICATE_KEY))
        && authorities.iter().any(|authority| certificate.is_signed_by(authority));
    is_complete.then_some(certificate)
}

/// Returns what the leader remembers about the Secret.
pub(crate) fn secret_state(
    secret: Option<&CachedSecret>,
    bundles: &[(BundleLocation, Option<Arc<CachedBundle>>)],
) -> SecretState {
    let text = secret.map(|secret| secret.text(AUTHORITIES)).unwrap_or_default();
    let mut authorities = Certificate::read_all(&text);
    authorities.retain(Certificate::is_own_authority);
    let is_complete = secret.is_some_and(|secret| stored_certificate(secret, &authorities).is_some());
    let newest = authorities.into_iter().next();
    let is_published = newest
        .as_ref()
        .is_some_and(|newest| distrusting(bundles, newest).is_empty());
    SecretState {
        newest: newest.map(|newest| newest.pem),
        is_published,
        is_complete,
    }
}

/// Returns the objects with a bundle that does not contain the CA. An object that does not exist
/// has no bundle, and gets one as soon as it is created.
fn distrusting<'a>(
    bundles: &'a [(BundleLocation, Option<Arc<CachedBundle>>)],
    authority: &Certificate,
) -> Vec<&'a BundleLocation> {
    let existing = bundles
        .iter()
        .filter_map(|(location, cached)| Some((location, cached.as_ref()?)));
    let distrusting = existing.filter(|(location, cached)| !location.trusts(cached, authority));
    distrusting.map(|(location, _)| location).collect()
}

/// Returns when to issue a certificate if nothing changes before. `current` is the certificate in
/// the Secret, if it is valid.
fn issue_time(
    current: Option<&Certificate>,
    newest: &Certificate,
    is_new: bool,
    observed: &Observed,
    now: Timestamp,
) -> Timestamp {
    let waits = if is_new { Waits::default() } else { observed.waits };
    let after = |total: SignedDuration, waited: SignedDuration| {
        let rest = total.saturating_sub(waited).max(SignedDuration::ZERO);
        now.saturating_add(rest).unwrap_or(Timestamp::MAX)
    };
    match current {
        // There is nothing to lose, so there is no grace period.
        None if waits.published.is_some() => now,
        None => after(PUBLISHED_WITHIN, waits.stored),
        // Clients trust the CA already.
        Some(current) if current.is_signed_by(newest) => {
            let has_names = current.names == observed.settings.names;
            if has_names { current.renewal() } else { now }
        }
        Some(current) => {
            let published = waits.published;
            let usable = published.map(|waited| after(observed.settings.grace_period, waited));
            // A successor of a leader that stopped before it published the CA has to publish it.
            let published_by = after(PUBLISHED_WITHIN, waits.stored).min(current.not_after);
            usable
                .unwrap_or(Timestamp::MAX)
                .min(current.last_renewal().max(published_by))
        }
    }
}

/// Returns the events about a certificate that was issued by the newest CA. `stored` is the
/// previous one.
fn reports(
    observed: &Observed,
    secret: &CachedSecret,
    stored: Option<&Certificate>,
    newest: &Certificate,
    issued: &Certificate,
    now: Timestamp,
) -> Vec<EventContent> {
    let names: Vec<_> = issued.names.iter().map(String::as_str).collect();
    let message = format!(
        "Issued a certificate for {} that expires at {}",
        names.join(", "),
        issued.not_after
    );
    let mut contents = vec![EventContent::normal("IssuedCertificate", "Issue", message)];
    let distrusting = distrusting(&observed.bundles, newest);
    if !distrusting.is_empty() {
        let message = format!(
            "Issued a certificate that clients of {} reject, because the CA could not be published there in time",
            list(distrusting)
        );
        contents.push(EventContent::warning("FailedPublish", "Issue", message));
    }
    contents.extend(report_of_outage(observed, secret, stored, newest, now));
    contents
}

/// Returns the report of calls that may have failed, if there was a certificate before but none
/// that could be used.
fn report_of_outage(
    observed: &Observed,
    secret: &CachedSecret,
    stored: Option<&Certificate>,
    newest: &Certificate,
    now: Timestamp,
) -> Option<EventContent> {
    let duration = match stored {
        Some(stored) if stored.is_valid(now) => return None,
        Some(stored) if stored.not_after <= now => format!("since {}", stored.not_after),
        _ => {
            let known = observed.waits.incomplete.unwrap_or_default();
            format!("for at least {:#}", SignedDuration::from_secs(known.as_secs()))
        }
    };
    let existing = || {
        observed
            .bundles
            .iter()
            .filter_map(|(location, cached)| Some((location, cached.as_ref()?)))
    };
    let has_older = existing().any(|(location, cached)| {
        let bundles = location.bundles(cached);
        let mut trusted = bundles.iter().flat_map(|bundle| Certificate::read_all(bundle));
        trusted.any(|authority| authority.pem != newest.pem)
    });
    if !has_older && secret.text(CERTIFICATE).is_empty() {
        // This is the first certificate.
        return None;
    }
    let called: Vec<_> = existing()
        .map(|(location, _)| location)
        .filter(|location| !location.is_config_map())
        .collect();
    let calls = if called.is_empty() {
        "requests to replicas".to_owned()
    } else {
        format!("calls of {}", list(called))
    };
    let message = format!("The Secret has had no usable certificate {duration}: {calls} may have failed");
    Some(EventContent::warning("MissedCertificate", "Issue", message))
}

fn list(locations: Vec<&BundleLocation>) -> String {
    let locations: Vec<_> = locations.into_iter().map(ToString::to_string).collect();
    locations.join(", ")
}

/// Returns the write of the Secret, if its content changes.
fn update_of_secret(secret: &CachedSecret, authorities: &Authorities, issued: Option<&Issued>) -> Option<Effect> {
    let (certificate, key) = match issued {
        Some(Issued { certificate, key }) => (certificate.pem.clone(), key.clone()),
        None => (secret.text(CERTIFICATE), secret.text(CERTIFICATE_KEY)),
    };
    let bundle = to_text(&authorities.certificates);
    let desired = [
        (AUTHORITIES, &*bundle),
        (AUTHORITY_KEY, &authorities.key),
        (CERTIFICATE, &certificate),
        (CERTIFICATE_KEY, &key),
    ];
    if desired.iter().all(|(key, text)| secret.text(key) == *text) {
        return None;
    }
    let metadata = &secret.metadata;
    let (uid, version) = (Arc::clone(&metadata.uid), Arc::clone(&metadata.resource_version));
    Some(apply(&metadata.key(), uid, version, &desired))
}

/// Returns the write of these contents.
fn apply(key: &ObjectKey, uid: Arc<str>, version: Arc<str>, contents: &[(&str, &str)]) -> Effect {
    let data = contents
        .iter()
        .map(|(key, text)| ((*key).to_owned(), BASE64.encode(text.as_bytes()).into()));
    let body = json!({
        "apiVersion": SECRETS.api_version(),
        "kind": SECRETS.kind,
        "metadata": { "name": key.name, "namespace": key.namespace },
        "data": data.collect::<Map<_, _>>(),
    });
    Effect::Apply {
        object: Object {
            resource: SECRETS,
            key: key.clone(),
            body,
        },
        uid,
        version,
    }
}

/// Returns an event on the Secret.
pub(crate) fn event(secret: &CachedSecret, content: EventContent) -> Effect {
    Effect::Event(Target::of(&SECRETS, &secret.metadata), content)
}

#[cfg(test)]
mod tests;
