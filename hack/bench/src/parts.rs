//! Benchmarks of crates with criterion, without a cluster.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use portreeve_testing::Process;
use serde_json::Value as Json;

use crate::statistics::{Unit, Value};

/// The time limit. The first run builds the benchmarks.
const LIMIT: Duration = Duration::from_mins(30);

/// Runs the benchmarks of a package and returns their medians. Their bench target and criterion
/// group have the row's name.
pub(crate) async fn measure(row: &str, package: &str) -> Result<Vec<Value>> {
    let folder = tempfile::tempdir().context("failed to create a temporary folder")?;
    let home = folder.path().to_string_lossy();
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let (log, filter) = (folder.path().join("log"), format!("^{row}/"));
    // Half of criterion's default times, because there are several rounds.
    let criterion = ["--", &filter, "--warm-up-time=1", "--measurement-time=3"];
    let args = ["bench", "--locked", "-p", package, "--bench", row];
    let (args, envs) = (args.into_iter().chain(criterion), [("CRITERION_HOME", &*home)]);
    let bench = Process::spawn("cargo bench", Path::new(&cargo), args, &envs, &log)?;
    let status = bench.wait(LIMIT).await?;
    ensure!(status.success(), "cargo bench ended with {status}{}", bench.log_tail());
    let mut estimates = Vec::new();
    find_estimates(folder.path(), &mut estimates)?;
    ensure!(!estimates.is_empty(), "cargo bench measured nothing");
    estimates.sort();
    estimates.iter().map(|estimates| median(estimates)).collect()
}

/// Finds every `new/estimates.json` below a folder.
fn find_estimates(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let describe = || format!("failed to read {}", folder.display());
    for entry in fs::read_dir(folder).with_context(describe)? {
        let path = entry.with_context(describe)?.path();
        if path.is_dir() {
            find_estimates(&path, found)?;
        } else if path.ends_with("new/estimates.json") {
            found.push(path);
        }
    }
    Ok(())
}

/// Returns the median time of one iteration, or the rate if the benchmark counts elements.
fn median(estimates: &Path) -> Result<Value> {
    let json = |path: &Path| {
        let text = fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
        serde_json::from_str::<Json>(&text).with_context(|| format!("failed to parse {}", path.display()))
    };
    let nanoseconds = json(estimates)?["median"]["point_estimate"].as_f64();
    let seconds = nanoseconds.context("the estimates contain no median")? / 1e9;
    let benchmark = json(&estimates.with_file_name("benchmark.json"))?;
    let name = ["title", "full_id"].iter().find_map(|field| benchmark[field].as_str());
    let name = name.context("the benchmark has no name")?;
    Ok(match benchmark["throughput"]["Elements"].as_f64() {
        Some(elements) => Unit::PerSecond.of(name, elements / seconds),
        None => Unit::Seconds.of(name, seconds),
    })
}
