//! clusterrole-aggregation-controller writes the rules of ClusterRoles that have an
//! `aggregationRule`, as kube-controller-manager does. Without it, the roles `admin`, `edit` and
//! `view` grant nothing.
//!
//! Architecture Invariant: this crate has no client, no async code and no clock.

mod decide;
mod role;
mod selector;

use std::sync::Arc;

use jiff::Timestamp;
use portreeve_api::ObjectKey;
use portreeve_informer::{Change, Delta, Index, Informer, Projection, Watch};
use portreeve_reconcile::{Context, Descriptor, KeyedController, Plan, Reconciler, Registrations, Rule};

use crate::{
    decide::{Observed, decide},
    role::{CLUSTER_ROLES, CachedRole},
};

/// The value of the index under which all aggregated roles are.
const AGGREGATED: &str = "";

/// The descriptor of clusterrole-aggregation-controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "clusterrole-aggregation-controller",
    log_target: module_path!(),
    aliases: &["clusterrole-aggregation"],
    // Most clusters run kube-controller-manager, which already has this controller.
    on_by_default: false,
    in_testenv: true,
    crds: &[],
    policies: &[],
    // Without `escalate`, it could write only rules that its own account has.
    rules: &[Rule {
        groups: &["rbac.authorization.k8s.io"],
        resources: &["clusterroles"],
        verbs: &["escalate", "list", "patch", "watch"],
    }],
    webhooks: Vec::new,
    flags: Vec::new,
    build: |ctx| Ok(build(ctx)),
};

fn build(ctx: &Context<'_>) -> Registrations {
    let roles: Informer<CachedRole> = ctx.informer(Watch::all(CLUSTER_ROLES));
    let aggregated = roles.index("aggregated", |role: &CachedRole| {
        role.aggregates().then(|| AGGREGATED.into()).into_iter().collect()
    });
    // One worker, unlike kube-controller-manager with five: roles that aggregate each other settle
    // because one decision follows the other.
    let controller = KeyedController::new(ctx, "ClusterRoleAggregator", RoleReconciler(roles.clone()))
        .watch(&roles, move |delta| affected(&aggregated, delta));
    controller.build()
}

/// Returns the keys of the aggregated roles that a change affects: the role itself, and those that
/// select or have selected it.
fn affected(aggregated: &Index<CachedRole>, delta: &Delta<CachedRole>) -> Vec<ObjectKey> {
    let now = delta.change.object();
    let before = match &delta.change {
        Change::Updated { old, .. } => Some(old),
        Change::Added(_) | Change::Deleted { .. } => None,
    };
    let mut selecting = aggregated.get(AGGREGATED);
    selecting.retain(|role| role.selects(now) || before.is_some_and(|before| role.selects(before)));
    let selecting = selecting.iter().map(|role| role.metadata().key());
    let itself = now.aggregates().then(|| delta.key());
    itself.into_iter().chain(selecting).collect()
}

struct RoleReconciler(Informer<CachedRole>);

impl Reconciler for RoleReconciler {
    type Observed = Observed;

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        let role = self.0.get(key).filter(|role| role.aggregates())?;
        let mut all: Vec<Arc<CachedRole>> = self.0.list();
        all.sort_by(|one, other| one.metadata().name.cmp(&other.metadata().name));
        Some(Observed { role, all })
    }

    fn decide(&self, observed: &Observed, _now: Timestamp) -> Plan {
        decide(observed)
    }
}
