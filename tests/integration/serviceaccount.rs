//! serviceaccount-controller on the real apiserver.

mod kubernetes;
pub(crate) mod profile;
