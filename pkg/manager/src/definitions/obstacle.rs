//! What keeps `--install-crds` from installing a CRD.
//!
//! Architecture Invariant: pure.

use portreeve_api::PART_OF;

/// The reason why a CRD cannot be installed at present. The controllers that need it wait; all
/// others run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Obstacle {
    /// Another program has installed a CRD of this name.
    NotOurs {
        /// The name of this program.
        program: String,
    },
    /// The CRD in the cluster is being deleted.
    Terminating,
    /// The apiserver does not serve the CRD, for this reason.
    NotEstablished(String),
    /// The CRD can be neither read nor written, because of this error.
    Failed(String),
}

impl Obstacle {
    /// Returns the value of the label `reason` in metrics.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::NotOurs { .. } => "not_ours",
            Self::Terminating => "terminating",
            Self::NotEstablished(_) => "not_established",
            Self::Failed(_) => "failed",
        }
    }

    /// Returns whether readiness fails. A state of the cluster must not block a rollout, which
    /// would not change it.
    pub(crate) fn fails_readiness(&self) -> bool {
        matches!(self, Self::Failed(_))
    }

    /// Returns what prevents the installation of the CRD `name`, and what to do.
    pub(crate) fn explain(&self, name: &str) -> String {
        match self {
            Self::NotOurs { program } => format!(
                "CustomResourceDefinition {name} is left alone, because it is another program's: it differs from that of {program} \
                 and lacks the label {PART_OF}={program}. Delete it if nobody needs its objects; if it is an outdated \
                 definition of {program}, run `kubectl label crd {name} {PART_OF}={program}`; otherwise disable the controller"
            ),
            Self::Terminating => format!(
                "CustomResourceDefinition {name} is being deleted, and is installed again once it is gone; finalizers of the \
                 definition or of its objects may delay its end"
            ),
            Self::NotEstablished(reason) => format!(
                "CustomResourceDefinition {name} is not established: {reason}. Remove the definition that has the same names"
            ),
            Self::Failed(error) => format!(
                "failed to install CustomResourceDefinition {name}: {error}. `portreeve rbac --install-crds` prints the required \
                 rules"
            ),
        }
    }
}
