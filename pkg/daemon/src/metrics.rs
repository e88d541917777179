//! The metrics of the daemon, and docs/metrics.md.
//!
//! Everything that has metrics is registered here or built by the manager. The reference does the
//! same and lists the content of the registry.

use std::sync::Arc;

use portreeve_client::{Connection, Outage};
use portreeve_leader::Heartbeat;
use portreeve_manager::{ControllerGroup, Manager};
use portreeve_metrics::{Family, Registry};
use portreeve_reconcile::{Descriptor, SystemClock};
use prometheus::{IntGaugeVec, Opts};

use crate::{
    client,
    error::Error,
    feature_gates::{self, FeatureGate},
    logging,
    options::Config,
};

/// The commit of the binary, which `hack/image/build` sets. Another build does not know it, because
/// finding it out would slow down every build.
const COMMIT: &str = match option_env!("PORTREEVE_GIT_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

/// The version of the compiler.
pub(crate) const RUSTC_VERSION: &str = env!("PORTREEVE_RUSTC_VERSION");

/// The metrics of the parts that the daemon starts itself.
pub(crate) struct Metrics {
    pub(crate) client: portreeve_client::Metrics,
    pub(crate) access: portreeve_auth::Metrics,
    pub(crate) elections: portreeve_leader::Metrics,
    pub(crate) serving: portreeve_serving::Metrics,
    pub(crate) webhooks: portreeve_webhook::Metrics,
}

impl Metrics {
    /// Registers all metrics but those of the manager and the controllers.
    ///
    /// # Errors
    ///
    /// Returns an error when the registry already contains one of them.
    pub(crate) fn register(registry: &Registry, gates: &[FeatureGate]) -> Result<Self, prometheus::Error> {
        logging::register(registry)?;
        registry.register(Box::new(build_info()?))?;
        registry.register(Box::new(features(gates)?))?;
        Ok(Self {
            client: portreeve_client::Metrics::register(registry)?,
            access: portreeve_auth::Metrics::register(registry)?,
            elections: portreeve_leader::Metrics::register(registry)?,
            serving: portreeve_serving::Metrics::register(registry)?,
            webhooks: portreeve_webhook::Metrics::register(registry)?,
        })
    }
}

fn build_info() -> Result<IntGaugeVec, prometheus::Error> {
    let info = IntGaugeVec::new(
        Opts::new("portreeve_build_info", "Always 1; the labels describe the binary."),
        &["version", "git_commit", "rustc_version"],
    )?;
    info.with_label_values(&[env!("CARGO_PKG_VERSION"), COMMIT, RUSTC_VERSION])
        .set(1);
    Ok(info)
}

fn features(gates: &[FeatureGate]) -> Result<IntGaugeVec, prometheus::Error> {
    let features = IntGaugeVec::new(
        Opts::new(
            "kubernetes_feature_enabled",
            "Whether the feature is enabled (1) or not (0), by its name and its stage.",
        ),
        &["name", "stage"],
    )?;
    for (name, stage, is_enabled) in feature_gates::all(gates) {
        features.with_label_values(&[name, stage]).set(is_enabled.into());
    }
    Ok(features)
}

/// Returns the text of docs/metrics.md: every family that the daemon can expose with these
/// controllers. Nothing is sent: the controllers are built and dropped before any of their tasks
/// runs.
pub(crate) async fn reference(known: &[Descriptor]) -> Result<String, Error> {
    let registry = Registry::new();
    let metrics = Metrics::register(&registry, &[]).map_err(Error::Metrics)?;
    // An address in the range for documentation.
    let arguments = ["portreeve", "--master=http://192.0.2.1"];
    let config = Config::parse(arguments, known).map_err(Error::Reference)?;
    let settings = client::settings(true, &metrics.client, &Outage::default());
    let connection = Connection::open(&config.options.client, settings)
        .await
        .map_err(Error::Connection)?;
    // Otherwise there is no CA to publish.
    connection.authorities().replace(Some("".into()));
    let group = ControllerGroup {
        controllers: known.to_vec(),
        election: None,
    };
    let settings = config.options.manager.settings(Heartbeat::default());
    let manager =
        Manager::new(connection, settings, vec![group], Arc::new(SystemClock), &registry).map_err(Error::Manager)?;
    manager.build_controllers(&config.flags).map_err(Error::Manager)?;
    Ok(page(&registry.families()))
}

fn page(families: &[Family]) -> String {
    let mut page = include_str!("metrics.md").to_owned();
    for family in families {
        let Family {
            name,
            help,
            kind,
            labels,
        } = family;
        let mut labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        labels.sort();
        let help = help.replace('|', "\\|").replace('*', "\\*").replace('<', "\\<");
        let row = format!("| `{name}` | {} | {} | {help} |\n", kind.name(), labels.join(", "));
        page.push_str(&row);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_cli::CONTROLLERS;

    /// Returns the text before the table of families, and the rows of that table.
    async fn parts() -> (String, Vec<String>) {
        let reference = reference(CONTROLLERS).await.unwrap();
        let (before, table) = reference.split_once("## Families\n").unwrap();
        let rows = table.lines().filter(|line| line.starts_with("| `"));
        (before.to_owned(), rows.map(str::to_owned).collect())
    }

    #[tokio::test]
    async fn the_values_of_every_label_are_described() {
        let (cardinality, rows) = parts().await;
        for label in rows.iter().flat_map(|row| row.split(" | ").nth(2).unwrap().split(", ")) {
            assert!(cardinality.contains(label), "{label}");
        }
    }

    #[tokio::test]
    async fn every_family_has_a_type_and_a_help_text() {
        let (_, rows) = parts().await;
        assert!(rows.len() > 60, "{rows:?}");
        for row in rows {
            let cells: Vec<_> = row.split(" | ").collect();
            assert!(["counter", "gauge", "histogram"].contains(&cells[1]), "{row}");
            assert!(
                cells.last().is_some_and(|help| help.trim_end_matches(" |").len() > 10),
                "{row}"
            );
        }
    }
}
