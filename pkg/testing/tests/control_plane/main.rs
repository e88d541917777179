//! Tests of the harness with the real servers, which `make control-plane` builds.

mod access;
mod faults;
mod leftovers;
mod pool;
mod process;
mod proxy;
