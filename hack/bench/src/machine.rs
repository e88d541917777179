//! The machine and the software versions of a run. Values that cannot be detected are `unknown`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::{fs, thread};

use portreeve_testing::server_binary;

/// Returns the names and values that a report contains.
pub(crate) fn detect() -> BTreeMap<&'static str, String> {
    let cores = thread::available_parallelism().ok().map(|cores| cores.to_string());
    let kibibytes = field("/proc/meminfo", "MemTotal").and_then(|text| text.strip_suffix(" kB")?.parse().ok());
    let memory = kibibytes.map(|kibibytes: f64| format!("{:.1} GiB", kibibytes / 1024.0 / 1024.0));
    let server = |name| output(&server_binary(name).ok()?, &["--version"]);
    let without = |prefix: &str, line: Option<String>| line.map(|line| line.replace(prefix, ""));
    let commit = ["describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"];
    let found = [
        ("cores", cores),
        ("cpu", field("/proc/cpuinfo", "model name")),
        ("memory", memory),
        ("kernel", output(Path::new("uname"), &["-sr"])),
        ("kubernetes", without("Kubernetes ", server("kube-apiserver"))),
        ("etcd", without("etcd Version: ", server("etcd"))),
        ("rustc", without("rustc ", output(Path::new("rustc"), &["--version"]))),
        ("commit", output(Path::new("git"), &commit)),
    ];
    let or_unknown = |value: Option<String>| value.unwrap_or_else(|| "unknown".to_owned());
    found.map(|(name, value)| (name, or_unknown(value))).into()
}

/// Returns the value of a line `name : value` in a file of `/proc`.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Returns the first line that a program prints.
fn output(program: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let first_line = text.lines().next().unwrap_or_default().to_owned();
    output.status.success().then_some(first_line)
}
