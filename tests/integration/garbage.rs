//! Tests of the garbage-collector-controller on the real apiserver, as a black box.
//!
//! The tests named `test_…` have the steps of Kubernetes' integration tests of the same names. The
//! tests named `should_…` have the steps of its end-to-end tests. A collector acts on a whole
//! cluster. Tests that need no special cluster or collector share one of each (`shared`) and use a
//! namespace each. The others have a control plane of their own.

mod aggregated;
mod breaker;
mod cascades;
mod collector;
mod conversion;
mod crds;
mod custom;
mod cycles;
mod debug;
mod environment;
mod foreground;
mod foreground_waits;
mod graph;
mod orphan_failures;
mod ownership_tree;
mod processes;
pub(crate) mod profile;
mod references;
pub(crate) mod restore;
mod retries;
mod shared;
mod specs;
mod unlistable;
