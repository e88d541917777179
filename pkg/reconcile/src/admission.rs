//! The webhooks that a controller declares: pure functions, and when the apiserver calls them.
//!
//! A rule belongs into the CRD if its schema can express it. A webhook is for what needs code, such
//! as parsing a schedule. docs/admission.md says what goes where.
//!
//! Architecture Invariant: pure. The time is an argument.

use std::{fmt, sync::Arc};

use jiff::Timestamp;
use portreeve_api::{LazyObject, Resource};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};

/// The longest text of a value in an error, in characters.
const LONGEST_VALUE: usize = 64;
/// The longest message about a value that cannot be decoded, in bytes.
const LONGEST_DECODE_ERROR: usize = 256;

/// A webhook, which the apiserver calls before it stores an object.
#[derive(Clone)]
pub struct Webhook {
    /// The name, which users see in errors. A DNS name with at least three labels, such as
    /// `crontabs.stable.example.com`; unique among the webhooks that default and among those that
    /// validate.
    pub name: &'static str,
    /// The objects for which it is called.
    pub resource: Resource,
    /// Other versions of the resource whose objects are passed as they are. Objects of all further
    /// versions are converted to that of the resource.
    pub other_versions: &'static [&'static str],
    /// The label without which objects are left alone: an update counts if the object has the label
    /// before or after it.
    pub label: Option<&'static str>,
    /// What happens to a request when no replica answers in time.
    pub failure_policy: FailurePolicy,
    /// The namespaced resource whose objects, in the namespace of the request, are passed to
    /// `validate`.
    pub parameters: Option<Resource>,
    /// The function.
    pub handler: WebhookHandler,
}

/// What happens to a request when the webhook cannot be called.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FailurePolicy {
    /// The request continues.
    Ignore,
    /// The request is rejected. Choose it only if an object that was not checked would do harm, and
    /// say why in the docs.
    Fail,
}

