//! Ready-made index functions, for [`Informer::index`](crate::Informer::index).

use portreeve_api::Metadata;

use crate::Projection;

/// Indexes objects by namespace. Cluster-scoped objects are under the empty string.
pub fn by_namespace<T: Projection>(object: &T) -> Vec<Box<str>> {
    let namespace = object.metadata().namespace.as_deref().unwrap_or_default();
    vec![namespace.into()]
}

/// Indexes objects by their namespace and the UID of their controlling owner. [`controlled_by`]
/// returns the value to look up.
///
/// An owner reference is valid only within a namespace: anyone who may create objects in one
/// namespace can write the UID of an owner in another one.
pub fn by_controller<T: Projection>(object: &T) -> Vec<Box<str>> {
    let metadata = object.metadata();
    let controller = metadata.controller();
    let value = controller.map(|owner| controller_value(metadata.namespace.as_deref(), &owner.uid));
    value.into_iter().collect()
}

/// Returns the value of [`by_controller`] for the objects that this owner may control: those in its
/// own namespace, or the cluster-scoped ones if it has none.
pub fn controlled_by(owner: &Metadata) -> Box<str> {
    controller_value(owner.namespace.as_deref(), &owner.uid)
}

fn controller_value(namespace: Option<&str>, uid: &str) -> Box<str> {
    format!("{}/{uid}", namespace.unwrap_or_default()).into()
}

/// Indexes objects by the value of one label.
pub fn by_label<T: Projection>(label: &'static str) -> impl Fn(&T) -> Vec<Box<str>> + Send + Sync + 'static {
    move |object| object.metadata().labels.get(label).cloned().into_iter().collect()
}
