//! The creation times of Jobs from the apiserver's audit log, which is one clock for all subjects.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::Deserialize;

/// An audit policy that logs only the responses to creations of Jobs, so that the log costs little.
pub(crate) const POLICY: &str = r#"{
  "apiVersion": "audit.k8s.io/v1",
  "kind": "Policy",
  "omitStages": ["RequestReceived"],
  "rules": [
    {"level": "Metadata", "verbs": ["create"], "resources": [{"group": "batch", "resources": ["jobs"]}]},
    {"level": "None"}
  ]
}"#;

/// The creation of a Job.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Creation {
    pub(crate) job: String,
    /// The user who created it.
    pub(crate) user: String,
    /// The time of the apiserver's response, after it had stored the Job.
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

/// Returns the creation that a line reports, or `None` for other requests and failures.
fn creation(line: &str) -> Result<Option<Creation>> {
    let event: Event = serde_json::from_str(line).context("failed to parse a line of the audit log")?;
    let is_creation = event.stage == "ResponseComplete"
        && event.object_ref.resource == "jobs"
        && event.response_status.is_some_and(|status| status.code == 201);
    if !is_creation {
        return Ok(None);
    }
    let job = event
        .object_ref
        .name
        .context("the audit log contains a Job without a name")?;
    Ok(Some(Creation {
        job,
        user: event.user.username,
        at: event.stage_timestamp,
    }))
}

/// A reader that follows the log as it grows.
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

    /// Returns the creations since the last call. The file does not exist before its first line.
    pub(crate) fn creations(&mut self) -> Result<Vec<Creation>> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened.with_context(|| format!("failed to open {}", self.path.display()))?,
        };
        let mut appended = String::new();
        file.seek(SeekFrom::Start(self.read))
            .and_then(|_| file.read_to_string(&mut appended))
            .with_context(|| format!("failed to read {}", self.path.display()))?;
        self.read += appended.len() as u64;
        self.unfinished.push_str(&appended);
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
    fn a_successful_response_reports_a_creation() {
        let created = creation(&line("ResponseComplete", "jobs", 201)).unwrap().unwrap();
        assert_eq!((created.job.as_str(), created.user.as_str()), ("one-29", "admin"));
        assert_eq!(created.at.to_string(), "2026-11-21T15:00:00.1045Z");
    }

    #[test]
    fn rejected_unfinished_and_other_requests_do_not_count() {
        for line in [
            line("ResponseComplete", "jobs", 409),
            line("RequestReceived", "jobs", 201),
            line("ResponseComplete", "pods", 201),
        ] {
            assert_eq!(creation(&line).unwrap(), None, "{line}");
        }
    }

    #[test]
    fn an_incomplete_line_is_read_by_the_next_call() {
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
