//! Tests under load. Each runs in the smallest form that fails without the behaviour that it shows;
//! the environment variable `SCALE`, which `make scale` sets, selects its full size.

mod guessed_tokens;
mod migration;
mod outage;
mod priority;
mod retry_storm;
mod unreadable;

/// Returns whether tests run in full size.
pub(crate) fn is_full_size() -> bool {
    std::env::var_os("SCALE").is_some_and(|value| !value.is_empty())
}
