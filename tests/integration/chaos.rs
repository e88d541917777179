//! Every controller at once, while the apiserver, the line to it and the daemon itself fail.
//!
//! A [`work`] gives each controller something to do in waves, and knows how the cluster has to look after each of them. A fault is in
//! force during a wave; what it leaves behind is judged when it is over. Faults come alone, in a fixed order, and together, as a seed
//! has it: `ROUNDS` of the environment says how many seeds are tried, `SEED` where they begin. `make chaos` sets both.

mod credentials;
mod effects;
mod faults;
mod leaks;
mod orphans;
mod pages;
mod random;
mod record;
mod requests;
mod scenario;
mod schemas;
mod servers;
mod stuck;
mod work;
