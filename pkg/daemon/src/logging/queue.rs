//! The queue of log lines before stderr, so that nothing waits for a pipe that nobody reads.
//!
//! One thread writes the lines in order. When the queue is full, further lines are dropped and
//! counted.

use std::io::{self, Stderr, Write};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use portreeve_metrics::Registry;
use prometheus::IntCounter;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};

/// The maximum number of lines in the queue: enough for the bursts of a start, and about one MiB.
const CAPACITY: usize = 4096;
/// How long the end of the process waits for stderr.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// The counter of the process's queue. The metrics of each [`crate::run::run`] read it.
static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// Returns the number of lines that this process has dropped.
fn dropped_lines() -> usize {
    DROPPED.get().map_or(0, ErrorCounter::dropped_lines)
}

/// Starts the thread that writes to stderr. Pass the guard to [`finish`].
pub(super) fn start() -> (NonBlocking, WorkerGuard) {
    let (queue, guard) = NonBlockingBuilder::default()
        .buffered_lines_limit(CAPACITY)
        .lossy(true)
        .thread_name("log")
        .finish(ReportingStderr {
            stderr: io::stderr(),
            reported: 0,
        });
    DROPPED.get_or_init(|| queue.error_counter());
    (queue, guard)
}

/// Writes the lines that are still in the queue, and then runs `write_last`, which cannot report a
/// failure anywhere. Returns after at most a second, even if stderr is blocked.
///
/// `write_last` runs on another thread, because stderr is locked while a write to it blocks. The
/// guard is dropped there too: if the queue stays full, it prints to stdout, which may also block.
pub(crate) fn finish(guard: Option<WorkerGuard>, write_last: impl FnOnce() + Send + 'static) {
    let (running, ended) = mpsc::channel::<()>();
    let flush = move || {
        let _running = running;
        drop(guard);
        write_last();
    };
    if thread::Builder::new().name("flush".to_owned()).spawn(flush).is_ok() {
        // Nothing is sent: the end of the thread disconnects the channel.
        ended.recv_timeout(FLUSH_LIMIT).ok();
    }
}

/// Stderr, with a warning about dropped lines once the queue is empty again.
struct ReportingStderr {
    stderr: Stderr,
    /// The number of dropped lines that the log has reported.
    reported: usize,
}

impl Write for ReportingStderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stderr.write(bytes)
    }

    /// The thread calls this when the queue is empty.
    fn flush(&mut self) -> io::Result<()> {
        let dropped = dropped_lines();
        if dropped > self.reported {
            tracing::warn!(lines = dropped - self.reported, "dropped log lines");
            self.reported = dropped;
        }
        self.stderr.flush()
    }
}

/// Registers the number of dropped lines.
pub(crate) fn register(registry: &Registry) -> Result<(), prometheus::Error> {
    registry.register(Box::new(DroppedLines(counter()?)))
}

fn counter() -> Result<IntCounter, prometheus::Error> {
    IntCounter::new(
        "portreeve_log_lines_dropped_total",
        "Number of log lines that were dropped because too many were waiting for stderr.",
    )
}

/// Reads the queue's own counter at each scrape. The inner counter only describes the metric.
struct DroppedLines(IntCounter);

impl Collector for DroppedLines {
    fn desc(&self) -> Vec<&Desc> {
        self.0.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Ok(counter) = counter() else { return Vec::new() };
        counter.inc_by(u64::try_from(dropped_lines()).unwrap_or(u64::MAX));
        counter.collect()
    }
}
