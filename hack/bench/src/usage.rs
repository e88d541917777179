//! Memory, CPU time, files and connections of a process, and CPU time of the machine, from Linux'
//! `/proc`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::time::sleep;

use crate::statistics::{Unit, Value};

/// The length of a tick in `/proc/<pid>/stat`, on every architecture that Kubernetes supports.
const TICK: Duration = Duration::from_millis(10);
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Memory has settled when it stays within 1 % for this many samples, one a second.
const STABLE_SAMPLES: usize = 10;
const SETTLE_LIMIT: Duration = Duration::from_mins(5);
/// The CPU time that all processes together may use between two samples and count as idle: several
/// times that of leases, bookmarks and health checks.
const IDLE_CPU_TIME: Duration = Duration::from_millis(100);
/// The number of consecutive idle samples that are required.
const IDLE_SAMPLES: usize = 2;
/// How long servers may take to become idle: the apiserver publishes the schemas of 1,500
/// definitions for minutes.
const IDLE_LIMIT: Duration = Duration::from_mins(5);
/// The state of an established connection in `/proc/<pid>/net/tcp`.
const ESTABLISHED: &str = "01";

/// Returns the resident memory of a process, in KiB.
pub(crate) fn resident(pid: u32) -> Result<f64> {
    let status = read(pid, "status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
    number.with_context(|| format!("the status of process {pid} lacks VmRSS"))
}

/// Waits until the memory of a process has settled, at least until `not_before`.
pub(crate) async fn settled(pid: u32, not_before: Instant) -> Result<Value> {
    let deadline = not_before.max(Instant::now()) + SETTLE_LIMIT;
    let mut samples = Vec::new();
    loop {
        let memory = resident(pid)?;
        samples.push(memory);
        let now = Instant::now();
        if now >= not_before && is_stable(&samples) {
            return Ok(Unit::Kibibytes.of("resident memory", memory));
        }
        if now >= deadline {
            bail!("resident memory has not settled within {SETTLE_LIMIT:?}: {samples:?} KiB");
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Returns whether the last samples are within 1 % of each other.
fn is_stable(samples: &[f64]) -> bool {
    let latest = || samples.iter().rev().take(STABLE_SAMPLES).copied();
    let (least, most) = (latest().fold(f64::MAX, f64::min), latest().fold(0.0, f64::max));
    samples.len() >= STABLE_SAMPLES && most - least <= most / 100.0
}

/// The CPU time that a process has used so far. The default is none.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct CpuTime {
    /// The time of the whole process, in ticks.
    ticks: u64,
    /// The time of each running thread, in nanoseconds.
    threads: BTreeMap<OsString, u64>,
}

impl CpuTime {
    pub(crate) fn of(pid: u32) -> Result<Self> {
        // The program's name, in parentheses, may contain any character.
        let stat = read(pid, "stat")?;
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let ticks = fields.skip(11).take(2).filter_map(|time| time.parse::<u64>().ok());
        let ticks = ticks.sum();
        let mut threads = BTreeMap::new();
        for thread in fs::read_dir(file(pid, "task"))?.flatten() {
            // A thread may end between listing and reading, and not every kernel has the file.
            if let Ok(text) = fs::read_to_string(thread.path().join("schedstat")) {
                let time = text.split_whitespace().next().and_then(|time| time.parse().ok());
                threads.insert(thread.file_name(), time.unwrap_or_default());
            }
        }
        Ok(Self { ticks, threads })
    }

    /// Returns the CPU time used since `earlier`, in seconds: the exact sum over the threads, or
    /// the value in ticks if threads that have ended used a part of it.
    pub(crate) fn since(&self, earlier: &Self) -> f64 {
        let by_ticks = TICK * u32::try_from(self.ticks.saturating_sub(earlier.ticks)).unwrap_or(u32::MAX);
        let before = |thread: &OsString| earlier.threads.get(thread).copied().unwrap_or(0);
        let used = |(thread, now): (&OsString, &u64)| now.saturating_sub(before(thread));
        let by_threads = Duration::from_nanos(self.threads.iter().map(used).sum());
        // User and system time are each truncated to ticks, at both ends.
        let is_complete = by_threads + TICK * 2 >= by_ticks && !self.threads.is_empty();
        if is_complete { by_threads } else { by_ticks }.as_secs_f64()
    }
}

/// Waits until processes are idle, all together. The work of an apiserver after its start, or after
/// thousands of writes, would slow down the subject that is measured first.
pub(crate) async fn wait_until_idle(pids: &[u32]) -> Result<()> {
    let cpu_times = || pids.iter().map(|pid| CpuTime::of(*pid)).collect::<Result<Vec<_>>>();
    let deadline = Instant::now() + IDLE_LIMIT;
    let (mut before, mut idle_samples) = (cpu_times()?, 0);
    while idle_samples < IDLE_SAMPLES {
        sleep(POLL_INTERVAL).await;
        let now = cpu_times()?;
        let used: f64 = now.iter().zip(&before).map(|(now, before)| now.since(before)).sum();
        let is_idle = used <= IDLE_CPU_TIME.as_secs_f64();
        idle_samples = if is_idle { idle_samples + 1 } else { 0 };
        if !is_idle && Instant::now() >= deadline {
            bail!("the processes are not idle after {IDLE_LIMIT:?}: {used:.1} s of CPU time in the last second");
        }
        before = now;
    }
    Ok(())
}

/// Returns the targets of a process's open file descriptors, such as `socket:[123]`.
pub(crate) fn open_files(pid: u32) -> Result<Vec<String>> {
    let folder = fs::read_dir(file(pid, "fd")).with_context(|| format!("failed to list the files of {pid}"))?;
    // A file may be closed between listing and reading.
    let targets = folder.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    Ok(targets.map(|target| target.to_string_lossy().into_owned()).collect())
}

/// Returns the number of established connections of a process to an IPv4 port.
pub(crate) fn connections(pid: u32, port: u16) -> Result<usize> {
    let files = open_files(pid)?;
    let table = read(pid, "net/tcp")?;
    let sockets = table.lines().filter_map(|line| established_socket(line, port));
    Ok(sockets.filter(|socket| files.contains(socket)).count())
}

/// Returns the socket of a line of `/proc/<pid>/net/tcp` if it is connected to a port.
fn established_socket(line: &str, port: u16) -> Option<String> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, _, remote, state, _, _, _, _, _, inode, ..] = fields[..] else {
        return None;
    };
    let is_wanted = state == ESTABLISHED && remote.ends_with(&format!(":{port:04X}"));
    is_wanted.then(|| format!("socket:[{inode}]"))
}

/// Returns the time of the whole machine so far and the idle part of it, in ticks.
pub(crate) fn machine_time() -> Option<(f64, f64)> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    // User, nice, system, idle, iowait, irq, softirq, steal. User time includes guest time.
    let ticks: Vec<f64> = fields.take(8).filter_map(|field| field.parse().ok()).collect();
    Some((ticks.iter().sum(), ticks.get(3)? + ticks.get(4)?))
}

