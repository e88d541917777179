//! The reasons why a command or the daemon fails.

use portreeve_manager::selection::UnknownNames;

use crate::{
    config::FileLocation,
    manifests::Error as ManifestError,
    options::{Config, UsageError},
    testenv::Error as TestenvError,
};

/// The reason why the daemon ended without a stop request.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `--controllers` contains an unknown name.
    #[error("invalid --controllers")]
    Controllers(#[source] UnknownNames),
    /// `--leader-elect-groups` contains an unknown name.
    #[error("invalid --leader-elect-groups")]
    Groups(#[source] UnknownNames),
    /// `--leader-elect-groups` contains an item that is not a name.
    #[error(
        "invalid --leader-elect-groups: {0:?} is not the name of a controller (--list-controllers prints the names)"
    )]
    Group(String),
    /// `--leader-elect-groups` assigns a controller to two groups.
    #[error("invalid --leader-elect-groups: {controller} is in groups {} and {}; assign it to one", groups[0], groups[1])]
    TwoGroups {
        /// The name of the controller.
        controller: &'static str,
        /// The two groups.
        groups: [String; 2],
    },
    /// The durations of `--leader-elect-…` are inconsistent.
    #[error("invalid leader election timings")]
    ElectionTimings(#[source] portreeve_leader::ArgsError),
    /// A daemon leads with a Lease of the same name in another namespace.
    #[error(
        "{holder} leads with Lease {lease}, and this daemon would lead too: set --leader-elect-resource-namespace to \
         that namespace, wait until the Lease has expired if that daemon has ended, or set --leader-elect-ignore-others"
    )]
    OtherLeader {
        /// `namespace/name`.
        lease: String,
        /// The identity of the holder.
        holder: String,
    },
    /// Leader election cannot start.
    #[error("failed to start leader election")]
    Elections(#[source] portreeve_leader::Error),
    /// The cause is a setting in the file of `--config`.
    #[error("{}", .locations.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    InFile {
        /// The locations of the settings.
        locations: Vec<FileLocation>,
        /// The error, which names the flags.
        #[source]
        source: Box<Self>,
    },
    /// The apiserver's address or credentials cannot be used.
    #[error("failed to set up the connection to the apiserver")]
    Connection(#[source] portreeve_client::Error),
    /// The listener cannot be opened.
    #[error("failed to serve health and metrics")]
    Serving(#[source] portreeve_serving::Error),
    /// Both listeners have the same port.
    #[error("--secure-port and --webhook-port are both {port}; use a port of its own for each")]
    SamePort {
        /// The port.
        port: u16,
    },
    /// The listener of the webhooks cannot be opened.
    #[error("failed to serve webhooks")]
    ServingWebhooks(#[source] portreeve_serving::Error),
    /// Requests to the listener cannot be authenticated or authorized.
    #[error("failed to set up delegated authentication and authorization")]
    Access(#[source] portreeve_auth::Error),
    /// Requests to the listener of the webhooks cannot be authenticated.
    #[error("failed to set up the authentication of webhook clients")]
    WebhookClients(#[source] portreeve_auth::Error),
    /// A path that is open to everybody is invalid.
    #[error("failed to open a path to everybody")]
    AllowedPath(#[source] portreeve_serving::InvalidPath),
    /// The webhooks of the enabled controllers cannot be served together.
    #[error("failed to use the webhooks of the enabled controllers")]
    Webhooks(#[source] portreeve_webhook::DeclarationError),
    /// Two metrics have the same name.
    #[error("failed to register metrics")]
    Metrics(#[source] prometheus::Error),
    /// The manager failed.
    #[error("failed to run controllers")]
    Manager(#[source] portreeve_manager::Error),
    /// A task blocks the worker runtime, so leader election has given up.
    #[error(
        "the worker runtime is stuck: it has run no task for --leader-elect-renew-deadline; \
         the last log lines of the controllers show the cause"
    )]
    Stuck,
    /// A command that is now one of kubectl-portreeve.
    #[error(
        "`portreeve {0}` is now `kubectl portreeve {0}`: install it with `cargo install --path cmd/kubectl-portreeve`"
    )]
    Moved(&'static str),
    /// `portreeve testenv` cannot run.
    #[error(transparent)]
    Testenv(TestenvError),
    /// The flags of `portreeve testenv` are invalid for its controllers.
    #[error("failed to use the flags of testenv")]
    TestenvFlags(#[source] UsageError),
    /// A manifest cannot be generated.
    #[error("failed to generate a manifest")]
    Manifest(#[source] ManifestError),
    /// The flags for the reference of metrics are invalid.
    #[error("failed to generate the reference of metrics")]
    Reference(#[source] UsageError),
    /// Standard output cannot be written.
    #[error("failed to write to standard output")]
    Print(#[source] std::io::Error),
    /// The daemon task panicked. A panic in a controller is reported as a failure of the controller
    /// instead.
    #[error("the daemon task panicked")]
    Panicked(#[source] tokio::task::JoinError),
    /// The operating system denies a basic resource.
    #[error("failed to set up {what}")]
    System {
        /// The resource.
        what: &'static str,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// Returns 2 when a Lease was lost or given up, 3 when reconciles were still running at the
    /// shutdown timeout, and 1 otherwise.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Stuck | Self::Manager(portreeve_manager::Error::Lost { .. }) => 2,
            Self::Manager(portreeve_manager::Error::DrainTimeout { .. }) => 3,
            _ => 1,
        }
    }

    /// Adds the locations in the file of `--config` that caused the error.
    pub(crate) fn with_locations(self, config: &Config) -> Self {
        let flags: &[&str] = match &self {
            Self::Controllers(_) => &["controllers"],
            Self::Groups(_) | Self::Group(_) | Self::TwoGroups { .. } => &["leader_elect_groups"],
            Self::ElectionTimings(_) => &[
                "leader_elect_lease_duration",
                "leader_elect_renew_deadline",
                "leader_elect_retry_period",
            ],
            Self::Connection(_) => &["kubeconfig", "master"],
            Self::Serving(_) => &[
                "secure_port",
                "bind_address",
                "tls_cert_file",
                "tls_private_key_file",
                "tls_secret",
            ],
            Self::SamePort { .. } => &["secure_port", "webhook_port"],
            Self::ServingWebhooks(_) => &["webhook_port", "bind_address"],
            Self::Access(_) => &["authentication_kubeconfig", "authorization_kubeconfig"],
            Self::WebhookClients(_) => &["webhook_client_ca_file"],
            _ => &[],
        };
        let locations = config.locations(flags);
        if locations.is_empty() {
            return self;
        }
        Self::InFile {
            locations,
            source: Box::new(self),
        }
    }
}
