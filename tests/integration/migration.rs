//! `kubectl portreeve conversion` and `kubectl portreeve migrate`, on definitions of the tests with
//! a real conversion webhook.

mod conversion;
pub(crate) mod environment;
mod faults;
mod installed;
mod interrupted;
mod steps;
