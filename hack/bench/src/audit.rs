//! When each Job came to exist, by the apiserver's own audit log: the same clock and the same judge for everybody.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::Deserialize;

/// Logs the creation of Jobs once it is answered, and nothing else: what is not measured must not cost anything.
pub(crate) const POLICY: &str = r#"{
  "apiVersion": "audit.k8s.io/v1",
  "kind": "Policy",
  "omitStages": ["RequestReceived"],
  "rules": [
    {"level": "Metadata", "verbs": ["create"], "resources": [{"group": "batch", "resources": ["jobs"]}]},
    {"level": "None"}
  ]
}"#;

/// A Job that was made.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Creation {
    pub(crate) job: String,
    /// Who asked for it.
    pub(crate) user: String,
    /// When the apiserver had stored it and answered.
    pub(crate) at: Timestamp,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    stage: String,
    stage_timestamp: Timestamp,
    user: User,
    object_ref: ObjectReference,
    response_status: Option<Status>,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Deserialize)]
struct ObjectReference {
    resource: String,
    name: Option<String>,
}

#[derive(Deserialize)]
struct Status {
    code: u16,
}

/// The creation that a line of the log tells of; nothing when the request failed, or was for something else.
fn creation(line: &str) -> Result<Option<Creation>> {
    let event: Event = serde_json::from_str(line).context("failed to read a line of the audit log")?;
    let made = event.stage == "ResponseComplete"
        && event.object_ref.resource == "jobs"
        && event.response_status.is_some_and(|status| status.code == 201);
    if !made {
        return Ok(None);
    }
    let job = event
        .object_ref
        .name
        .context("the audit log tells of a Job without a name")?;
    Ok(Some(Creation {
        job,
        user: event.user.username,
        at: event.stage_timestamp,
    }))
}

/// The log as it grows.
pub(crate) struct Tail {
    path: PathBuf,
    read: u64,
    unfinished: String,
}

impl Tail {
    pub(crate) fn of(log: &Path) -> Self {
        Self {
            path: log.to_path_buf(),
            read: 0,
            unfinished: String::new(),
        }
    }

    /// What has been made since the last look. The file comes into being with its first line.
    pub(crate) fn creations(&mut self) -> Result<Vec<Creation>> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened.with_context(|| format!("failed to open {}", self.path.display()))?,
        };
        let mut fresh = String::new();
        file.seek(SeekFrom::Start(self.read))
            .and_then(|_| file.read_to_string(&mut fresh))
            .with_context(|| format!("failed to read {}", self.path.display()))?;
        self.read += fresh.len() as u64;
        self.unfinished.push_str(&fresh);
        let Some(end) = self.unfinished.rfind('\n') else {
            return Ok(Vec::new());
        };
        let rest = self.unfinished.split_off(end + 1);
        let lines = std::mem::replace(&mut self.unfinished, rest);
        lines.lines().filter_map(|line| creation(line).transpose()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;

    use super::*;

    fn line(stage: &str, resource: &str, code: u16) -> String {
        format!(
            r#"{{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","stage":"{stage}","verb":"create","user":{{"username":"admin","groups":["system:masters"]}},"objectRef":{{"resource":"{resource}","namespace":"default","name":"one-29","apiGroup":"batch"}},"responseStatus":{{"metadata":{{}},"code":{code}}},"requestReceivedTimestamp":"2026-11-21T15:00:00.101000Z","stageTimestamp":"2026-11-21T15:00:00.104500Z"}}"#
        )
    }

    #[test]
    fn a_job_exists_once_its_creation_was_answered() {
        let made = creation(&line("ResponseComplete", "jobs", 201)).unwrap().unwrap();
        assert_eq!((made.job.as_str(), made.user.as_str()), ("one-29", "admin"));
        assert_eq!(made.at.to_string(), "2026-11-21T15:00:00.1045Z");
    }

    #[test]
    fn refused_unanswered_and_other_requests_do_not_count() {
        for line in [
            line("ResponseComplete", "jobs", 409),
            line("RequestReceived", "jobs", 201),
            line("ResponseComplete", "pods", 201),
        ] {
            assert_eq!(creation(&line).unwrap(), None, "{line}");
        }
    }

    #[test]
    fn a_line_that_is_not_written_out_yet_is_read_with_the_next_look() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let mut tail = Tail::of(&path);
        assert_eq!(tail.creations().unwrap(), []);
        let line = line("ResponseComplete", "jobs", 201);
        let (head, rest) = line.split_at(40);
        let mut file = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        write!(file, "{line}\n{head}").unwrap();
        assert_eq!(tail.creations().unwrap().len(), 1);
        assert_eq!(tail.creations().unwrap(), []);
        writeln!(file, "{rest}").unwrap();
        assert_eq!(tail.creations().unwrap().len(), 1);
    }
}
