//! The controllers that protect claims and volumes in use:
//! persistentvolumeclaim-protection-controller and persistentvolume-protection-controller. Without
//! them, deleted claims and volumes stay for ever, because the apiserver gives each a finalizer.
//!
//! `protection.rs` has what they share: the finalizer is added to objects without it, and removed
//! from deleted objects that are not in use. `claim.rs` and `volume.rs` say what is in use.
//!
//! Architecture Invariant: this crate has no client, no async code and no clock.

mod claim;
mod pod;
mod protection;
mod reconciler;
mod volume;

use portreeve_api::ObjectKey;
use portreeve_informer::{Change, Delta, Informer, Projection, Watch};
use portreeve_reconcile::{Context, Descriptor, KeyedController, Registrations, Rule};

use crate::{
    claim::{CLAIMS, CachedClaim},
    pod::{CachedPod, PODS, SCHEDULED},
    reconciler::{ClaimReconciler, VolumeReconciler},
    volume::{CachedVolume, VOLUMES},
};

/// The descriptor of persistentvolumeclaim-protection-controller.
pub const CLAIM_PROTECTION: Descriptor = Descriptor {
    name: "persistentvolumeclaim-protection-controller",
    log_target: module_path!(),
    aliases: &["pvc-protection"],
    // Most clusters run kube-controller-manager, which already has this controller.
    on_by_default: false,
    in_testenv: true,
    crds: &[],
    policies: &[],
    rules: &[
        Rule {
            groups: &[""],
            resources: &["persistentvolumeclaims"],
            verbs: &["get", "list", "update", "watch"],
        },
        Rule {
            groups: &[""],
            resources: &["pods"],
            verbs: &["list", "watch"],
        },
    ],
    webhooks: Vec::new,
    flags: Vec::new,
    build: |ctx| Ok(build_claim_protection(ctx)),
};

/// The descriptor of persistentvolume-protection-controller.
pub const VOLUME_PROTECTION: Descriptor = Descriptor {
    name: "persistentvolume-protection-controller",
    aliases: &["pv-protection"],
    rules: &[Rule {
        groups: &[""],
        resources: &["persistentvolumes"],
        verbs: &["get", "list", "update", "watch"],
    }],
    build: |ctx| {
        let volumes: Informer<CachedVolume> = ctx.informer(Watch::all(VOLUMES));
        let controller = KeyedController::new(ctx, "pvprotection", VolumeReconciler(volumes.clone()));
        Ok(controller.watch(&volumes, |delta| [delta.key()]).build())
    },
    ..CLAIM_PROTECTION
};

fn build_claim_protection(ctx: &Context<'_>) -> Registrations {
    let claims: Informer<CachedClaim> = ctx.informer(Watch::all(CLAIMS));
    let pods: Informer<CachedPod> = ctx.informer(Watch {
        fields: SCHEDULED.to_owned(),
        ..Watch::all(PODS)
    });
    let reconciler = ClaimReconciler {
        claims: claims.clone(),
        pods_by_claim: pods.index("claim", |pod: &CachedPod| {
            pod.claims().map(|key| key.to_string().into()).collect()
        }),
    };
    let controller = KeyedController::new(ctx, "pvcprotection", reconciler)
        .watch(&claims, |delta| [delta.key()])
        // A control plane without nodes need not serve Pods, and whether a claim is in use is never
        // decided by this cache alone.
        .watch_without_sync(&pods, claims_of_change);
    controller.build()
}

/// Returns the keys of the claims that a Pod names, or named before the change: the change may be
/// another Pod of the same name.
fn claims_of_change(delta: &Delta<CachedPod>) -> Vec<ObjectKey> {
    let before = match &delta.change {
        Change::Updated { old, .. } if old.metadata().uid != delta.change.object().metadata().uid => Some(old),
        _ => None,
    };
    let pods = before.into_iter().chain([delta.change.object()]);
    pods.flat_map(|pod| pod.claims()).collect()
}
