//! The daemon as a library: command line, config file, listeners, logging, printed manifests, start
//! and stop. Use [`main`] in a binary with your own controllers, and [`run`] in tests or to embed
//! the daemon.

mod client;
mod command;
mod config;
mod debug;
mod error;
mod feature_gates;
mod leader_election;
mod logging;
mod manifests;
mod metrics;
mod open_files;
mod options;
mod other_leaders;
mod profile;
mod run;
mod serving;
mod serving_certificate;
mod testenv;
mod testenv_command;
mod testenv_options;
mod webhooks;

pub use command::main;
pub use config::{Error as ConfigError, FileLocation, Problem};
pub use error::Error;
pub use manifests::Error as ManifestError;
pub use options::{Config, Options, UsageError};
pub use run::run;
pub use testenv::Error as TestenvError;
