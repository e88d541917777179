//! The harness against the real servers. They must be there: `make control-plane`.

mod access;
mod canned;
mod faults;
mod leftovers;
mod process;
mod proxy;
mod servers;
