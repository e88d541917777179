//! The search for the next run, by the benchmarks of the crate that does it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portreeve_testing::Process;
use serde_json::Value;

use crate::rows::{Measure, Row, Sample, Subject};

/// The first run builds them.
const LIMIT: Duration = Duration::from_mins(30);
/// Of the benchmarks those that search; and half the time that criterion would take, as there are several rounds.
const ARGS: [&str; 10] = [
    "bench",
    "--locked",
    "-p",
    "portreeve-cron",
    "--bench",
    "next",
    "--",
    "^next/",
    "--warm-up-time=1",
    "--measurement-time=3",
];

/// Runs the benchmarks and takes the medians. They write what they find into a folder that is theirs alone.
pub(crate) async fn measure() -> Result<Vec<Sample>> {
    let folder = tempfile::tempdir().context("failed to make a temporary folder")?;
    let home = folder.path().to_str().context("the temporary folder has no name")?;
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let log = folder.path().join("log");
    let bench = Process::spawn(
        "cargo bench",
        Path::new(&cargo),
        ARGS,
        &[("CRITERION_HOME", home)],
        &log,
    )?;
    let status = bench.wait(LIMIT).await?;
    ensure!(status.success(), "cargo bench ended with {status}{}", bench.log_tail());
    let mut samples = Vec::new();
    for estimates in find(folder.path())? {
        let (name, seconds) = read(&estimates).with_context(|| format!("failed to read {}", estimates.display()))?;
        samples.push(Sample {
            row: Row::Next,
            subject: Subject::Portreeve,
            measure: Measure::Search(name),
            value: seconds,
        });
    }
    ensure!(!samples.is_empty(), "cargo bench measured nothing");
    Ok(samples)
}

/// Every `new/estimates.json` below a folder.
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

/// The name of a benchmark and the seconds of one turn of it.
fn read(estimates: &Path) -> Result<(String, f64)> {
    let json = |path: &Path| {
        let text = fs::read_to_string(path)?;
        anyhow::Ok(serde_json::from_str::<Value>(&text)?)
    };
    let nanoseconds = json(estimates)?["median"]["point_estimate"].as_f64();
    let nanoseconds = nanoseconds.context("there is no median")?;
    let benchmark = json(&estimates.with_file_name("benchmark.json"))?;
    let name = ["title", "full_id"].iter().find_map(|field| benchmark[field].as_str());
    Ok((name.context("there is no name")?.to_owned(), nanoseconds / 1e9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_benchmark_is_found_by_its_own_name() {
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
        let read: Vec<(String, f64)> = found.iter().map(|path| read(path).unwrap()).collect();
        assert_eq!(
            read,
            [("never".to_owned(), 1.5e-6), ("next/*/5 * * * *".to_owned(), 2.5e-7)]
        );
    }
}
