//! clusterrole-aggregation-controller on the real apiserver.

mod life;
pub(crate) mod profile;
