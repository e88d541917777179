//! Ready-made index functions, for [`Informer::index`](crate::Informer::index).

use crate::Projection;

/// Indexes objects by namespace. Cluster-scoped objects are under the empty string.
pub fn by_namespace<T: Projection>(object: &T) -> Vec<Box<str>> {
    let namespace = object.metadata().namespace.as_deref().unwrap_or_default();
    vec![namespace.into()]
}

/// Indexes objects by the UID of their controlling owner.
pub fn by_controller<T: Projection>(object: &T) -> Vec<Box<str>> {
    let controller = object.metadata().controller();
    controller.map(|owner| owner.uid.clone()).into_iter().collect()
}

/// Indexes objects by the value of one label.
pub fn by_label<T: Projection>(label: &'static str) -> impl Fn(&T) -> Vec<Box<str>> + Send + Sync + 'static {
    move |object| object.metadata().labels.get(label).cloned().into_iter().collect()
}
