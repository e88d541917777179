//! The creation times of Jobs from the apiserver's audit log, which is one clock for all subjects.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::Value;

/// An audit policy that logs only the responses to creations of Jobs, so that the log costs little.
pub(crate) const POLICY: &str = include_str!("audit-policy.yaml");
/// How often the log is read. This does not affect the results, because the log contains the times.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The creation of a Job.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Creation {
    pub(crate) job: String,
    /// The user who created it.
    pub(crate) user: String,
    /// The time of the apiserver's response, after it had stored the Job.
    pub(crate) at: Timestamp,
}

/// Returns the creation that a line reports, or `None` if it failed.
fn creation(line: &str) -> Result<Option<Creation>> {
    let event: Value = serde_json::from_str(line).context("failed to parse a line of the audit log")?;
    if event["responseStatus"]["code"] != 201 {
        return Ok(None);
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let at = text(&event["stageTimestamp"]);
    Ok(Some(Creation {
        job: text(&event["objectRef"]["name"]),
        user: text(&event["user"]["username"]),
        at: at.parse().context("the audit log contains no time")?,
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
        let appended = file.seek(SeekFrom::Start(self.read));
        let appended = appended.and_then(|_| file.read_to_string(&mut self.unfinished));
        self.read += appended.with_context(|| format!("failed to read {}", self.path.display()))? as u64;
        let end = self.unfinished.rfind('\n').map_or(0, |end| end + 1);
        let rest = self.unfinished.split_off(end);
        let lines = std::mem::replace(&mut self.unfinished, rest);
        lines.lines().filter_map(|line| creation(line).transpose()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    #[test]
    fn successful_creations_are_read_line_by_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let mut tail = Tail::of(&path);
        assert_eq!(tail.creations().unwrap(), []);
        let line = |code: u16| {
            let event = json!({
                "user": {"username": "admin"},
                "objectRef": {"name": "one-29"},
                "responseStatus": {"code": code},
                "stageTimestamp": "2026-11-21T15:00:00.104500Z",
            });
            event.to_string()
        };
        let text = [line(201), line(409), line(201)].join("\n");
        fs::write(&path, &text).unwrap();
        let creations = tail.creations().unwrap();
        assert_eq!(creations.len(), 1);
        assert_eq!((&*creations[0].job, &*creations[0].user), ("one-29", "admin"));
        assert_eq!(creations[0].at.to_string(), "2026-11-21T15:00:00.1045Z");
        assert_eq!(tail.creations().unwrap(), []);
        fs::write(&path, text + "\n").unwrap();
        assert_eq!(tail.creations().unwrap().len(), 1);
    }
}
