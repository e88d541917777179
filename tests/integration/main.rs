//! The daemon on a real kube-apiserver.
//!
//! Tests of one controller's behaviour share a control plane and a daemon, and have a namespace each (`shared`). Tests that delete
//! definitions, stop servers or give the daemon other flags have a control plane of their own: informers look at all namespaces,
//! so two daemons on one would do each other's work.

mod audit;
mod chaos;
mod clock;
mod controllers;
mod debug;
mod definitions;
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
