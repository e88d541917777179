//! The webhooks of the controller, which are called for ConfigMaps with its label: an empty label
//! gets a name, and one that can never work is rejected.

use portreeve_api::LazyObject;
use portreeve_reconcile::admission::{FieldError, Review, Verdict, Webhook};

use crate::{CONFIG_MAPS, CachedConfigMap, LABEL};

const NAME: &str = "copies.example.dev";
const FIELD: &str = "metadata.labels[example.dev/copy-to]";

pub(crate) fn declared() -> Vec<Webhook> {
    let default = Webhook::defaulting(NAME, CONFIG_MAPS, default);
    let validate = Webhook::validating(NAME, CONFIG_MAPS, validate);
    [default, validate].map(|webhook| webhook.with_label(LABEL)).into()
}

fn default(map: &mut LazyObject<'_>) {
    const LABEL_PATH: &[&str] = &["metadata", "labels", LABEL];
    if let (Some(name), Some("")) = (map.text_at(&["metadata", "name"]), map.text_at(LABEL_PATH).as_deref()) {
        map.set_at(LABEL_PATH, format!("{name}-copy"));
    }
}

fn validate(review: &Review<'_, CachedConfigMap>) -> Verdict {
    let label = |map: &CachedConfigMap| map.metadata.labels.get(LABEL).cloned();
    let is_part = |part: &str| !part.is_empty() && part.trim_matches('-') == part;
    let is_char = |c| matches!(c, 'a'..='z' | '0'..='9' | '-' | '.');
    let is_name = |text: &str| text.chars().all(is_char) && text.split('.').all(is_part);
    match (review.old.as_ref().and_then(label), label(&review.new)) {
        (old, new) if old == new => Verdict::new(),
        (_, Some(new)) if *new == *review.new.metadata.name || !is_name(&new) => {
            Verdict::new().error(FieldError::invalid(FIELD, &new, "name another ConfigMap"))
        }
        (Some(old), _) => Verdict::new().warning(format!("{FIELD}: the copy {old:?} stays and is no longer updated")),
        (None, _) => Verdict::new(),
    }
}
