//! root-ca-certificate-publisher-controller on the real apiserver.

mod followed;
mod kubernetes;
pub(crate) mod profile;