/// The function of a webhook.
#[derive(Clone)]
pub enum WebhookHandler {
    /// Sets defaults. The fields may have any values, because nobody has validated the object.
    Default(fn(&mut LazyObject<'_>)),
    /// Decides whether an object may be stored.
    Validate(Validate),
    /// Converts an object to the given `apiVersion`. It may get partial and invalid objects: those
    /// that server-side apply builds from the fields of one manager, and those that were stored
    /// before a rule was tightened. So it moves the fields that it knows and keeps all others. An
    /// error fails the whole request, even a list of all objects. The metadata has nothing but
    /// the namespace, the name, labels and annotations.
    Convert(Convert),
}

/// Converts an object to an `apiVersion`.
pub type Convert = fn(&mut LazyObject<'_>, &str) -> Result<(), ConversionError>;

/// The reason why an object cannot be converted. Its text is part of the response to the apiserver.
#[derive(Debug, thiserror::Error)]
pub enum ConversionError {
    /// The value to convert is no object.
    #[error("cannot convert a value that is no object")]
    NoObject,
    /// The objects do not have this version.
    #[error("cannot convert to {api_version:?}: {kinds} have the versions {known}")]
    UnknownVersion {
        /// The version to convert to.
        api_version: String,
        /// The kind in the plural, such as `CronTabs`.
        kinds: &'static str,
        /// The versions that the objects have, such as `v1 and v2`.
        known: &'static str,
    },
    /// Another reason. Only its own text reaches the apiserver, without its sources.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

/// Decides whether an object may be stored.
pub type Validate = Arc<dyn Fn(&Review<'_, &RawValue>) -> Verdict + Send + Sync>;

/// An object before it is stored.
#[derive(Debug)]
pub struct Review<'a, T> {
    /// The stored object; `None` when it is created, or if it cannot be decoded.
    pub old: Option<T>,
    /// The object to store.
    pub new: T,
    /// The objects of [`Webhook::parameters`]; `None` if they are not known.
    pub parameters: Option<&'a [Arc<Value>]>,
    /// The time.
    pub now: Timestamp,
}

impl<T> Review<'_, T> {
    /// Returns the parameters that can be decoded.
    pub fn parameters<P: DeserializeOwned>(&self) -> impl Iterator<Item = P> {
        let parameters = self.parameters.into_iter().flatten();
        parameters.filter_map(|object| P::deserialize(&**object).ok())
    }
}

impl Webhook {
    /// Returns a webhook that sets defaults when an object is created. While it cannot be called,
    /// objects are stored without them.
    pub fn defaulting(name: &'static str, resource: Resource, default: fn(&mut LazyObject<'_>)) -> Self {
        Self::new(name, resource, WebhookHandler::Default(default))
    }

    /// Returns a webhook that validates objects of which it decodes `T`. While it cannot be called,
    /// objects are stored without validation; see [`Self::fail_closed`].
    ///
    /// It is not called for updates that change only the status or metadata other than labels and
    /// annotations, nor for objects that are being deleted, so that it never blocks a controller or
    /// a deletion. An object that cannot be decoded is rejected.
    pub fn validating<T: DeserializeOwned>(
        name: &'static str,
        resource: Resource,
        validate: impl Fn(&Review<'_, T>) -> Verdict + Send + Sync + 'static,
    ) -> Self {
        let validate = move |review: &Review<'_, &RawValue>| {
            let mut encoded = serde_json::Deserializer::from_str(review.new.get());
            match serde_path_to_error::deserialize(&mut encoded) {
                Ok(new) => validate(&Review {
                    old: review.old.and_then(|old| serde_json::from_str(old.get()).ok()),
                    new,
                    parameters: review.parameters,
                    now: review.now,
                }),
                Err(error) => Verdict::new().error(FieldError::undecodable(&error)),
            }
        };
        Self::new(name, resource, WebhookHandler::Validate(Arc::new(validate)))
    }

    /// Returns a webhook that converts objects between the versions of a CRD. `resource` is any of
    /// its versions. The CRD names the webhook, so no configuration is printed.
    pub fn converting(name: &'static str, resource: Resource, convert: Convert) -> Self {
        Self::new(name, resource, WebhookHandler::Convert(convert))
    }

    fn new(name: &'static str, resource: Resource, handler: WebhookHandler) -> Self {
        Self {
            name,
            resource,
            other_versions: &[],
            label: None,
            failure_policy: FailurePolicy::Ignore,
            parameters: None,
            handler,
        }
    }

    /// Rejects requests while the webhook cannot be called.
    #[must_use]
    pub fn fail_closed(mut self) -> Self {
        self.failure_policy = FailurePolicy::Fail;
        self
    }

    /// Leaves objects without this label alone. Use it for a resource that others own, such as
    /// ConfigMaps: without it, the apiserver calls the webhook for every object of the cluster.
    #[must_use]
    pub fn with_label(mut self, label: &'static str) -> Self {
        self.label = Some(label);
        self
    }

    /// Passes objects of these versions as they are, too, so that no request depends on a
    /// conversion.
    #[must_use]
    pub fn with_versions(mut self, versions: &'static [&'static str]) -> Self {
        self.other_versions = versions;
        self
    }

    /// Returns all versions whose objects are passed as they are.
    pub fn versions(&self) -> impl Iterator<Item = &str> {
        [&*self.resource.version]
            .into_iter()
            .chain(self.other_versions.iter().copied())
    }

    /// Passes the objects of this resource to the function: those in the namespace of the request.
    #[must_use]
    pub fn with_parameters(mut self, resource: Resource) -> Self {
        self.parameters = Some(resource);
        self
    }

    /// Returns the path of its URL.
    pub fn path(&self) -> String {
        let verb = match self.handler {
            WebhookHandler::Default(_) => "mutate",
            WebhookHandler::Validate(_) => "validate",
            WebhookHandler::Convert(_) => "convert",
        };
        format!("/{verb}/{}", self.name)
    }
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Webhook").field(&self.path()).finish()
    }
}

/// The result of a validation. Without errors, the object is stored.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Verdict {
    /// Why the object is rejected.
    pub errors: Vec<FieldError>,
    /// What the user should know, in at most 120 characters each.
    pub warnings: Vec<String>,
}

impl Verdict {
    /// Returns a verdict without errors and warnings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an error.
    #[must_use]
    pub fn error(mut self, error: FieldError) -> Self {
        self.errors.push(error);
        self
    }

    /// Adds a warning.
    #[must_use]
    pub fn warning(mut self, warning: impl Into<String>) -> Self {
        self.warnings.push(warning.into());
        self
    }
}

/// Why a field is rejected, in Kubernetes' format.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FieldError {
    /// The path of the field, such as `spec.schedule`.
    pub field: String,
    /// The kind of error.
    pub reason: ErrorReason,
    /// The value, why it is rejected, and what is allowed.
    pub message: String,
}

/// The kind of a field's error.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ErrorReason {
    /// The value can never work.
    Invalid,
    /// The value is not allowed here.
    Forbidden,
}

impl ErrorReason {
    /// Returns the reason of the cause in a `Status`.
    pub fn cause(self) -> &'static str {
        match self {
            Self::Invalid => "FieldValueInvalid",
            Self::Forbidden => "FieldValueForbidden",
        }
    }
}

