//! Common types: object keys, resources, minimal metadata, owner references and conditions.
//!
//! Every crate that handles objects uses these types. The API types of a controller are in its
//! folder.
//!
//! Architecture Invariant: this crate is pure. A time is always an argument.

pub mod conditions;
mod key;
mod lazy_json;
mod metadata;
mod part_of;
mod resource;

pub use key::ObjectKey;
pub use lazy_json::{LazyObject, LazyValue};
pub use metadata::{AnnotatedMetadata, Metadata, OwnerReference, null_as_default};
pub use part_of::{PART_OF, PROGRAM};
pub use resource::{CRDS, Resource, Scope};
