//! Reads the audit log of a control plane.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::PathBuf,
};

use anyhow::{Context, Result};
use portreeve_testing::ControlPlane;

use super::{Event, effects};

/// The audit log of a control plane.
pub(crate) struct AuditLog(PathBuf);

impl AuditLog {
    pub(crate) fn of(plane: &ControlPlane) -> Result<Self> {
        let path = plane.audit_log().context("the control plane has no audit log")?;
        Ok(Self(path.to_owned()))
    }

    /// Returns the offset of the present end. It is 0 until the apiserver logs something.
    pub(crate) fn end(&self) -> u64 {
        self.0.metadata().map_or(0, |file| file.len())
    }

    /// Returns the lines from an offset on, without a last line that is still being written.
    pub(crate) fn lines_since(&self, offset: u64) -> Result<String> {
        let mut text = String::new();
        let read = File::open(&self.0).and_then(|mut file| {
            file.seek(SeekFrom::Start(offset))?;
            file.read_to_string(&mut text)
        });
        read.with_context(|| format!("failed to read {}", self.0.display()))?;
        text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
        Ok(text)
    }

    /// Returns the events from an offset on. A line that is not JSON is skipped, because an
    /// apiserver that is killed may leave one.
    pub(crate) fn events_since(&self, offset: u64) -> Result<Vec<Event>> {
        self.events_containing("", offset)
    }

    /// Returns the events like [`AuditLog::events_since`], but only those whose lines contain a
    /// text. It does not parse the others.
    pub(crate) fn events_containing(&self, text: &str, offset: u64) -> Result<Vec<Event>> {
        let lines = self.lines_since(offset)?;
        let mut events = Vec::new();
        for line in lines.lines().filter(|line| line.contains(text)) {
            match serde_json::from_str(line) {
                Ok(event) => events.push(event),
                Err(error) if error.is_data() => {
                    return Err(error).with_context(|| format!("unexpected event: {line}"));
                }
                Err(_) => {}
            }
        }
        Ok(events)
    }

    /// Checks all effects of the daemon so far.
    pub(crate) fn check_effects(&self) -> Result<()> {
        effects::check(&self.events_since(0)?)
    }
}