impl FieldError {
    /// Returns the error of a value that can never work.
    pub fn invalid(field: &str, value: &str, message: impl fmt::Display) -> Self {
        Self::new(field, ErrorReason::Invalid, value, message)
    }

    /// Returns the error of a value that is not allowed here. An empty value is left out of the
    /// message.
    pub fn forbidden(field: &str, value: &str, message: impl fmt::Display) -> Self {
        Self::new(field, ErrorReason::Forbidden, value, message)
    }

    /// Returns the error of a value that has another type.
    fn undecodable(error: &serde_path_to_error::Error<serde_json::Error>) -> Self {
        let message = error.inner().to_string();
        // The position is one in the request.
        let message = message
            .rsplit_once(" at line ")
            .map_or(&*message, |(message, _)| message);
        Self {
            field: error.path().to_string(),
            reason: ErrorReason::Invalid,
            message: message[..message.floor_char_boundary(LONGEST_DECODE_ERROR)].to_owned(),
        }
    }

    /// Returns the message of the cause in a `Status`: the error without the field.
    pub fn cause(&self) -> String {
        let reason = match self.reason {
            ErrorReason::Invalid => "Invalid value",
            ErrorReason::Forbidden => "Forbidden",
        };
        format!("{reason}: {}", self.message)
    }

    fn new(field: &str, reason: ErrorReason, value: &str, message: impl fmt::Display) -> Self {
        let value = match value.char_indices().nth(LONGEST_VALUE) {
            Some((end, _)) => format!("{}…", &value[..end]),
            None => value.to_owned(),
        };
        Self {
            field: field.to_owned(),
            reason,
            message: match reason {
                ErrorReason::Forbidden if value.is_empty() => message.to_string(),
                _ => format!("{value:?}: {message}"),
            },
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.cause())
    }
}

/// Sets a field of an object unless it has a value other than null. Does nothing if one of the
/// fields above it has a value that is no object; the apiserver rejects the object then.
pub fn set_default(object: &mut LazyObject<'_>, path: &[&'static str], default: impl Serialize) {
    if object.at_mut(path).is_none_or(|value| value.is_null()) {
        object.set_at(path, default);
    }
}

/// Returns the object with the defaults that a webhook sets. A value that is no object stays as it
/// is.
pub fn with_defaults(default: fn(&mut LazyObject<'_>), object: &Value) -> Value {
    let encoded = object.to_string();
    match serde_json::from_str::<LazyObject<'_>>(&encoded) {
        Ok(mut object) => {
            default(&mut object);
            serde_json::json!(object)
        }
        Err(_) => object.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    fn defaulted(object: &Value) -> Value {
        with_defaults(|object| set_default(object, &["spec", "size"], 1), object)
    }

    #[test]
    fn a_default_replaces_only_missing_values() {
        for object in [json!({}), json!({"spec": null}), json!({"spec": {"size": null}})] {
            assert_eq!(defaulted(&object), json!({"spec": {"size": 1}}));
        }
        for object in [
            json!({"spec": {"size": 2}}),
            json!({"spec": "x"}),
            json!("x"),
            Value::Null,
        ] {
            assert_eq!(defaulted(&object), object);
        }
    }

    #[test]
    fn an_error_names_the_field_and_a_part_of_the_value() {
        let error = FieldError::invalid("spec.schedule", &"ü\"".repeat(50), "expected five fields");
        let value = "ü\\\"".repeat(32);
        assert_eq!(
            error.to_string(),
            format!("spec.schedule: Invalid value: \"{value}…\": expected five fields")
        );
    }

    #[test]
    fn an_object_that_cannot_be_decoded_is_rejected_by_its_field() {
        #[derive(Deserialize)]
        struct Object {
            #[serde(rename = "spec")]
            _spec: Spec,
        }
        #[derive(Deserialize)]
        struct Spec {
            #[serde(rename = "size")]
            _size: u8,
        }
        const RESOURCE: Resource = Resource::namespaced("example.dev", "v1", "Thing", "things");
        let webhook = Webhook::validating("things.example.dev", RESOURCE, |_: &Review<'_, Object>| Verdict::new());
        let WebhookHandler::Validate(validate) = webhook.handler else {
            panic!("it validates");
        };
        let verdict = |new: Value| {
            validate(&Review {
                old: None,
                new: &serde_json::value::to_raw_value(&new).unwrap(),
                parameters: None,
                now: Timestamp::UNIX_EPOCH,
            })
        };
        assert_eq!(verdict(json!({"spec": {"size": 1}})), Verdict::new());
        let errors = verdict(json!({"spec": {"size": "x"}})).errors;
        assert_eq!(
            errors[0].to_string(),
            r#"spec.size: Invalid value: invalid type: string "x", expected u8"#
        );
    }
}
