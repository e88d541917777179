//! The label of the CRDs that belong to this program.

/// The label that names the program that an object is a part of.
pub const PART_OF: &str = "app.kubernetes.io/part-of";
/// The value of [`PART_OF`] on our CRDs.
pub const PROGRAM: &str = "portreeve";
