//! The selection of objects that a watch covers, and its URL.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use portreeve_api::Resource;

/// The objects that a watch covers. Informers of the same objects share one watch.
#[derive(Clone, Debug)]
pub struct Watch {
    /// The resource.
    pub resource: Resource,
    /// The namespace, or `None` for all namespaces.
    pub namespace: Option<Arc<str>>,
    /// A label selector. The empty string selects all objects.
    pub labels: String,
    /// A field selector. The empty string selects all objects.
    pub fields: String,
    /// The versions that the reader decodes, if there are several; see [`Watch::decoding`].
    pub versions: &'static [&'static str],
}

/// Two watches are equal if they cover the same objects.
impl PartialEq for Watch {
    fn eq(&self, other: &Self) -> bool {
        self.objects() == other.objects()
    }
}

impl Eq for Watch {}

impl Hash for Watch {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.objects().hash(state);
    }
}

impl Watch {
    /// Selects all objects of a resource.
    pub fn all(resource: Resource) -> Self {
        Self {
            resource,
            namespace: None,
            labels: String::new(),
            fields: String::new(),
            versions: &[],
        }
    }

    /// Declares that the reader decodes objects of each of these versions. The watch then reads the
    /// one in which all objects are stored, so that it does not depend on a conversion webhook, and
    /// else the first one. It follows changes of the CRD. All other readers of the watch get the
    /// same version.
    #[must_use]
    pub fn decoding(mut self, versions: &'static [&'static str]) -> Self {
        self.versions = versions;
        self
    }

    fn objects(&self) -> (&Resource, Option<&str>, &str, &str) {
        (&self.resource, self.namespace.as_deref(), &self.labels, &self.fields)
    }

    /// Returns whether the watch covers all objects of its resource.
    pub(crate) fn covers_all_objects(&self) -> bool {
        self.namespace.is_none() && self.labels.is_empty() && self.fields.is_empty()
    }
}

impl fmt::Display for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.resource)?;
        if let Some(namespace) = &self.namespace {
            write!(f, " in {namespace}")?;
        }
        let mut word = "where";
        for selector in [&self.labels, &self.fields] {
            if !selector.is_empty() {
                write!(f, " {word} {selector}")?;
                word = "and";
            }
        }
        Ok(())
    }
}

/// A URL path with its parameters.
pub(crate) struct Query(String);

impl Query {
    pub(crate) fn new(watch: &Watch) -> Self {
        let mut query = Self(watch.resource.collection_path(watch.namespace.as_deref()));
        if !watch.labels.is_empty() {
            query.add("labelSelector", &watch.labels);
        }
        if !watch.fields.is_empty() {
            query.add("fieldSelector", &watch.fields);
        }
        query
    }

    pub(crate) fn add(&mut self, name: &str, value: &str) {
        let separator = if self.0.contains('?') { '&' } else { '?' };
        self.0.push(separator);
        self.0.push_str(name);
        self.0.push('=');
        for byte in value.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => self.0.push(byte.into()),
                _ => self.0.extend(['%', hex(byte >> 4), hex(byte & 15)]),
            }
        }
    }

    pub(crate) fn into_path(self) -> String {
        self.0
    }
}

/// Returns the hexadecimal digit of a number below 16.
fn hex(number: u8) -> char {
    char::from_digit(number.into(), 16).unwrap_or('0').to_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOOS: Resource = Resource::namespaced("samplecontroller.k8s.io", "v1alpha1", "Foo", "foos");

    fn selected() -> Watch {
        Watch {
            namespace: Some("a".into()),
            labels: "app in (x,y),!z".to_owned(),
            fields: "metadata.name=b".to_owned(),
            ..Watch::all(FOOS)
        }
    }

    #[test]
    fn selectors_are_escaped_in_the_url() {
        let mut query = Query::new(&selected());
        query.add("continue", "a+b/c=&d");
        assert_eq!(
            query.into_path(),
            "/apis/samplecontroller.k8s.io/v1alpha1/namespaces/a/foos?labelSelector=app%20in%20%28x%2Cy%29%2C%21z\
             &fieldSelector=metadata.name%3Db&continue=a%2Bb%2Fc%3D%26d"
        );
    }

    #[test]
    fn the_name_of_a_watch_includes_namespace_and_selectors() {
        let all = "foos.v1alpha1.samplecontroller.k8s.io";
        assert_eq!(Watch::all(FOOS).to_string(), all);
        assert_eq!(
            selected().to_string(),
            format!("{all} in a where app in (x,y),!z and metadata.name=b")
        );
    }
}
