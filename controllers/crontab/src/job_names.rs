//! The names of Jobs, in two formats:
//!
//! | format | scheduled run | run-now |
//! |---|---|---|
//! | none, as CronJob | `<owner>-<minutes>` | `<owner>-run-<hash of the value>` |
//! | `Hashed` | `<owner>-<hash>-t<minutes>` | `<owner>-<hash>-r<hash of the value>` |
//!
//! A CronJob of the same name cannot produce a name of the format `Hashed`, because its Jobs' names
//! end with digits after the last dash.
//!
//! Architecture Invariant: pure.

use jiff::Timestamp;
use portreeve_api::JobNameFormat;

/// The name of a CronTab's only schedule. The hash in the names of Jobs covers it.
const SCHEDULE: &str = "default";
/// The maximum length of an owner's name before `-run-` and eight digits. The name of a Job becomes
/// the value of a label, which has at most 63 characters.
const LONGEST_BEFORE_RUN: usize = 50;
/// The maximum length of an owner's name before `-<hash>-t` and nine digits.
const LONGEST_BEFORE_HASH: usize = 43;
/// The number of hexadecimal digits of a hash.
const HASH_DIGITS: usize = 8;

/// The names of the Jobs of one schedule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobNames<'a> {
    /// The name of the schedule.
    pub(crate) owner: &'a str,
    /// The format of new names; `None` is that of CronJobs.
    pub(crate) format: Option<JobNameFormat>,
}

impl JobNames<'_> {
    /// Returns the name of the Job for a scheduled time. All times within a minute share a name.
    pub(crate) fn scheduled(self, slot: Timestamp) -> String {
        let minutes = slot.as_second().div_euclid(60);
        match self.format {
            None => format!("{}-{minutes}", self.owner),
            Some(JobNameFormat::Hashed) => format!("{}-t{minutes}", hashed_prefix(self.owner)),
        }
    }

    /// Returns the name of the Job for a value of the run-now annotation.
    ///
    /// If the name of the owner is truncated, the hash also covers the whole name.
    pub(crate) fn run_now(self, value: &str) -> String {
        let (owner, value) = (self.owner, value.as_bytes());
        if self.format == Some(JobNameFormat::Hashed) {
            return format!("{}-r{:08x}", hashed_prefix(owner), fnv1a(&[value]));
        }
        let start = truncated(owner, LONGEST_BEFORE_RUN);
        let hash = if start == owner {
            fnv1a(&[value])
        } else {
            fnv1a(&[owner.as_bytes(), b"/", value])
        };
        format!("{start}-run-{hash:08x}")
    }

    /// Returns the prefixes by which [`prefixes`] finds this schedule's Jobs.
    pub(crate) fn prefixes(self) -> Vec<String> {
        if self.format == Some(JobNameFormat::Hashed) {
            return vec![hashed_prefix(self.owner)];
        }
        let mut prefixes = vec![self.owner.to_owned()];
        let start = truncated(self.owner, LONGEST_BEFORE_RUN);
        if start != self.owner {
            prefixes.push(start.to_owned());
        }
        prefixes
    }
}

/// Returns the minutes in the name of a Job for a scheduled time, in either format. Returns `None`
/// if the name is not that of a Job of `owner`.
pub(crate) fn minutes(owner: &str, job: &str) -> Option<i64> {
    let rest = job.strip_prefix(owner).and_then(|rest| rest.strip_prefix('-'));
    let minutes = rest.and_then(|digits| digits.parse().ok());
    minutes.or_else(|| {
        let rest = job.strip_prefix(truncated(owner, LONGEST_BEFORE_HASH))?;
        let (hash, rest) = rest.strip_prefix('-')?.split_at_checked(HASH_DIGITS)?;
        let minutes = rest.strip_prefix("-t")?.parse().ok()?;
        (hash == format!("{:08x}", owner_hash(owner))).then_some(minutes)
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
fn hashed_prefix(owner: &str) -> String {
    format!("{}-{:08x}", truncated(owner, LONGEST_BEFORE_HASH), owner_hash(owner))
}

fn owner_hash(owner: &str) -> u32 {
    fnv1a(&[owner.as_bytes(), b"/", SCHEDULE.as_bytes()])
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
fn fnv1a(parts: &[&[u8]]) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    parts.iter().copied().flatten().fold(0x811c_9dc5, step)
}

#[cfg(test)]
mod tests;
