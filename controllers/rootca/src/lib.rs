//! root-ca-certificate-publisher-controller keeps a ConfigMap `kube-root-ca.crt` with the CA of the
//! apiserver in each namespace, as kube-controller-manager does. Pods mount it to verify the
//! apiserver.
//!
//! Architecture Invariant: this crate has no client, no async code and no clock.

mod decide;
mod map;

use std::{path::PathBuf, sync::Arc};

use jiff::Timestamp;
use portreeve_api::{ObjectKey, Resource};
use portreeve_informer::{Informer, MetadataOnly, Watch};
use portreeve_reconcile::{
    BuildError, Context, Descriptor, KeyedController, Plan, Reconciler, Registrations, RootCa, Rule,
};

use crate::{
    decide::{Observed, decide},
    map::{CONFIG_MAPS, CachedMap, NAME},
};

const NAMESPACES: Resource = Resource::cluster("", "v1", "Namespace", "namespaces");
/// The name of the queue and of the metrics, which are those of kube-controller-manager.
const QUEUE: &str = "root_ca_cert_publisher";
/// The flag for the file with the CA.
const ROOT_CA_FILE: &str = "root-ca-file";

/// The descriptor of root-ca-certificate-publisher-controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "root-ca-certificate-publisher-controller",
    log_target: module_path!(),
    aliases: &["root-ca-cert-publisher"],
    // Most clusters run kube-controller-manager, which already has this controller.
    on_by_default: false,
    in_testenv: true,
    crds: &[],
    policies: &[],
    rules: &[
        Rule {
            groups: &[""],
            resources: &["namespaces"],
            verbs: &["list", "watch"],
        },
        Rule {
            groups: &[""],
            resources: &["configmaps"],
            verbs: &["create", "get", "list", "update", "watch"],
        },
    ],
    webhooks: Vec::new,
    flags: || {
        vec![
            clap::Arg::new(ROOT_CA_FILE)
                .long(ROOT_CA_FILE)
                .value_name("FILE")
                .help("The file with the CA certificates of the apiserver, in PEM, that root-ca-certificate-publisher-controller publishes. It is read again every 5s. Without it, those are published with which the daemon itself verifies the apiserver")
                .value_parser(clap::value_parser!(PathBuf)),
        ]
    },
    build,
};

fn build(ctx: &Context<'_>) -> Result<Registrations, BuildError> {
    let file = ctx.flag_values::<PathBuf>(ROOT_CA_FILE)?.pop();
    let ca = RootCa::open(file, &ctx.shared.authorities).map_err(|source| BuildError::RootCa {
        controller: ctx.name,
        flag: ROOT_CA_FILE,
        source,
    })?;
    let namespaces: Informer<MetadataOnly> = ctx.informer(Watch::all(NAMESPACES));
    let maps: Informer<CachedMap> = ctx.informer(Watch {
        fields: format!("metadata.name={NAME}"),
        ..Watch::all(CONFIG_MAPS)
    });
    let reconciler = MapReconciler {
        ca: ca.clone(),
        namespaces: namespaces.clone(),
        maps: maps.clone(),
    };
    let all = namespaces.clone();
    let controller = KeyedController::new(ctx, QUEUE, reconciler)
        .sync_metrics(QUEUE)?
        .watch(&namespaces, |delta| [map_in(&delta.key())])
        .watch(&maps, |delta| [delta.key()])
        .follow_root_ca(&ca, move || {
            all.list()
                .iter()
                .map(|namespace| map_in(&namespace.metadata.key()))
                .collect()
        });
    Ok(controller.build())
}

/// Returns the key of the ConfigMap in a namespace. It is the key in the queue, so that the retries
/// of each namespace are a flow of their own.
fn map_in(namespace: &ObjectKey) -> ObjectKey {
    ObjectKey::namespaced(Arc::clone(&namespace.name), NAME)
}

struct MapReconciler {
    ca: RootCa,
    namespaces: Informer<MetadataOnly>,
    maps: Informer<CachedMap>,
}

impl Reconciler for MapReconciler {
    type Observed = Observed;

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        let namespace = ObjectKey::cluster(key.namespace.clone()?);
        Some(Observed {
            namespace: self.namespaces.get(&namespace)?,
            map: self.maps.get(key),
            ca: self.ca.pem(),
        })
    }

    fn decide(&self, observed: &Observed, _now: Timestamp) -> Plan {
        decide(observed)
    }
}
