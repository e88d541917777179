//! What is heard of changes: the watches that say when to ask again.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::Notify;

use crate::{Event, Sink, WatchedObject};

/// All that is kept of an object while it is taken in.
#[derive(Deserialize)]
pub(super) struct Named {
    metadata: NamedMetadata,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NamedMetadata {
    name: Box<str>,
    resource_version: String,
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

/// The sink of the watch on CustomResourceDefinitions, of which nothing is kept.
pub(super) struct Definitions {
    pub(super) changed: Arc<Notify>,
}

impl Sink for Definitions {
    type Object = Named;

    fn apply(&mut self, event: Event<Named>) {
        if is_change(&event) {
            self.changed.notify_one();
        }
    }
}

/// The names of the API services that exist. Shared by its writer and its reader.
pub(super) type ApiServiceNames = Arc<Mutex<BTreeSet<Box<str>>>>;

/// The sink of the watch on API services.
pub(super) struct Services {
    pub(super) changed: Arc<Notify>,
    pub(super) names: ApiServiceNames,
    /// What the list that is under way has brought. Until it is complete, the names are those of before.
    pub(super) listed: BTreeSet<Box<str>>,
}

impl Sink for Services {
    type Object = Named;

    fn apply(&mut self, event: Event<Named>) {
        let is_change = is_change(&event);
        match event {
            Event::Relisting => self.listed.clear(),
            Event::Listed(service) => {
                self.listed.insert(service.metadata.name);
            }
            Event::Synced => *self.names.lock() = std::mem::take(&mut self.listed),
            Event::Applied(service) => {
                self.names.lock().insert(service.metadata.name);
            }
            Event::Deleted(service) => {
                self.names.lock().remove(&service.metadata.name);
            }
            // The name is all that counts, and these have one.
            Event::Undecodable { key, .. } => {
                self.names.lock().insert((*key.name).into());
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

/// What is listed is news when the list is complete.
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
    use crate::protocol::{Lines, WatchMessage, decode_line};

    fn named(name: &str) -> Named {
        let metadata = NamedMetadata {
            name: name.into(),
            resource_version: "1".to_owned(),
        };
        Named { metadata }
    }

    #[test]
    fn names_are_those_of_the_last_complete_list_and_what_was_heard_since() {
        let mut services = Services {
            changed: Arc::default(),
            names: ApiServiceNames::default(),
            listed: BTreeSet::new(),
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
        for (event, names, news) in rows {
            let text = format!("{names} {news}");
            assert_eq!(is_change(&event), news, "{text}");
            services.apply(event);
            let now: Vec<_> = services.names.lock().iter().map(ToString::to_string).collect();
            assert_eq!(now.join(" "), names, "{text}");
        }
    }

    #[test]
    fn whatever_a_watch_brings_every_service_has_a_name() -> anyhow::Result<()> {
        Corpus::read(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/watch"))?.check(1_500, |input| {
            let mut services = Services {
                changed: Arc::default(),
                names: ApiServiceNames::default(),
                listed: BTreeSet::new(),
            };
            let mut lines = Lines::default();
            lines.push(input);
            while let Some(line) = lines.next() {
                match decode_line::<Named>(&line) {
                    Ok(WatchMessage::Event { event, .. }) => services.apply(event),
                    Ok(_) => {}
                    // What cannot be read is the end of a watch.
                    Err(_) => break,
                }
            }
            assert!(!services.names.lock().contains(""), "a service without a name");
        })
    }
}
