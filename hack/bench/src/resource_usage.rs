//! Memory and CPU time of a process, and CPU time of the machine, from Linux' `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

/// The length of a tick in `/proc/<pid>/stat`, on every architecture that Kubernetes supports.
const TICK: Duration = Duration::from_millis(10);

/// The memory of a process, in KiB.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Memory {
    pub(crate) resident: u64,
    pub(crate) peak: u64,
}

impl Memory {
    pub(crate) fn of(pid: u32) -> Result<Self> {
        let status = read(pid, "status")?;
        Self::parse(&status).with_context(|| format!("the status of process {pid} contains no memory"))
    }

    fn parse(status: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().strip_suffix(" kB")?.parse().ok()
        };
        Some(Self {
            resident: field("VmRSS:")?,
            peak: field("VmHWM:")?,
        })
    }
}

/// The CPU time that a process has used so far.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct CpuTime {
    /// The time of the whole process, in ticks.
    ticks: u64,
    /// The time of each running thread, in nanoseconds.
    threads: BTreeMap<u32, u64>,
}

impl CpuTime {
    pub(crate) fn of(pid: u32) -> Result<Self> {
        let stat = read(pid, "stat")?;
        let ticks =
            ticks(&stat).with_context(|| format!("failed to parse the CPU time of process {pid} from {stat}"))?;
        Ok(Self {
            ticks,
            threads: threads(pid).unwrap_or_default(),
        })
    }

    /// Returns the CPU time used since `earlier`: the exact sum over the threads, or the value in
    /// ticks if threads that have ended used a part of it.
    pub(crate) fn since(&self, earlier: &Self) -> Duration {
        let by_ticks = TICK * u32::try_from(self.ticks.saturating_sub(earlier.ticks)).unwrap_or(u32::MAX);
        let used = |(thread, now): (&u32, &u64)| now.saturating_sub(earlier.threads.get(thread).copied().unwrap_or(0));
        let by_threads = Duration::from_nanos(self.threads.iter().map(used).sum());
        // User and system time are each truncated to ticks, at both ends.
        let is_complete = by_threads + TICK * 2 >= by_ticks;
        if is_complete && !self.threads.is_empty() {
            by_threads
        } else {
            by_ticks
        }
    }
}

/// Parses the user and system time of `/proc/<pid>/stat`. The program's name, in parentheses, may
/// contain any character.
fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11);
    let user: u64 = times.next()?.parse().ok()?;
    let system: u64 = times.next()?.parse().ok()?;
    Some(user + system)
}

/// Returns the CPU time of each thread in nanoseconds, or `None` if the kernel has no `schedstat`.
fn threads(pid: u32) -> Option<BTreeMap<u32, u64>> {
    let mut threads = BTreeMap::new();
    for entry in fs::read_dir(file(pid, "task")).ok()? {
        let folder = entry.ok()?.path();
        let thread = folder.file_name()?.to_str()?.parse().ok()?;
        // A thread may end between listing and reading.
        if let Ok(schedstat) = fs::read_to_string(folder.join("schedstat")) {
            threads.insert(thread, schedstat.split_whitespace().next()?.parse().ok()?);
        }
    }
    Some(threads)
}

/// The CPU time of the whole machine so far, in ticks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct MachineTime {
    all: u64,
    idle: u64,
}

impl MachineTime {
    pub(crate) fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        let fields = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = fields
            .split_whitespace()
            .filter_map(|field| field.parse().ok())
            .collect();
        // User, nice, system, idle, iowait, irq, softirq, steal. User time includes guest time.
        let [_, _, _, idle, iowait, ..] = ticks[..] else {
            return None;
        };
        Some(Self {
            all: ticks.iter().take(8).sum(),
            idle: idle + iowait,
        })
    }

    /// Returns the busy share of the time since `earlier`, from 0 to 1.
    pub(crate) fn busy_since(&self, earlier: &Self) -> f64 {
        let passed = |now: u64, then: u64| f64::from(u32::try_from(now.saturating_sub(then)).unwrap_or(u32::MAX));
        let all = passed(self.all, earlier.all);
        let idle = passed(self.idle, earlier.idle);
        if all > 0.0 { (1.0 - idle / all).max(0.0) } else { 0.0 }
    }
}

fn read(pid: u32, name: &str) -> Result<String> {
    let path = file(pid, name);
    fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))
}

fn file(pid: u32, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(ticks: u64, threads: &[(u32, u64)]) -> CpuTime {
        CpuTime {
            ticks,
            threads: threads.iter().copied().collect(),
        }
    }

    #[test]
    fn memory_is_parsed_from_the_status() {
        let status = "Name:\tdaemon\nVmPeak:\t  9000 kB\nVmHWM:\t    1640 kB\nVmRSS:\t    1536 kB\n";
        let memory = Memory::parse(status);
        assert_eq!(
            memory,
            Some(Memory {
                resident: 1536,
                peak: 1640
            })
        );
        assert_eq!(Memory::parse("Name:\tzombie\n"), None);
    }

    #[test]
    fn cpu_time_is_parsed_when_the_program_name_contains_parentheses() {
        let stat = "30464 (a) b) R 30462 30462 25846 0 -1 4194304 91 0 0 0 71 4 0 0 20 0 1 0 1239036";
        assert_eq!(ticks(stat), Some(75));
        assert_eq!(ticks("30464 (a) R 1"), None);
    }

    #[test]
    fn the_sum_over_the_threads_is_used_when_it_is_complete() {
        let earlier = cpu(100, &[(1, 900_000_000), (2, 100_000_000)]);
        let later = cpu(103, &[(1, 925_000_000), (2, 100_000_000), (3, 4_500_000)]);
        assert_eq!(later.since(&earlier), Duration::from_micros(29_500));
    }

    #[test]
    fn ticks_are_used_when_threads_have_ended_or_are_unknown() {
        let earlier = cpu(100, &[(1, 900_000_000), (2, 100_000_000)]);
        assert_eq!(
            cpu(120, &[(1, 901_000_000)]).since(&earlier),
            Duration::from_millis(200)
        );
        assert_eq!(cpu(120, &[]).since(&cpu(100, &[])), Duration::from_millis(200));
        assert_eq!(cpu(100, &[]).since(&cpu(100, &[])), Duration::ZERO);
    }

    #[test]
    fn the_busy_share_excludes_idle_time() {
        let at = |stat| MachineTime::parse(stat).unwrap();
        let earlier = at("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 1 1 1 1\n");
        let later = at("cpu  110 5 105 770 110 0 0 0 9 9\ncpu0 1 1 1 1 1\n");
        assert!((later.busy_since(&earlier) - 0.2).abs() < 1e-9);
        assert!(later.busy_since(&later).abs() < 1e-9);
        assert_eq!(MachineTime::parse("cpu  1 2 3"), None);
        assert_eq!(MachineTime::parse(""), None);
    }

    #[test]
    fn memory_and_cpu_time_of_this_process_are_positive() {
        let memory = Memory::of(std::process::id()).unwrap();
        assert!(memory.resident > 0 && memory.peak >= memory.resident, "{memory:?}");
        let start = CpuTime::of(std::process::id()).unwrap();
        assert!(!start.threads.is_empty());
    }
}
