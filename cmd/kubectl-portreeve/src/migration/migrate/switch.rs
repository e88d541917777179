//! The switch of the storage version, and the wait until every apiserver uses it.
//!
//! An annotation on the definition records the switch, so that a command that is run again does not
//! wait again. The record has the generation of the spec: if anybody changes the spec afterwards,
//! the storage version may have been another one for a while, and the record does not count.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::super::{
    Error,
    cluster::Cluster,
    definition::Definition,
    objects::Pages,
    progress::{Progress, report},
};

/// The annotation with the record.
const ANNOTATION: &str = "migrate.portreeve.dev/storage-version";

/// The number of steps after which somebody else must be changing the definition again and again.
const STEPS: u32 = 30;

/// The record of a switch.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct SwitchRecord {
    /// The storage version.
    version: String,
    /// The generation of the definition since the switch.
    generation: i64,
    /// The time of the switch.
    switched_at: Timestamp,
    /// The resourceVersion of a list after every apiserver had learned the storage version. Objects
    /// that were written later are stored in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    written_since: Option<u64>,
}

/// What to do next.
#[derive(Debug, Eq, PartialEq)]
enum Step {
    /// Switch the storage version, and record that.
    Switch,
    /// Record that the storage version is switched, because nobody knows since when.
    Record,
    /// Wait until every apiserver has learned the storage version.
    Wait(Duration),
    /// Record the resourceVersion of a list.
    Settle,
    /// All objects with a higher resourceVersion are stored in the version.
    Complete(u64),
}

fn next(definition: &Definition, target: &str, delay: Duration, now: Timestamp) -> Step {
    if definition.storage() != target {
        return Step::Switch;
    }
    let Some(record) = record(definition, target).filter(|record| record.switched_at <= now) else {
        return Step::Record;
    };
    if let Some(version) = record.written_since {
        return Step::Complete(version);
    }
    let passed = now.duration_since(record.switched_at);
    let passed = Duration::try_from(passed).unwrap_or_default();
    match delay.checked_sub(passed) {
        Some(rest) if !rest.is_zero() => Step::Wait(rest),
        _ => Step::Settle,
    }
}

/// Returns the record of the present storage version.
fn record(definition: &Definition, target: &str) -> Option<SwitchRecord> {
    let text = definition.annotations.as_ref()?.get(ANNOTATION)?;
    let record: SwitchRecord = serde_json::from_str(text).ok()?;
    (record.version == target && record.generation == definition.generation).then_some(record)
}

/// Returns whether a migration to this version has switched the storage version, and nobody has
/// changed the definition since.
pub(super) fn is_recorded(definition: &Definition, target: &str) -> bool {
    definition.storage() == target && record(definition, target).is_some()
}

/// Returns whether the storage version has been this one without interruption since the switch.
pub(super) fn is_complete(definition: &Definition, target: &str) -> bool {
    definition.storage() == target && record(definition, target).is_some_and(|record| record.written_since.is_some())
}

/// A switch in progress.
pub(super) struct Switch<'a> {
    cluster: &'a Cluster,
    target: &'a str,
    delay: Duration,
}

impl<'a> Switch<'a> {
    pub(super) fn new(cluster: &'a Cluster, target: &'a str, delay: Duration) -> Self {
        Self { cluster, target, delay }
    }

    /// Switches the storage version and waits. Returns the resourceVersion above which all objects
    /// are stored in it.
    pub(super) async fn complete(&self) -> Result<u64, Error> {
        let mut definition = self.cluster.read().await?;
        for _ in 0..STEPS {
            definition = match next(&definition, self.target, self.delay, Timestamp::now()) {
                Step::Switch | Step::Record => self.switch().await?,
                Step::Wait(rest) => {
                    self.wait(rest).await;
                    self.cluster.read().await?
                }
                Step::Settle => self.settle(&definition).await?,
                Step::Complete(version) => return Ok(version),
            };
        }
        Err(Error::Contended {
            name: self.cluster.name.clone(),
        })
    }

    async fn switch(&self) -> Result<Definition, Error> {
        let Self { cluster, target, .. } = *self;
        let changed = cluster.change(|definition| {
            let mut operations = definition.store(target);
            let record = SwitchRecord {
                version: target.to_owned(),
                // The apiserver counts each change of the spec.
                generation: definition.generation + i64::from(!operations.is_empty()),
                switched_at: Timestamp::now(),
                written_since: None,
            };
            operations.extend(annotate(definition, &record));
            Ok(operations)
        });
        let changed = changed.await?;
        report(&format!("the storage version of {} is {target}", cluster.name));
        Ok(changed)
    }