fn read(pid: u32, name: &str) -> Result<String> {
    let path = file(pid, name);
    fs::read_to_string(&path).with_context(|| format!("failed to read {path}"))
}

fn file(pid: u32, name: &str) -> String {
    format!("/proc/{pid}/{name}")
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn cpu_time_is_the_sum_over_the_threads_if_that_is_complete_and_ticks_otherwise() {
        let cpu = |ticks, threads: &[(u32, u64)]| {
            let threads = threads.iter().map(|(id, time)| (id.to_string().into(), *time));
            let threads = threads.collect();
            CpuTime { ticks, threads }
        };
        let earlier = cpu(100, &[(1, 900_000_000), (2, 100_000_000)]);
        for (later, milliseconds) in [
            (cpu(103, &[(1, 925_000_000), (2, 100_000_000), (3, 5_000_000)]), 30),
            (cpu(120, &[(1, 901_000_000)]), 200),
            (cpu(120, &[]), 200),
        ] {
            let used = Duration::from_secs_f64(later.since(&earlier));
            assert_eq!(used.as_millis(), milliseconds, "{later:?}");
        }
    }

    #[test]
    fn the_connections_of_this_process_are_counted() {
        let pid = std::process::id();
        assert!(resident(pid).unwrap() > 0.0);
        assert!(!CpuTime::of(pid).unwrap().threads.is_empty());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let streams = [(); 3].map(|()| TcpStream::connect(address).unwrap());
        assert_eq!(connections(pid, address.port()).unwrap(), streams.len());
    }
}
