//! The apiserver of a command, found as kubectl finds it.

use std::{env, path::PathBuf, sync::Arc, time::Duration};

use portreeve_client::{AlwaysOpen, Connection, Error, Metrics, Outage, Settings};

/// The time limit of one call. It is longer than the 30 s for which the apiserver waits for a
/// conversion webhook, so that the apiserver can report which webhook does not answer.
const CALL_LIMIT: Duration = Duration::from_secs(35);

/// The flags for the apiserver, which are those of kubectl.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Apiserver")]
#[group(skip)]
pub(crate) struct Args {
    /// The kubeconfig. Defaults to the files of $KUBECONFIG, else to ~/.kube/config, and in a pod
    /// without either to its ServiceAccount
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig. Defaults to its current one
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

impl Args {
    /// Connects to the apiserver. Sends no request yet.
    pub(crate) async fn connect(&self, metrics: Metrics) -> Result<Connection, Error> {
        let client = portreeve_client::Args {
            kubeconfig: self.kubeconfig.clone(),
            merged_kubeconfigs: kubeconfigs(),
            context: self.context.clone(),
            ..portreeve_client::Args::default()
        };
        let settings = Settings {
            program: concat!("kubectl-portreeve/", env!("CARGO_PKG_VERSION")).to_owned(),
            call_limit: CALL_LIMIT,
            fence: Arc::new(AlwaysOpen),
            metrics,
            outage: Outage::default(),
        };
        Connection::open(&client, settings).await
    }
}

/// Returns the kubeconfigs that kubectl would merge, of those that exist.
fn kubeconfigs() -> Vec<PathBuf> {
    let listed: Vec<_> = match env::var_os("KUBECONFIG").filter(|list| !list.is_empty()) {
        Some(list) => env::split_paths(&list)
            .filter(|path| !path.as_os_str().is_empty())
            .collect(),
        None => env::home_dir()
            .map(|home| home.join(".kube/config"))
            .into_iter()
            .collect(),
    };
    listed.into_iter().filter(|path| path.exists()).collect()
}
