//! Tests that run every controller at once while the apiserver, the connection to it and the daemon
//! itself fail.
//!
//! A [`work`] gives each controller objects to reconcile in waves, and knows the expected state of
//! the cluster after each wave. A fault is active during a wave. After it is healed, the test
//! verifies the cluster. The tests inject each fault alone, in a fixed order, and combinations of
//! faults that a seed determines. The environment variable `ROUNDS` sets the number of seeds and
//! `SEED` the first one. `make chaos` sets both.

mod alone;
mod credentials;
mod effects;
mod health_monitor;
mod leaks;
mod orphans;
mod random;
mod scenario;
mod schemas;
mod stuck;
mod work;
