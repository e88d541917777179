//! Tests of informers with a real kube-apiserver and etcd: they check the assumptions of the
//! scripted tests, and behaviour that only real servers have.

mod discovery;
mod outages;
mod watches;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::Result;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Config,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use portreeve_api::{Metadata, Resource};
use portreeve_client::{AlwaysOpen, Connection, Metrics, Outage, Settings};
use portreeve_informer::{Change, Delta, Factory, Informer, InformerConfig, Projection, Watch};
use portreeve_metrics::Registry;
use portreeve_testing::{ControlPlane, FaultProxy, LIMIT, eventually};
use serde::Deserialize;
use serde_json::json;

const CONFIG_MAPS: Resource = Resource::namespaced("", "v1", "ConfigMap", "configmaps");

/// The projection of these tests.
#[derive(Debug, Deserialize)]
struct Note {
    metadata: Metadata,
}

impl Projection for Note {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// Returns a factory with its own connection.
fn factory(config: Config) -> Result<Factory> {
    let settings = Settings {
        program: "portreeve/test".to_owned(),
        call_limit: Duration::from_secs(10),
        fence: Arc::new(AlwaysOpen),
        metrics: Metrics::register(&Registry::new())?,
        outage: Outage::default(),
    };
    let client = Connection::from_config(config, settings)?.client("informer-test")?;
    Ok(Factory::new(client, InformerConfig::default()))
}

/// Returns the watch on all ConfigMaps of a namespace.
fn config_maps(namespace: &str) -> Watch {
    Watch {
        namespace: Some(namespace.into()),
        ..Watch::all(CONFIG_MAPS)
    }
}

fn config_map(name: &str, text: &str) -> ConfigMap {
    ConfigMap {
        metadata: kube::api::ObjectMeta {
            name: Some(name.to_owned()),
            ..kube::api::ObjectMeta::default()
        },
        data: Some(BTreeMap::from([("text".to_owned(), text.to_owned())])),
        ..ConfigMap::default()
    }
}

async fn create(api: &Api<ConfigMap>, name: &str, text: &str) -> Result<()> {
    api.create(&PostParams::default(), &config_map(name, text)).await?;
    Ok(())
}

async fn set_text(api: &Api<ConfigMap>, name: &str, text: &str) -> Result<()> {
    let patch = Patch::Merge(json!({"data": {"text": text}}));
    api.patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn delete(api: &Api<ConfigMap>, name: &str) -> Result<()> {
    api.delete(name, &DeleteParams::default()).await?;
    Ok(())
}

/// The changes that a subscriber received, one line each.
#[derive(Clone, Default)]
struct ChangeLog(Arc<Mutex<Vec<String>>>);

impl ChangeLog {
    fn handler<T: Projection>(&self) -> impl Fn(&Delta<T>) + Send + Sync + 'static {
        let changes = self.clone();
        move |delta| {
            let name = &delta.change.object().metadata().name;
            let line = match &delta.change {
                Change::Added(_) => format!("added {name}"),
                Change::Updated { .. } => format!("updated {name}"),
                Change::Deleted { is_final: true, .. } => format!("deleted {name}"),
                Change::Deleted { is_final: false, .. } => format!("deleted {name}, unobserved"),
            };
            changes.0.lock().push(line);
        }
    }

    /// Waits until the log has exactly these lines.
    async fn becomes(&self, expected: &[&str]) -> Result<()> {
        eventually(LIMIT, &format!("{expected:?}"), || async {
            let lines = self.0.lock().clone();
            if lines == expected {
                Ok(())
            } else {
                Err(format!("{lines:?}"))
            }
        })
        .await
    }
}
