//! A run of the benchmark: takes the measurements one after another and writes the report.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use tokio::sync::OnceCell;
use tokio::time::sleep;

use crate::controller::Daemon;
use crate::machine::Machine;
use crate::options::Options;
use crate::plan::{DurationEstimates, Step, Work, steps};
use crate::progress::{Progress, length};
use crate::report::Report;
use crate::resource_usage::MachineTime;
use crate::rows::{Sample, Subject, Task};
use crate::search::PARTS;
use crate::statistics::written;
use crate::{burst, cascade, due, failover, fleet, idle, load, million, rounds, search, shell, standby};

/// The number of schedules that kube-controller-manager's cronjob-controller works on at a time.
const PEER_CONCURRENCY: u16 = 5;
/// How long the CPU usage of other programs is sampled before each measurement.
const LOAD_SAMPLE: Duration = Duration::from_secs(1);
/// The CPU usage of other programs above which a warning is logged, as a share from 0 to 1.
const BUSY_THRESHOLD: f64 = 0.1;

/// The context of every measurement.
pub(crate) struct Bench {
    pub(crate) options: Options,
    pub(crate) progress: Progress,
    /// `None` when no subject is the daemon.
    pub(crate) daemon: Option<Daemon>,
    /// The number of schedules that each subject works on at a time in the row `due`.
    pub(crate) concurrency: u16,
    /// The default of `concurrency`.
    pub(crate) default_concurrency: u16,
    /// The folder with the binaries of the controllers for Foos on other frameworks, once they are
    /// built.
    pub(crate) peers: OnceCell<PathBuf>,
}

/// The results of a run so far.
#[derive(Default)]
struct Outcome {
    samples: Vec<Sample>,
    failures: Vec<String>,
    /// The highest CPU usage of other programs before a measurement, as a share from 0 to 1.
    busiest: f64,
}

/// Measures everything and writes the report. A failed measurement is reported, and the run
/// continues.
///
/// When `stopped` resolves with a reason, the current measurement is aborted and the incomplete
/// report is written to stdout.
pub(crate) async fn run(options: Options, stopped: impl Future<Output = &'static str>) -> Result<()> {
    let progress = Progress::start();
    let subjects = options.subjects();
    let measures_parts = subjects.contains(&Subject::Portreeve);
    let has_daemon = subjects.iter().any(|subject| subject.is_ours());
    let daemon = has_daemon.then(|| Daemon::at(options.daemon.clone())).transpose()?;
    let daemon_default = daemon
        .as_ref()
        .and_then(|daemon| daemon.concurrency(Subject::Portreeve));
    let default_concurrency = daemon_default.unwrap_or(PEER_CONCURRENCY);
    let bench = Bench {
        concurrency: options.concurrency.unwrap_or(default_concurrency),
        default_concurrency,
        daemon,
        progress,
        options,
        peers: OnceCell::new(),
    };
    let mut outcome = Outcome::default();
    let everything = async {
        if measures_parts {
            bench.parts(&mut outcome).await;
        }
        let steps = bench.supported(steps(&bench.options, &subjects));
        bench.steps(&steps, &mut outcome).await;
    };
    let stopped = tokio::select! {
        () = everything => None,
        reason = stopped => Some(reason),
    };
    let failures = outcome.failures.len();
    let output = bench.options.output().filter(|_| stopped.is_none());
    if stopped.is_none() || !outcome.samples.is_empty() {
        bench.write(&outcome.report(&bench), output)?;
    }
    if let Some(reason) = stopped {
        bail!("{reason} before everything was measured");
    }
    ensure!(failures == 0, "{failures} measurements failed");
    Ok(())
}

impl Bench {
    /// Removes the steps for which this daemon's binary has no controller.
    fn supported(&self, mut steps: Vec<Step>) -> Vec<Step> {
        for task in [Task::Schedules, Task::LeaderElection, Task::Garbage, Task::Foos] {
            for subject in self.options.subjects().into_iter().filter(|subject| subject.is_ours()) {
                let (Some(controller), Some(daemon)) = (subject.controller(task), &self.daemon) else {
                    continue;
                };
                let needs_it = |step: &Step| step.subject == subject && step.work.row().task() == task;
                if !daemon.knows(controller) && steps.iter().any(needs_it) {
                    let name = subject.name();
                    self.progress
                        .log(format!("skipping {name}: the daemon has no {controller}"));
                    steps.retain(|step| !needs_it(step));
                }
            }
        }
        steps
    }

