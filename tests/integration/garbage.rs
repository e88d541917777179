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
mod definition;
mod definitions;
pub(crate) mod draft;
mod estate;
mod faults;
mod foreground;
mod graph;
pub(crate) mod judge;
mod processes;
mod references;
mod restore;
mod shared;
mod specs;
mod stage;
mod surface;
pub(crate) mod yard;
