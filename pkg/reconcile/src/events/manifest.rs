//! The requests that write an event.
//!
//! Architecture Invariant: pure. The time is an argument.

use http::{Request, header::CONTENT_TYPE};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::ObjectReference,
        events::v1::{Event, EventSeries},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use serde_json::json;

use crate::{EventContent, EventSeverity, Target};

/// The maximum length of an event's message in bytes. The apiserver rejects longer ones.
const LONGEST_MESSAGE: usize = 1_024;
/// The maximum length of the name of an object.
const LONGEST_NAME: usize = 253;
/// The namespace of events about cluster-scoped objects.
const DEFAULT_NAMESPACE: &str = "default";

/// Everything that an event consists of.
pub(super) struct Manifest<'a> {
    pub(super) instance: &'a str,
    pub(super) controller: &'a str,
    pub(super) target: &'a Target,
    pub(super) note: &'a EventContent,
    pub(super) now: Timestamp,
}

impl Manifest<'_> {
    /// Returns a new name: that of the object and the time, as in client-go. The names of some
    /// objects, such as ClusterRoles, are no DNS names, and others leave no room for the time, so
    /// they are changed.
    pub(super) fn name(&self) -> String {
        let suffix = format!(".{:x}", self.now.as_nanosecond());
        let valid = |letter: char| match letter {
            'a'..='z' | '0'..='9' | '-' | '.' => letter,
            'A'..='Z' => letter.to_ascii_lowercase(),
            _ => '-',
        };
        let name = self.target.key.name.chars().map(valid);
        let name: String = name.take(LONGEST_NAME - suffix.len()).collect();
        // Each part between dots begins and ends with a letter or a digit.
        let parts = name.split('.').map(|part| part.trim_matches('-'));
        let parts: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
        if parts.is_empty() {
            return format!("event{suffix}");
        }
        parts.join(".") + &suffix
    }

    /// Returns the request that creates the event.
    pub(super) fn creation(&self, name: &str) -> Result<Request<Vec<u8>>, http::Error> {
        let Target { resource, key, uid, .. } = self.target;
        let note = self.note;
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(self.namespace().to_owned()),
                ..ObjectMeta::default()
            },
            type_: Some(
                match note.type_ {
                    EventSeverity::Normal => "Normal",
                    EventSeverity::Warning => "Warning",
                }
                .to_owned(),
            ),
            reason: Some(note.reason.to_owned()),
            action: Some(note.action.to_owned()),
            note: Some(shortened(&note.message)),
            event_time: Some(MicroTime(self.now)),
            regarding: Some(ObjectReference {
                api_version: Some(resource.api_version()),
                kind: Some(resource.kind.to_string()),
                name: Some(key.name.to_string()),
                namespace: key.namespace.as_deref().map(str::to_owned),
                uid: Some(uid.to_string()),
                ..ObjectReference::default()
            }),
            reporting_controller: Some(self.controller.to_owned()),
            reporting_instance: Some(self.instance.to_owned()),
            ..Event::default()
        };
        let request = Request::post(self.path()).header(CONTENT_TYPE, "application/json");
        request.body(json!(event).to_string().into_bytes())
    }

    /// Returns the request that records that the event of this name has occurred `count` times.
    pub(super) fn repetition(&self, name: &str, count: i32) -> Result<Request<Vec<u8>>, http::Error> {
        let series = EventSeries {
            count,
            last_observed_time: MicroTime(self.now),
        };
        Request::patch(format!("{}/{name}", self.path()))
            .header(CONTENT_TYPE, "application/merge-patch+json")
            .body(json!({ "series": series }).to_string().into_bytes())
    }

    fn namespace(&self) -> &str {
        self.target.key.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE)
    }

    fn path(&self) -> String {
        format!("/apis/events.k8s.io/v1/namespaces/{}/events", self.namespace())
    }
}

/// Truncates a message to the maximum length of an event.
fn shortened(sentence: &str) -> String {
    const MORE: &str = "…";
    if sentence.len() <= LONGEST_MESSAGE {
        return sentence.to_owned();
    }
    let end = sentence.floor_char_boundary(LONGEST_MESSAGE - MORE.len());
    sentence[..end].to_owned() + MORE
}

#[cfg(test)]
mod tests {
    use portreeve_api::{ObjectKey, Resource};
    use proptest::prelude::*;

    use super::*;

    fn name_of(object: &str) -> String {
        let target = Target {
            resource: Resource::cluster("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles"),
            key: ObjectKey::cluster(object),
            uid: "u".into(),
            version: "1".into(),
        };
        let manifest = Manifest {
            instance: "replica",
            controller: "test-controller",
            target: &target,
            note: &EventContent::normal("A", "B", "c"),
            now: Timestamp::from_second(1_790_000_000).unwrap(),
        };
        manifest.name()
    }

    #[test]
    fn names_are_valid_whatever_the_name_of_the_object() {
        const TIME: &str = "18d75ce4cdb70000";
        let table = [
            ("web", "web"),
            ("a.b-c", "a.b-c"),
            ("acme:child", "acme-child"),
            ("system:Node_1", "system-node-1"),
            ("a..b.-c-.", "a.b.c"),
            (":", "event"),
            ("", "event"),
        ];
        for (object, expected) in table {
            let (name, time) = name_of(object)
                .rsplit_once('.')
                .map(|(a, b)| (a.to_owned(), b.to_owned()))
                .unwrap();
            assert_eq!(name, expected, "{object}");
            assert_eq!(time.len(), TIME.len(), "{time}");
        }
        let long = name_of(&"x".repeat(253));
        assert_eq!(long.len(), LONGEST_NAME);
    }

    proptest! {
        #[test]
        fn every_name_is_a_dns_subdomain(object in "\\PC{0,300}") {
            let name = name_of(&object);
            prop_assert!(name.len() <= LONGEST_NAME);
            for part in name.split('.') {
                let is_valid = |letter: char| matches!(letter, 'a'..='z' | '0'..='9' | '-');
                prop_assert!(!part.is_empty() && part.chars().all(is_valid), "{}", name);
                prop_assert!(!part.starts_with('-') && !part.ends_with('-'), "{}", name);
            }
        }
    }

    #[test]
    fn long_messages_are_truncated_to_the_limit_of_an_event() {
        const LONGEST: usize = LONGEST_MESSAGE;
        let long = "ä".repeat(LONGEST);
        for (sentence, bytes) in [("short", 5), (&*"x".repeat(LONGEST), LONGEST), (&*long, LONGEST - 1)] {
            let cut = shortened(sentence);
            assert_eq!(cut.len(), bytes, "{cut}");
            assert_eq!(cut.ends_with('…'), sentence.len() > LONGEST, "{cut}");
        }
    }
}
