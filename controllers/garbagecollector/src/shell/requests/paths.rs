//! The paths of objects.
//!
//! Architecture Invariant: pure.

use std::fmt::Write;

use portreeve_api::{ObjectKey, Resource};

use super::RequestError;

/// Returns the path of an object. A reference can contain any name, so names that would change the
/// path are rejected.
pub(super) fn path(resource: &Resource, key: &ObjectKey) -> Result<String, RequestError> {
    if key.name.is_empty() || matches!(&*key.name, "." | "..") || key.name.contains(['/', '%']) {
        return Err(RequestError::other(format!("invalid object name {:?}", key.name)));
    }
    let mut path = resource.collection_path(key.namespace.as_deref());
    path.push('/');
    escape(&key.name, &mut path);
    Ok(path)
}

/// Appends `text`, percent-encoded for a path or a query.
pub(super) fn escape(text: &str, path: &mut String) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' | b'@' => path.push(byte.into()),
            // Writing to a string never fails.
            _ => drop(write!(path, "%{byte:02X}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PODS: Resource = Resource::namespaced("", "v1", "Pod", "pods");

    #[test]
    fn names_that_would_change_the_path_are_rejected() {
        let path = |name: &str| path(&PODS, &ObjectKey::namespaced("n", name)).ok();
        assert_eq!(path("a-b.c").as_deref(), Some("/api/v1/namespaces/n/pods/a-b.c"));
        assert_eq!(
            path("system:x?y#z").as_deref(),
            Some("/api/v1/namespaces/n/pods/system:x%3Fy%23z")
        );
        for name in ["", ".", "..", "../secrets/s", "a/b", "a%2fb"] {
            assert_eq!(path(name), None, "{name}");
        }
    }
}
