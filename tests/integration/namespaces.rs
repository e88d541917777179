//! namespace-controller on the real apiserver, as a ServiceAccount with exactly the rights that
//! `portreeve rbac` prints.

mod content;
pub(crate) mod environment;
mod explain;
mod hidden;
mod kubernetes;
mod other_manager;
pub(crate) mod profile;
mod successors;
mod together;
