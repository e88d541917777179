//! The settings of the controller.
//!
//! Architecture Invariant: values only.

use std::collections::BTreeSet;

use jiff::SignedDuration;

/// The settings, from the flags of the listener.
pub(crate) struct Settings {
    /// The DNS names of the certificate.
    pub(crate) names: BTreeSet<String>,
    /// How long all clients trust a new CA before it signs the certificate in use.
    pub(crate) grace_period: SignedDuration,
    /// The lifetime of a CA.
    pub(crate) authority_lifetime: SignedDuration,
    /// The lifetime of a certificate.
    pub(crate) certificate_lifetime: SignedDuration,
}
