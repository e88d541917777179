//! Tests of the daemon on a real kube-apiserver, and of its command line.
//!
//! Tests of the behaviour of one controller share a control plane and a daemon, and use a namespace
//! each (`shared_daemon`). Tests that delete CRDs, stop servers or give the daemon other flags take
//! a control plane of the pool for themselves. Informers watch all namespaces, so two daemons on
//! one control plane would both act on the same objects.

mod access;
mod admission;
mod aggregation;
mod audit;
mod bare_plane;
mod certificates;
mod chaos;
mod cli;
mod controllers;
mod conversion;
mod crds;
mod credentials;
mod debug;
mod denials;
mod dry_run;
mod election;
mod events;
mod faults;
mod fence;
mod fixtures;
mod flow_schema;
mod foo;
mod garbage;
mod ha;
mod health;
mod lease_access;
mod logs;
mod metrics;
mod migration;
mod namespaces;
mod outages;
mod paused;
mod profile;
mod reconciling;
mod registry;
mod release;
mod requests;
mod rights;
mod rootca;
mod scale;
mod schedules;
mod serviceaccount;
mod shared_watches;
mod testenv;
mod ttl;
mod undecodable;
mod upgrade;
mod volumes;
mod webhooks;
