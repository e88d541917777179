//! Tests of the daemon on a real kube-apiserver.
//!
//! Tests of the behaviour of one controller share a control plane and a daemon, and use a namespace
//! each (`shared`). Tests that delete CRDs, stop servers or give the daemon other flags have
//! a control plane of their own. Informers watch all namespaces, so two daemons on one control
//! plane would both act on the same objects.

mod audit;
mod chaos;
mod clock;
mod controllers;
mod crds;
mod debug;
mod dry_run;
mod election;
mod fence;
mod foo;
mod garbage;
mod health;
mod image;
mod in_process;
mod manifests;
mod metrics;
mod outages;
mod reconciling;
mod restart;
mod rights;
mod schedules;
mod shared;
#[path = "../support/mod.rs"]
mod support;
mod ttl;
mod undecodable;
