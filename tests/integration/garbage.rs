//! garbage-collector-controller on the real apiserver, seen from outside.
//!
//! The tests that are named `test_…` take the steps of the tests of Kubernetes that have the same names, and `should_…` those of its
//! end-to-end suite; all the others are ours. A collector acts on a whole cluster. So those that need no odd cluster and no odd collector share one of
//! each (`shared`) and have a namespace each, and the others have a control plane of their own.

mod breaker;
mod cascades;
mod collector;
mod conversion;
mod custom;
mod debug;
mod definition;
mod definitions;
pub(crate) mod dynamic_client;
pub(crate) mod expectations;
mod faults;
mod fixtures;
mod foreground;
mod graph;
pub(crate) mod object_builder;
mod ownership_tree;
mod processes;
mod references;
mod restore;
mod shared;
mod specs;
