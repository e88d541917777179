//! The faults that tests inject.
//!
//! The tests in `integration/chaos` inject them while every controller works, the tests of single
//! controllers while one works, and the tests in `ha` while three replicas run.

pub(crate) mod admission;
pub(crate) mod requests;
pub(crate) mod servers;
