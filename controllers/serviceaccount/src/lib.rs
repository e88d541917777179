//! serviceaccount-controller keeps a ServiceAccount `default` in each namespace, as
//! kube-controller-manager does. Without it, Pods that name no account are rejected.
//!
//! Architecture Invariant: this crate has no client, no async code and no clock.

mod decide;

use jiff::Timestamp;
use portreeve_api::{Metadata, ObjectKey, Resource};
use portreeve_informer::{Informer, MetadataOnly, Projection, Watch};
use portreeve_reconcile::{Context, Descriptor, KeyedController, Plan, Reconciler, Registrations, Rule};
use serde::Deserialize;

use crate::decide::{DEFAULT, Observed, SERVICE_ACCOUNTS, decide};

const NAMESPACES: Resource = Resource::cluster("", "v1", "Namespace", "namespaces");

/// The descriptor of serviceaccount-controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "serviceaccount-controller",
    log_target: module_path!(),
    aliases: &["serviceaccount"],
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
            resources: &["serviceaccounts"],
            verbs: &["create", "list", "watch"],
        },
    ],
    webhooks: Vec::new,
    flags: Vec::new,
    build: |ctx| Ok(build(ctx)),
};

fn build(ctx: &Context<'_>) -> Registrations {
    let namespaces: Informer<MetadataOnly> = ctx.informer(Watch::all(NAMESPACES));
    let accounts: Informer<CachedAccount> = ctx.informer(Watch {
        fields: format!("metadata.name={DEFAULT}"),
        ..Watch::all(SERVICE_ACCOUNTS)
    });
    let reconciler = AccountReconciler {
        namespaces: namespaces.clone(),
        accounts: accounts.clone(),
    };
    let controller = KeyedController::new(ctx, "serviceaccount", reconciler)
        .watch(&namespaces, |delta| [account_in(&delta.key())])
        .watch(&accounts, |delta| [delta.key()]);
    controller.build()
}

/// Returns the key of the account in a namespace. It is the key in the queue, so that the retries
/// of each namespace are a flow of their own.
fn account_in(namespace: &ObjectKey) -> ObjectKey {
    ObjectKey::namespaced(namespace.name.clone(), DEFAULT)
}

/// A ServiceAccount, of which only the existence matters.
#[derive(Deserialize)]
struct CachedAccount {
    metadata: Metadata,
}

impl Projection for CachedAccount {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

struct AccountReconciler {
    namespaces: Informer<MetadataOnly>,
    accounts: Informer<CachedAccount>,
}

impl Reconciler for AccountReconciler {
    type Observed = Observed;

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        let namespace = ObjectKey::cluster(key.namespace.clone()?);
        Some(Observed {
            namespace: self.namespaces.get(&namespace)?,
            exists: self.accounts.get(key).is_some(),
        })
    }

    fn decide(&self, observed: &Observed, _now: Timestamp) -> Plan {
        decide(observed)
    }
}