    /// Waits for `rest`, visibly.
    async fn wait(&self, rest: Duration) {
        let what = format!(
            "waiting until every apiserver stores objects in {}, in seconds",
            self.target
        );
        let end = tokio::time::Instant::now() + rest;
        let total = rest.as_secs();
        let progress = Progress::new(&what, total);
        while let left @ 1.. = end.saturating_duration_since(tokio::time::Instant::now()).as_millis() {
            let left = Duration::from_millis(u64::try_from(left).unwrap_or(u64::MAX));
            progress.set(total.saturating_sub(left.as_secs()));
            sleep(left.min(Duration::from_secs(1))).await;
        }
    }

    async fn settle(&self, settled: &Definition) -> Result<Definition, Error> {
        let Self { cluster, target, .. } = *self;
        let page = Pages::new(cluster, settled, target, 1).next().await?;
        let version = page.map(|page| page.resource_version).unwrap_or_default();
        let since: u64 = version.parse().map_err(|_| Error::ResourceVersion {
            name: cluster.name.clone(),
            version: version.clone(),
        })?;
        // If the spec has changed meanwhile, there is no record, and nothing to write.
        let changed = cluster.change(|definition| {
            let record = record(definition, target).filter(|_| definition.storage() == target);
            let Some(mut record) = record.filter(|record| record.written_since.is_none()) else {
                return Ok(Vec::new());
            };
            record.written_since = Some(since);
            Ok(annotate(definition, &record))
        });
        changed.await
    }
}

fn annotate(definition: &Definition, record: &SwitchRecord) -> Vec<serde_json::Value> {
    definition.annotate(ANNOTATION, &serde_json::json!(record).to_string())
}

#[cfg(test)]
mod tests {
    use super::{super::super::definition::tests::definition, *};

    const DELAY: Duration = Duration::from_mins(1);

    fn recorded(versions: &[&str], record: &str) -> Definition {
        Definition {
            annotations: Some([(ANNOTATION.to_owned(), record.to_owned())].into()),
            ..definition(versions, &["v1"])
        }
    }

    fn step(definition: &Definition) -> Step {
        next(definition, "v2", DELAY, "2026-01-01T00:01:00Z".parse().unwrap())
    }

    #[test]
    fn a_switch_is_completed_once() {
        let at = |time: &str, more: &str| {
            let record = format!(r#"{{"version":"v2","generation":3,"switchedAt":"2026-01-01T{time}Z"{more}}}"#);
            step(&recorded(&["v2", "v1"], &record))
        };
        assert_eq!(step(&definition(&["v1", "v2"], &["v1"])), Step::Switch);
        assert_eq!(at("00:00:30", ""), Step::Wait(Duration::from_secs(30)));
        assert_eq!(at("00:00:00", ""), Step::Settle);
        assert_eq!(at("00:00:59", r#","writtenSince":9"#), Step::Complete(9));
    }

    /// Nobody knows since when the version is stored.
    #[test]
    fn a_record_of_another_state_does_not_count() {
        assert_eq!(step(&definition(&["v2", "v1"], &["v2"])), Step::Record);
        for record in [
            "",
            r#"{"version":"v1","generation":3,"switchedAt":"2025-01-01T00:00:00Z","writtenSince":9}"#,
            r#"{"version":"v2","generation":2,"switchedAt":"2025-01-01T00:00:00Z","writtenSince":9}"#,
            r#"{"version":"v2","generation":3,"switchedAt":"2027-01-01T00:00:00Z","writtenSince":9}"#,
        ] {
            assert_eq!(step(&recorded(&["v2", "v1"], record)), Step::Record, "{record}");
        }
        let stale = r#"{"version":"v2","generation":3,"switchedAt":"2025-01-01T00:00:00Z","writtenSince":9}"#;
        assert_eq!(step(&recorded(&["v1", "v2"], stale)), Step::Switch);
        assert!(is_recorded(&recorded(&["v2", "v1"], stale), "v2"));
        assert!(!is_recorded(&definition(&["v2", "v1"], &["v2"]), "v2"));
        assert!(is_complete(&recorded(&["v2", "v1"], stale), "v2"));
        assert!(!is_complete(&recorded(&["v1", "v2"], stale), "v2"));
    }

    #[test]
    fn a_record_survives_the_annotation() {
        let record = SwitchRecord {
            version: "v2".to_owned(),
            generation: 3,
            switched_at: "2026-01-01T00:00:00Z".parse().unwrap(),
            written_since: Some(5),
        };
        let text = serde_json::json!(record).to_string();
        assert_eq!(super::record(&recorded(&["v2", "v1"], &text), "v2"), Some(record));
    }
}
