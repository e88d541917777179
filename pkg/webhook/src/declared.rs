//! The webhooks that the enabled controllers declare.
//!
//! Architecture Invariant: pure.

use std::collections::BTreeSet;

use portreeve_reconcile::{Descriptor, admission::Webhook};

/// The reason why webhooks cannot be served together.
#[derive(Debug, thiserror::Error)]
pub enum DeclarationError {
    /// Two controllers declare the same webhook.
    #[error("two of the enabled controllers declare the webhook {path}: rename one of them")]
    Duplicate {
        /// The path of both.
        path: String,
    },
    /// The apiserver would reject the configuration.
    #[error(
        "invalid name of a webhook: {name:?} is not a DNS name with at least three labels, such as things.example.dev"
    )]
    Name {
        /// The name.
        name: &'static str,
    },
}

/// Returns the webhooks of these controllers.
///
/// # Errors
///
/// Returns an error when one has an invalid name, or two have the same path.
pub fn declared(enabled: &[Descriptor]) -> Result<Vec<Webhook>, DeclarationError> {
    let webhooks: Vec<_> = enabled.iter().flat_map(|descriptor| (descriptor.webhooks)()).collect();
    let mut paths = BTreeSet::new();
    for webhook in &webhooks {
        if !is_qualified(webhook.name) {
            return Err(DeclarationError::Name { name: webhook.name });
        }
        if !paths.insert(webhook.path()) {
            return Err(DeclarationError::Duplicate { path: webhook.path() });
        }
    }
    Ok(webhooks)
}

fn is_qualified(name: &str) -> bool {
    let is_name_char = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.chars().all(is_name_char)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').count() >= 3 && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use portreeve_api::Resource;
    use portreeve_reconcile::{Registrations, admission::Verdict};
    use serde_json::Value;

    use super::*;

    const THINGS: Resource = Resource::namespaced("example.dev", "v1", "Thing", "things");

    const fn controller(webhooks: fn() -> Vec<Webhook>) -> Descriptor {
        Descriptor {
            name: "thing-controller",
            log_target: module_path!(),
            aliases: &[],
            on_by_default: true,
            in_testenv: false,
            crds: &[],
            policies: &[],
            rules: &[],
            webhooks,
            flags: Vec::new,
            build: |_| -> Result<Registrations, _> { unreachable!("nothing is built") },
        }
    }

    #[test]
    fn names_of_webhooks_are_dns_names() {
        for name in ["crontabs.stable.example.com", "a.b.c", "a-1.b.c"] {
            assert!(is_qualified(name), "{name}");
        }
        for name in ["", "a.b", "a..b.c", "A.b.c", "-a.b.c", "a_b.c.d", "a.b.c."] {
            assert!(!is_qualified(name), "{name}");
        }
        let unqualified = controller(|| vec![Webhook::defaulting("things", THINGS, |_| {})]);
        let error = declared(&[unqualified]).unwrap_err().to_string();
        assert!(
            error.contains("\"things\"") && error.contains("things.example.dev"),
            "{error}"
        );
    }

    #[test]
    fn a_path_is_declared_once() {
        let both = controller(|| {
            let name = "things.example.dev";
            vec![
                Webhook::defaulting(name, THINGS, |_| {}),
                Webhook::validating::<Value>(name, THINGS, |_| Verdict::new()),
            ]
        });
        assert_eq!(declared(&[both]).unwrap().len(), 2);
        let error = declared(&[both, both]).unwrap_err().to_string();
        assert!(error.contains("/mutate/things.example.dev"), "{error}");
    }
}
