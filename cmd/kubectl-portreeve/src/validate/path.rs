//! Paths of fields, such as `spec.jobTemplate.containers[0].image`.

use std::fmt;

/// The path of a field, as in the apiserver's messages.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct FieldPath(String);

impl FieldPath {
    pub(super) fn field(&self, name: &str) -> Self {
        if self.0.is_empty() {
            return Self(name.to_owned());
        }
        Self(format!("{}.{name}", self.0))
    }

    pub(super) fn item(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}