    /// Measures the parts with `cargo bench`. Call it before any control plane runs, because the
    /// servers would share the CPU.
    async fn parts(&self, outcome: &mut Outcome) {
        for round in 1..=self.options.rounds {
            for part in PARTS.iter().filter(|part| self.options.has(part.row)) {
                let name = format!("round {round}, {}", part.row.name());
                self.progress.log(format!("{name}: running cargo bench"));
                self.sample_other_load(outcome).await;
                self.record(&name, search::measure(part).await, outcome);
            }
        }
    }

    async fn steps(&self, steps: &[Step], outcome: &mut Outcome) {
        let mut estimates = DurationEstimates::default();
        let mut fleet = None;
        for (index, step) in steps.iter().enumerate() {
            let remaining = length(estimates.estimate(&steps[index..]));
            let name = name(step);
            let (number, count) = (index + 1, steps.len());
            self.progress
                .log(format!("{number} of {count}: {name}; about {remaining} left in all"));
            let started = Instant::now();
            if step.work != Work::Fleet {
                // Stops the fleet's control plane, so that it does not share the machine with other
                // measurements.
                fleet = None;
            }
            self.sample_other_load(outcome).await;
            let measured = match step.work {
                Work::Due { row: _ } => due::measure(self, step).await,
                Work::Idle { row, window } => idle::measure(self, step, row, window).await,
                Work::Failover { row } => failover::measure(self, step, row).await,
                Work::Standby => standby::measure(self, step).await,
                Work::Cascade { row } => cascade::measure(self, step, row).await,
                Work::Load { row } => load::measure(self, step, row).await,
                Work::Graph => million::measure(self, step).await,
                Work::Burst => burst::measure(self, step).await,
                Work::Rounds => rounds::measure(self, step).await,
                Work::Fleet => fleet::measure(self, step, &mut fleet).await,
                Work::Shell => shell::measure(self, step).await,
            };
            estimates.took(step, started.elapsed());
            self.record(&name, measured, outcome);
        }
    }

    /// Samples the CPU usage of other programs, which affects every number.
    async fn sample_other_load(&self, outcome: &mut Outcome) {
        let Some(start) = MachineTime::now() else {
            return;
        };
        sleep(LOAD_SAMPLE).await;
        let busy = MachineTime::now().map_or(0.0, |end| end.busy_since(&start));
        if busy > BUSY_THRESHOLD {
            let share = busy * 100.0;
            self.progress
                .log(format!("  other programs use {share:.0} % of the CPU time"));
        }
        outcome.busiest = outcome.busiest.max(busy);
    }

    fn record(&self, name: &str, measured: Result<Vec<Sample>>, outcome: &mut Outcome) {
        match measured {
            Ok(samples) => {
                for sample in &samples {
                    let value = written(sample.value, sample.measure.unit());
                    self.progress.log(format!("  {}: {value}", sample.measure.name()));
                }
                outcome.samples.extend(samples);
            }
            Err(error) => {
                self.progress.log(format!("  failed: {error:#}"));
                // The report contains only the first line of the error, without the log of the
                // subject.
                outcome.failures.push(format!(
                    "{name}: {}",
                    error.root_cause().to_string().lines().next().unwrap_or_default()
                ));
            }
        }
    }

    /// Writes the report to `output`, or to stdout if that is `None`.
    fn write(&self, report: &Report, output: Option<PathBuf>) -> Result<()> {
        let text = report.render();
        if let Some(file) = output {
            fs::write(&file, text).with_context(|| format!("failed to write {}", file.display()))?;
            self.progress.log(format!("wrote {}", file.display()));
        } else {
            let mut stdout = io::stdout().lock();
            stdout.write_all(text.as_bytes()).context("failed to write to stdout")?;
        }
        Ok(())
    }
}

impl Outcome {
    fn report(self, bench: &Bench) -> Report {
        let Self {
            samples,
            failures,
            busiest,
        } = self;
        Report {
            machine: Machine::detect(),
            command: env::args().collect::<Vec<_>>().join(" "),
            date: Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string(),
            options: bench.options.clone(),
            concurrency: bench.concurrency,
            default_concurrency: bench.default_concurrency,
            samples,
            failures,
            busiest,
        }
    }
}

fn name(step: &Step) -> String {
    let Step { round, work, subject } = step;
    let row = match work {
        Work::Idle { row, window: Some(_) } => format!("{} and quiet", row.name()),
        other => other.row().name(),
    };
    format!("round {round}, {row}, {}", subject.name())
}
