//! `kubectl portreeve conversion` and `kubectl portreeve migrate`: the steps by which a
//! CustomResourceDefinition gets a second version, and by which its objects move to it and back.
//!
//! The commands know no kind: everything that they need is in the definition. They run with the
//! rights of an administrator, so no role of ours has theirs.

mod cluster;
pub(crate) mod conversion;
mod definition;
mod error;
pub(crate) mod migrate;
mod objects;
mod progress;
mod retry;

use portreeve_metrics::Registry;
use tokio::runtime;

use self::cluster::Cluster;
pub use self::error::Error;
use crate::apiserver;

/// The definition whose versions the commands manage by default.
const CRONTABS: &str = "crontabs.stable.example.com";

/// The definition that a command manages, and the apiserver that has it.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ClusterArgs {
    /// The name of the CustomResourceDefinition
    #[arg(long, value_name = "NAME", default_value = CRONTABS)]
    crd: String,
    #[command(flatten)]
    apiserver: apiserver::Args,
}

/// Runs a command in a runtime of its own.
fn block_on(command: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(Error::Runtime)?.block_on(command)
}

impl ClusterArgs {
    /// Connects to the apiserver. Sends no request yet.
    async fn connect(&self) -> Result<Cluster, Error> {
        let metrics = portreeve_client::Metrics::register(&Registry::new()).map_err(Error::Metrics)?;
        let connection = self.apiserver.connect(metrics).await.map_err(Error::Connection)?;
        Ok(Cluster {
            client: connection.client("migrate").map_err(Error::Connection)?,
            name: self.crd.clone(),
            server: connection.url().to_string(),
        })
    }
}
