//! Benchmarks of crates, without a cluster: the search for the next run, the store, and the work
//! queue.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portreeve_testing::Process;
use serde_json::Value;

use crate::rows::{Measure, Row, Sample, Subject};

/// The time limit. The first run builds the benchmarks.
const LIMIT: Duration = Duration::from_mins(30);
/// A row and the package of its benchmarks. Their bench target and criterion group have the row's
/// name.
pub(crate) struct Part {
    pub(crate) row: Row,
    package: &'static str,
}

pub(crate) const PARTS: [Part; 3] = [
    Part {
        row: Row::Next,
        package: "portreeve-cron",
    },
    Part {
        row: Row::Store,
        package: "portreeve-informer",
    },
    Part {
        row: Row::Queue,
        package: "portreeve-workqueue",
    },
];

impl Part {
    /// Returns the arguments for cargo, with half of criterion's default times because there are
    /// several rounds.
    fn args(&self) -> Vec<String> {
        let (name, filter) = (self.row.name(), format!("^{}/", self.row.name()));
        let all = ["bench", "--locked", "-p", self.package, "--bench", &name];
        let criterion = ["--", &filter, "--warm-up-time=1", "--measurement-time=3"];
        all.into_iter().chain(criterion).map(str::to_owned).collect()
    }
}

/// Runs the benchmarks of a part and returns their medians.
pub(crate) async fn measure(part: &Part) -> Result<Vec<Sample>> {
    let folder = tempfile::tempdir().context("failed to create a temporary folder")?;
    let home = folder
        .path()
        .to_str()
        .context("the temporary folder's path is not valid UTF-8")?;
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let log = folder.path().join("log");
    let bench = Process::spawn(
        "cargo bench",
        Path::new(&cargo),
        part.args(),
        &[("CRITERION_HOME", home)],
        &log,
    )?;
    let status = bench.wait(LIMIT).await?;
    ensure!(status.success(), "cargo bench ended with {status}{}", bench.log_tail());
    let mut samples = Vec::new();
    for estimates in find(folder.path())? {
        let found = read(&estimates).with_context(|| format!("failed to read {}", estimates.display()))?;
        samples.push(found.sample(part.row));
    }
    ensure!(!samples.is_empty(), "cargo bench measured nothing");
    Ok(samples)
}

/// Returns every `new/estimates.json` below a folder.
fn find(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).with_context(|| format!("failed to read {}", folder.display()))?;
        for entry in entries {
            let path = entry
                .with_context(|| format!("failed to read {}", folder.display()))?
                .path();
            if path.is_dir() {
                folders.push(path);
            } else if path.ends_with("new/estimates.json") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The result of a benchmark.
#[derive(Debug, PartialEq)]
struct BenchmarkResult {
    name: String,
    /// The time of one iteration.
    seconds: f64,
    /// The number of elements in one iteration, if the benchmark counts them.
    elements: Option<f64>,
}

impl BenchmarkResult {
    fn sample(self, row: Row) -> Sample {
        let (measure, value) = match self.elements {
            Some(elements) => (Measure::Rate(self.name), elements / self.seconds),
            None => (Measure::Search(self.name), self.seconds),
        };
        Sample {
            row,
            subject: Subject::Portreeve,
            measure,
            value,
        }
    }
}

fn read(estimates: &Path) -> Result<BenchmarkResult> {
    let json = |path: &Path| {
        let text = fs::read_to_string(path)?;
        anyhow::Ok(serde_json::from_str::<Value>(&text)?)
    };
    let nanoseconds = json(estimates)?["median"]["point_estimate"].as_f64();
    let nanoseconds = nanoseconds.context("the estimates contain no median")?;
    let benchmark = json(&estimates.with_file_name("benchmark.json"))?;
    let name = ["title", "full_id"].iter().find_map(|field| benchmark[field].as_str());
    Ok(BenchmarkResult {
        name: name.context("the benchmark has no name")?.to_owned(),
        seconds: nanoseconds / 1e9,
        elements: benchmark["throughput"]["Elements"].as_f64(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benchmarks_are_read_with_their_names() {
        let folder = tempfile::tempdir().unwrap();
        for (path, name, median) in [("next/every_5", "next/*/5 * * * *", 250.0), ("never", "never", 1500.0)] {
            let new = folder.path().join(path).join("new");
            fs::create_dir_all(&new).unwrap();
            let estimates =
                format!(r#"{{"mean": {{"point_estimate": 1.0}}, "median": {{"point_estimate": {median}}}}}"#);
            fs::write(new.join("estimates.json"), estimates).unwrap();
            let benchmark = serde_json::json!({"group_id": "next", "title": name});
            fs::write(new.join("benchmark.json"), benchmark.to_string()).unwrap();
            let base = folder.path().join(path).join("base");
            fs::create_dir_all(&base).unwrap();
            fs::write(base.join("estimates.json"), "{}").unwrap();
        }
        let found = find(folder.path()).unwrap();
        let samples = found.iter().map(|path| read(path).unwrap().sample(Row::Next));
        let samples: Vec<(Measure, f64)> = samples.map(|sample| (sample.measure, sample.value)).collect();
        let search = |name: &str| Measure::Search(name.to_owned());
        assert_eq!(
            samples,
            [(search("never"), 1.5e-6), (search("next/*/5 * * * *"), 2.5e-7)]
        );
    }

    #[test]
    fn a_benchmark_that_counts_elements_has_a_rate() {
        let folder = tempfile::tempdir().unwrap();
        let estimates = folder.path().join("estimates.json");
        fs::write(&estimates, r#"{"median": {"point_estimate": 2e6}}"#).unwrap();
        let benchmark = r#"{"title": "store/changed", "throughput": {"Elements": 1000}}"#;
        fs::write(folder.path().join("benchmark.json"), benchmark).unwrap();
        let sample = read(&estimates).unwrap().sample(Row::Store);
        assert_eq!(sample.measure, Measure::Rate("store/changed".to_owned()));
        assert!((sample.value - 500_000.0).abs() < 1e-6, "{}", sample.value);
    }
}
