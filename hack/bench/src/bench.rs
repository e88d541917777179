//! A run of the benchmark: takes the measurements one after another and writes the report.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use crate::controller::daemon_output;
use crate::machine;
use crate::options::{Options, Step};
use crate::report::{Report, Sample};
use crate::run::{Run, log};
use crate::statistics::{Value, written};
use crate::tables::Scenario;
use crate::usage::machine_time;
use crate::{admission, connections, conversion, failover, foos, garbage, namespaces, schedules, tenants, testenv};

/// How long the CPU usage of other programs is sampled before each measurement.
const LOAD_SAMPLE: Duration = Duration::from_secs(1);
/// The CPU usage of other programs above which a warning is logged, as a share from 0 to 1.
const BUSY_THRESHOLD: f64 = 0.1;

/// Measures everything and writes the report. A failed measurement is reported, and the run
/// continues.
///
/// A signal aborts the current measurement, and the incomplete report is written to stdout.
pub(crate) async fn run(options: Options) -> Result<()> {
    let listen = |kind| signal(kind).context("failed to listen for signals");
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let steps = options.steps();
    if steps.iter().any(|step| step.subject.is_ours()) {
        daemon_output(&options.daemon, "--version")?;
    }
    let output = options.output();
    let mut report = Report {
        machine: machine::detect(),
        command: std::env::args().collect::<Vec<_>>().join(" "),
        date: Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string(),
        options,
        samples: Vec::new(),
        failures: Vec::new(),
        busiest: 0.0,
    };
    let stopped = tokio::select! {
        () = measure_all(&steps, &mut report) => None,
        _ = interrupt.recv() => Some("interrupted"),
        _ = terminate.recv() => Some("terminated"),
    };
    if stopped.is_none() || !report.samples.is_empty() {
        write(&report, output.filter(|_| stopped.is_none()))?;
    }
    if let Some(reason) = stopped {
        bail!("{reason} before everything was measured");
    }
    let failures = report.failures.len();
    ensure!(failures == 0, "{failures} measurements failed");
    Ok(())
}

async fn measure_all(steps: &[Step], report: &mut Report) {
    for (index, step) in steps.iter().enumerate() {
        let name = format!("round {}, {}, {}", step.round, step.row.id, step.subject.name());
        let minutes = steps[index..].iter().map(|step| step.row.seconds).sum::<u64>() / 60;
        let (number, count) = (index + 1, steps.len());
        log(format!("{number} of {count}: {name}; about {minutes} min left in all"));
        let busy = other_load().await.unwrap_or_default();
        report.busiest = report.busiest.max(busy);
        if busy > BUSY_THRESHOLD {
            log(format!("  other programs use {:.0} % of the CPU time", busy * 100.0));
        }
        match Box::pin(measure(&report.options, step)).await {
            Ok(values) => {
                for value in values {
                    log(format!("  {}: {}", value.measure, written(value.number, value.unit)));
                    let Step { row, subject, .. } = *step;
                    report.samples.push(Sample { row, subject, value });
                }
            }
            Err(error) => {
                log(format!("  failed: {error:#}"));
                // The report contains only the first line of the error, without the log of the
                // subject.
                let cause = error.root_cause().to_string();
                let cause = cause.lines().next().unwrap_or_default();
                report.failures.push(format!("{name}: {cause}"));
            }
        }
    }
}

/// Samples the CPU usage of other programs, which affects every number.
async fn other_load() -> Option<f64> {
    let (start, start_idle) = machine_time()?;
    sleep(LOAD_SAMPLE).await;
    let (end, end_idle) = machine_time()?;
    Some(1.0 - (end_idle - start_idle) / (end - start).max(1.0))
}

async fn measure(options: &Options, step: &Step) -> Result<Vec<Value>> {
    let row = step.row;
    if row.scenario == Scenario::GoTests {
        return testenv::measure_go(options, step).await;
    }
    let run = Run::start(options, *step).await?;
    match &row.scenario {
        Scenario::Due | Scenario::DueAgain => schedules::measure_due(&run).await,
        Scenario::Outage => schedules::measure_outage(&run).await,
        Scenario::Idle => schedules::measure_idle(&run).await,
        Scenario::Handover | Scenario::Crash => Box::pin(failover::measure(&run)).await,
        Scenario::Cascade(policy) => garbage::measure_cascade(&run, *policy).await,
        Scenario::Namespaces { objects } => namespaces::measure(&run, *objects).await,
        Scenario::NamespacesAtRest { objects } => namespaces::measure_at_rest(&run, *objects).await,
        Scenario::Everything => garbage::measure_everything(&run).await,
        Scenario::Burst => foos::measure(&run).await,
        Scenario::Start => foos::measure_start(&run).await,
        Scenario::Connections => connections::measure(&run).await,
        Scenario::Tenants => tenants::measure(&run).await,
        Scenario::Admission => admission::measure(&run).await,
        Scenario::Conversion => conversion::measure(&run).await,
        Scenario::Testenv => testenv::measure(&run).await,
        Scenario::GoTests => bail!("{} needs no control plane", row.id),
    }
}

/// Writes the report to `output`, or to stdout if that is `None`.
fn write(report: &Report, output: Option<PathBuf>) -> Result<()> {
    let text = report.render();
    if let Some(file) = output {
        fs::write(&file, text).with_context(|| format!("failed to write {}", file.display()))?;
        log(format!("wrote {}", file.display()));
    } else {
        let written = io::stdout().lock().write_all(text.as_bytes());
        written.context("failed to write to stdout")?;
    }
    Ok(())
}
