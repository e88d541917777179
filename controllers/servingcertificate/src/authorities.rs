//! How long a CA stays among the published ones.
//!
//! A CA is published until no certificate that it has signed can be valid: until it expires, or
//! until all certificates have expired that were signed before its key was thrown away, which
//! happens when the next CA is created. Replicas' clocks may differ by [`BACKDATED`].
//!
//! Architecture Invariant: pure.

use jiff::{SignedDuration, Timestamp};

use crate::certificate::{BACKDATED, Certificate};

/// The number of published CAs. Usually there are one or two.
pub(crate) const MAX_AUTHORITIES: usize = 10;

/// Returns when a CA need no longer be published beside the newest one.
pub(crate) fn removal(
    authority: &Certificate,
    newest: &Certificate,
    certificate_lifetime: SignedDuration,
) -> Timestamp {
    let mut end = authority.not_after;
    // Otherwise it is from a Secret that no longer exists. Nobody knows until when it has signed.
    if authority.created() <= newest.created() {
        let last_certificate = newest.created().saturating_add(certificate_lifetime);
        end = end.min(last_certificate.unwrap_or(Timestamp::MAX));
    }
    // Short lifetimes are for tests, in which clocks do not differ by an hour.
    let margin = BACKDATED.min(certificate_lifetime);
    end.saturating_add(margin).unwrap_or(Timestamp::MAX)
}

/// Returns the CAs as one text in PEM.
pub(crate) fn to_text(authorities: &[Certificate]) -> String {
    authorities.iter().map(|authority| &*authority.pem).collect()
}
