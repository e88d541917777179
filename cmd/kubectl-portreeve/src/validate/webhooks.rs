//! The webhooks of the controllers, without a server: they set defaults and validate.
//!
//! Architecture Invariant: pure. The time is an argument.

use jiff::Timestamp;
use portreeve_api::Resource;
use portreeve_reconcile::{
    Descriptor,
    admission::{Review, Verdict, Webhook, WebhookHandler, with_defaults},
};
use serde_json::{Value, value::to_raw_value};

/// The webhooks, at a time.
pub(super) struct Webhooks {
    webhooks: Vec<Webhook>,
    now: Timestamp,
}

impl Webhooks {
    pub(super) fn of(controllers: &[Descriptor], now: Timestamp) -> Self {
        let webhooks = controllers.iter().flat_map(|controller| (controller.webhooks)());
        Self {
            webhooks: webhooks.collect(),
            now,
        }
    }

    /// Returns the new object with the defaults of the webhooks.
    pub(super) fn set_defaults(&self, mut object: Value) -> Value {
        for webhook in &self.webhooks {
            if let WebhookHandler::Default(default) = webhook.handler
                && is_called(webhook, &object)
            {
                object = with_defaults(default, &object);
            }
        }
        object
    }

    /// Returns what the webhooks say about a new object. They get no parameters, because those are
    /// objects of the cluster.
    pub(super) fn review(&self, object: &Value) -> Verdict {
        let mut verdict = Verdict::new();
        // JSON can always be encoded.
        let Ok(encoded) = to_raw_value(object) else {
            return verdict;
        };
        for webhook in &self.webhooks {
            if let WebhookHandler::Validate(validate) = &webhook.handler
                && is_called(webhook, object)
            {
                let found = validate(&Review {
                    old: None,
                    new: &encoded,
                    parameters: Some(&[]),
                    now: self.now,
                });
                verdict.errors.extend(found.errors);
                verdict.warnings.extend(found.warnings);
            }
        }
        verdict
    }
}

/// Returns whether the apiserver calls the webhook for a new object. It converts objects of further
/// versions before, which is not done here.
fn is_called(webhook: &Webhook, object: &Value) -> bool {
    let has_label = |label: &str| object["metadata"]["labels"].get(label).is_some();
    let is_passed = |version: &str| {
        let resource = Resource {
            version: version.to_owned().into(),
            ..webhook.resource.clone()
        };
        object["apiVersion"] == *resource.api_version()
    };
    webhook.versions().any(is_passed) && object["kind"] == *webhook.resource.kind && webhook.label.is_none_or(has_label)
}

#[cfg(test)]
mod tests {
    use portreeve_api::LazyObject;
    use portreeve_reconcile::admission::{FieldError, set_default};
    use serde_json::json;

    use super::*;

    const THINGS: Resource = Resource::namespaced("example.dev", "v1", "Thing", "things");

    #[test]
    fn a_webhook_is_called_for_its_versions_its_kind_and_its_label() {
        let default = |thing: &mut LazyObject<'_>| set_default(thing, &["spec", "size"], 1);
        let reject = |_: &Review<'_, Value>| Verdict::new().error(FieldError::invalid("spec", "a", "no"));
        let webhooks = [
            Webhook::defaulting("a.b.c", THINGS, default),
            Webhook::validating("a.b.c", THINGS, reject),
            Webhook::converting("a.b.c", THINGS, |_, _| Ok(())),
        ];
        let webhooks = Webhooks {
            webhooks: webhooks
                .map(|webhook| webhook.with_label("a").with_versions(&["v3"]))
                .into(),
            now: Timestamp::UNIX_EPOCH,
        };
        let thing = |version: &str, kind: &str, labels: Value| json!({"apiVersion": format!("example.dev/{version}"), "kind": kind, "metadata": {"labels": labels}});
        for (object, is_called) in [
            (thing("v1", "Thing", json!({"a": ""})), true),
            (thing("v1", "Thing", json!({})), false),
            (thing("v1", "Thing", Value::Null), false),
            (thing("v2", "Thing", json!({"a": ""})), false),
            (thing("v3", "Thing", json!({"a": ""})), true),
            (thing("v1", "Other", json!({"a": ""})), false),
        ] {
            assert_eq!(!webhooks.review(&object).errors.is_empty(), is_called, "{object}");
            assert_eq!(webhooks.set_defaults(object.clone()) != object, is_called, "{object}");
        }
    }
}
