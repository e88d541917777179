//! The names of Jobs, in two formats:
//!
//! | format | scheduled run | run-now |
//! |---|---|---|
//! | none, as CronJob | `<owner>-<minutes>` | `<owner>-run-<hash of the value>` |
//! | `Hashed` | `<owner>-<hash>-t<minutes>` | `<owner>-<hash>-r<hash of the value>` |
//!
//! The hash covers the names of the owner and of the schedule. Other schedules than `default`
//! always have names of the format `Hashed`.
//!
//! A CronJob of the same name cannot produce a name of the format `Hashed`, because its Jobs' names
//! end with digits after the last dash.
//!
//! Architecture Invariant: pure.

use jiff::Timestamp;

use crate::api::{DEFAULT_SCHEDULE, JobNameFormat};

/// The maximum length of an owner's name before `-run-` and eight digits. The name of a Job becomes
/// the value of a label, which has at most 63 characters.
const LONGEST_BEFORE_RUN: usize = 50;
/// The maximum length of an owner's name before `-<hash>-t` and nine digits.
const LONGEST_BEFORE_HASH: usize = 43;
/// The number of hexadecimal digits of a hash.
const HASH_DIGITS: usize = 8;

/// The names of the Jobs of one owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobNames<'a> {
    /// The name of the owner.
    pub(crate) owner: &'a str,
    /// The format of the names of the schedule `default` and of requested runs; `None` is that of
    /// CronJobs.
    pub(crate) format: Option<JobNameFormat>,
}

impl JobNames<'_> {
    /// Returns the name of the Job for a scheduled time of a schedule. All times within a minute
    /// share a name.
    pub(crate) fn scheduled(self, schedule: &str, slot: Timestamp) -> String {
        let minutes = slot.as_second().div_euclid(60);
        match self.format {
            None if schedule == DEFAULT_SCHEDULE => format!("{}-{minutes}", self.owner),
            _ => format!("{}-t{minutes}", hashed_prefix(self.owner, schedule)),
        }
    }

    /// Returns the name of the Job for a value of the run-now annotation.
    ///
    /// If the name of the owner is truncated, the hash also covers the whole name.
    pub(crate) fn run_now(self, value: &str) -> String {
        let (owner, value) = (self.owner, value.as_bytes());
        if self.format == Some(JobNameFormat::Hashed) {
            let prefix = hashed_prefix(owner, DEFAULT_SCHEDULE);
            return format!("{prefix}-r{:08x}", fnv1a(&[value]));
        }
        let start = truncated(owner, LONGEST_BEFORE_RUN);
        let hash = if start == owner {
            fnv1a(&[value])
        } else {
            fnv1a(&[owner.as_bytes(), b"/", value])
        };
        format!("{start}-run-{hash:08x}")
    }

    /// Returns the prefixes by which [`prefixes`] finds the Jobs of these schedules, and requested
    /// runs.
    pub(crate) fn prefixes<'s>(self, schedules: impl Iterator<Item = &'s str>) -> Vec<String> {
        let others = schedules.filter(|schedule| *schedule != DEFAULT_SCHEDULE);
        let mut prefixes: Vec<_> = others.map(|schedule| hashed_prefix(self.owner, schedule)).collect();
        if self.format == Some(JobNameFormat::Hashed) {
            prefixes.push(hashed_prefix(self.owner, DEFAULT_SCHEDULE));
            return prefixes;
        }
        prefixes.push(self.owner.to_owned());
        let start = truncated(self.owner, LONGEST_BEFORE_RUN);
        if start != self.owner {
            prefixes.push(start.to_owned());
        }
        prefixes
    }
}

/// Returns the minutes in the name of a Job for a scheduled time, in either format. Returns `None`
/// if the name is not that of a Job of this schedule of `owner`.
pub(crate) fn minutes(owner: &str, schedule: &str, job: &str) -> Option<i64> {
    let rest = job.strip_prefix(owner).and_then(|rest| rest.strip_prefix('-'));
    let rest = rest.filter(|_| schedule == DEFAULT_SCHEDULE);
    let minutes = rest.and_then(|digits| digits.parse().ok());
    minutes.or_else(|| {
        let rest = job.strip_prefix(truncated(owner, LONGEST_BEFORE_HASH))?;
        let (hash, rest) = rest.strip_prefix('-')?.split_at_checked(HASH_DIGITS)?;
        let minutes = rest.strip_prefix("-t")?.parse().ok()?;
        (hash == format!("{:08x}", schedule_hash(owner, schedule))).then_some(minutes)
    })
}

/// Returns the prefixes of a Job's name that may be among [`JobNames::prefixes`] of its schedule:
/// everything before the last dash, and without the `-run` at its end.
pub(crate) fn prefixes(job: &str) -> Vec<&str> {
    let Some((prefix, _)) = job.rsplit_once('-') else {
        return Vec::new();
    };
    [prefix].into_iter().chain(prefix.strip_suffix("-run")).collect()
}

/// Returns what all names of the format `Hashed` of one schedule start with.
fn hashed_prefix(owner: &str, schedule: &str) -> String {
    let hash = schedule_hash(owner, schedule);
    format!("{}-{hash:08x}", truncated(owner, LONGEST_BEFORE_HASH))
}

fn schedule_hash(owner: &str, schedule: &str) -> u32 {
    fnv1a(&[owner.as_bytes(), b"/", schedule.as_bytes()])
}

/// Returns the start of an owner's name that fits into the name of a Job.
fn truncated(owner: &str, longest: usize) -> &str {
    match owner.char_indices().nth(longest) {
        Some((end, _)) => owner[..end].trim_end_matches(['-', '.']),
        None => owner,
    }
}

/// Returns the 32-bit FNV-1a hash of all parts. It must never change, because the names of Jobs
/// depend on it.
pub(crate) fn fnv1a(parts: &[&[u8]]) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    parts.iter().copied().flatten().fold(0x811c_9dc5, step)
}

#[cfg(test)]
mod tests;
