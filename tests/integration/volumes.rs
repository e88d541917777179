//! The protection of claims and volumes on the real apiserver, where no Pod ever runs.

mod claims;
pub(crate) mod profile;
mod unseen;
mod volumes_in_use;
