//! The watches on CustomResourceDefinitions and API services, whose events trigger discovery.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use serde::{Deserialize, de::IgnoredAny};
use tokio::sync::Notify;

use crate::{Event, Sink, WatchedObject};

/// An object reduced to its name, its version, and one label.
#[derive(Deserialize)]
pub(super) struct Named {
    metadata: NamedMetadata,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NamedMetadata {
    name: Box<str>,
    resource_version: String,
    labels: Option<Labels>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Labels {
    /// Set on API services that the apiserver itself serves.
    #[serde(rename = "kube-aggregator.kubernetes.io/automanaged")]
    automanaged: Option<IgnoredAny>,
}

impl Named {
    fn is_managed(&self) -> bool {
        let labels = self.metadata.labels.as_ref();
        labels.is_some_and(|labels| labels.automanaged.is_some())
    }
}

impl WatchedObject for Named {
    const METADATA_ONLY: bool = true;

    fn name(&self) -> &str {
        &self.metadata.name
    }

    fn resource_version(&self) -> &str {
        &self.metadata.resource_version
    }
}

/// The names of the existing objects of a watch, shared by the sink and its users, and whether the
/// apiserver manages each of them.
pub(super) type Names = Arc<Mutex<BTreeMap<Box<str>, bool>>>;

/// The sink of the watch on CustomResourceDefinitions, and of that on API services.
pub(super) struct NamesSink {
    pub(super) changed: Arc<Notify>,
    pub(super) names: Names,
    /// The names from the list in progress. Until that list is complete, `names` keeps the previous
    /// names.
    pub(super) listed: BTreeMap<Box<str>, bool>,
}

impl Sink for NamesSink {
    type Object = Named;

    fn apply(&mut self, event: Event<Named>) {
        let is_change = is_change(&event);
        match event {
            Event::Relisting => self.listed.clear(),
            Event::Listed(object) => {
                let is_managed = object.is_managed();
                self.listed.insert(object.metadata.name, is_managed);
            }
            Event::Synced => *self.names.lock() = std::mem::take(&mut self.listed),
            Event::Applied(object) => {
                let is_managed = object.is_managed();
                self.names.lock().insert(object.metadata.name, is_managed);
            }
            Event::Deleted(object) => {
                self.names.lock().remove(&object.metadata.name);
            }
            // Only the name matters, and the key of an undecodable object contains it.
            Event::Undecodable { key, .. } => {
                self.names.lock().entry((*key.name).into()).or_default();
            }
            Event::DeletedUndecodable(key) => {
                self.names.lock().remove(&*key.name);
            }
        }
        if is_change {
            self.changed.notify_one();
        }
    }
}

/// Returns whether the event triggers discovery. A list triggers it once, when it is complete.
fn is_change<T>(event: &Event<T>) -> bool {
    match event {
        Event::Relisting | Event::Listed(_) => false,
        Event::Synced
        | Event::Applied(_)
        | Event::Deleted(_)
        | Event::Undecodable { .. }
        | Event::DeletedUndecodable(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use portreeve_testing::Corpus;

    use super::*;
    use crate::protocol::{
        Lines,
        decoded::{Decoded, decode_line},
    };

    fn named(name: &str) -> Named {
        let metadata = NamedMetadata {
            name: name.into(),
            resource_version: "1".to_owned(),
            labels: None,
        };
        Named { metadata }
    }

    #[test]
    fn names_follow_the_last_complete_list_and_later_events() {
        let mut services = NamesSink {
            changed: Arc::default(),
            names: Names::default(),
            listed: BTreeMap::new(),
        };
        let bad = || portreeve_api::ObjectKey::cluster("bad");
        let undecodable = Event::Undecodable {
            key: bad(),
            uid: "u".into(),
            error: "why".to_owned(),
        };
        let rows = [
            (Event::Relisting, "", false),
            (Event::Listed(named("a")), "", false),
            (Event::Listed(named("b")), "", false),
            (Event::Synced, "a b", true),
            (Event::Applied(named("c")), "a b c", true),
            (Event::Deleted(named("a")), "b c", true),
            (undecodable, "b bad c", true),
            (Event::DeletedUndecodable(bad()), "b c", true),
            (Event::Relisting, "b c", false),
            (Event::Listed(named("lost")), "b c", false),
            (Event::Relisting, "b c", false),
            (Event::Listed(named("d")), "b c", false),
            (Event::Synced, "d", true),
        ];
        for (event, names, expected) in rows {
            let text = format!("{names} {expected}");
            assert_eq!(is_change(&event), expected, "{text}");
            services.apply(event);
            let now: Vec<_> = services.names.lock().keys().map(ToString::to_string).collect();
            assert_eq!(now.join(" "), names, "{text}");
        }
    }

    #[test]
    fn label_shows_which_services_the_apiserver_manages() {
        let is_managed = |labels: &str| {
            let object = format!(r#"{{"metadata":{{"name":"v1.example.com","labels":{labels}}}}}"#);
            serde_json::from_str::<Named>(&object).unwrap().is_managed()
        };
        assert!(is_managed(
            r#"{"a":"b","kube-aggregator.kubernetes.io/automanaged":"onstart"}"#
        ));
        assert!(!is_managed(r#"{"a":"b"}"#) && !is_managed("null"));
    }

    #[test]
    fn no_mutated_watch_adds_a_service_without_a_name() -> anyhow::Result<()> {
        Corpus::read(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/watch"))?.check(1_500, |input| {
            let mut services = NamesSink {
                changed: Arc::default(),
                names: Names::default(),
                listed: BTreeMap::new(),
            };
            let mut lines = Lines::default();
            lines.push(input);
            while let Some(line) = lines.next() {
                match decode_line::<Named>(&line) {
                    Ok(Decoded::Event { event, .. }) => services.apply(event),
                    Ok(_) => {}
                    // An unreadable line ends the watch.
                    Err(_) => break,
                }
            }
            assert!(!services.names.lock().contains_key(""), "a service has no name");
        })
    }
}
