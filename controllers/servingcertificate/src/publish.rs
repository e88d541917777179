//! Which CAs to publish in one object: those of the Secret, and our own that the object already
//! trusts, for as long as certificates that they have signed can be valid. So a Secret that is lost
//! does not end the trust in the certificate that replicas still serve.
//!
//! Architecture Invariant: pure.

use std::sync::Arc;

use jiff::Timestamp;
use portreeve_reconcile::{EventContent, Next, Plan};

use crate::{
    authorities::{MAX_AUTHORITIES, removal, to_text},
    bundle::BundleLocation,
    certificate::Certificate,
    decide::{REPORTED_EVERY, event},
    settings::Settings,
    stored::{AUTHORITIES, CachedBundle, CachedSecret},
};

/// Everything that a decision knows.
pub(crate) struct ObservedBundle {
    pub(crate) location: BundleLocation,
    /// The object, if it exists.
    pub(crate) cached: Option<Arc<CachedBundle>>,
    pub(crate) secret: Option<Arc<CachedSecret>>,
    pub(crate) settings: Arc<Settings>,
}

/// Decides what to write. Never plans an empty bundle, because that means the CAs of the system.
pub(crate) fn decide(observed: &ObservedBundle, now: Timestamp) -> Plan {
    let ObservedBundle { location, .. } = observed;
    let Some(secret) = &observed.secret else {
        return Plan::nothing();
    };
    let mut authorities = Certificate::read_all(&secret.text(AUTHORITIES));
    authorities.retain(Certificate::is_own_authority);
    let Some(newest) = authorities.first().cloned() else {
        return Plan::nothing();
    };
    let Some(cached) = &observed.cached else {
        return missing(observed, secret, now);
    };
    let bundles = location.bundles(cached);
    let lifetime = observed.settings.certificate_lifetime;
    let mut removals = Vec::new();
    for trusted in bundles.iter().flat_map(|bundle| Certificate::read_all(bundle)) {
        let is_known = authorities.iter().any(|authority| authority.pem == trusted.pem);
        let removal = removal(&trusted, &newest, lifetime);
        if !is_known && trusted.is_own_authority() && now < removal {
            removals.push(removal);
            authorities.push(trusted);
        }
    }
    authorities.truncate(MAX_AUTHORITIES);
    let desired = to_text(&authorities);
    let is_outdated = bundles.iter().any(|bundle| *bundle != desired);
    Plan {
        effects: is_outdated
            .then(|| location.update(cached, &desired))
            .into_iter()
            .collect(),
        next: removals.into_iter().min().map_or(Next::OnChange, Next::At),
    }
}

/// Returns the report of an object that does not exist.
fn missing(observed: &ObservedBundle, secret: &CachedSecret, now: Timestamp) -> Plan {
    let ObservedBundle { location, .. } = observed;
    let remedy = if location.is_config_map() {
        "create it, and leave it empty"
    } else {
        "create it, or remove it from --tls-ca-bundles"
    };
    let message = format!("Cannot publish the CA: {location} does not exist; {remedy}");
    // Once an hour, because an apiserver keeps events for an hour.
    let subject = format!("{location} {}", now.as_second() / REPORTED_EVERY.as_secs());
    let content = EventContent::warning("FailedPublish", "Publish", message).report_once(subject);
    Plan {
        effects: vec![event(secret, content)],
        next: Next::At(now.saturating_add(REPORTED_EVERY).unwrap_or(Timestamp::MAX)),
    }
}

/// Returns what to do about a rejected write, for the end of its message.
pub(crate) fn remedy(rejection: &str) -> &'static str {
    if rejection.contains("cannot patch resource") {
        "; `portreeve rbac` prints the required rules, with the --tls-ca-bundles and --tls-ca-config-map of the daemon"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_right_has_a_remedy() {
        let forbidden = "mutatingwebhookconfigurations.admissionregistration.k8s.io \"a\" is forbidden: User \"b\" \
                         cannot patch resource \"mutatingwebhookconfigurations\" in API group \
                         \"admissionregistration.k8s.io\" at the cluster scope";
        assert!(remedy(forbidden).contains("--tls-ca-bundles"));
        assert_eq!(remedy("the object has been modified"), "");
    }
}
