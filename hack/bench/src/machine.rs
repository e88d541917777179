//! The machine and the software versions of a run. Values that cannot be detected are `unknown`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use portreeve_testing::server_binary;

/// The machine and the versions that the numbers belong to.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) cores: String,
    pub(crate) cpu: String,
    pub(crate) memory: String,
    pub(crate) kernel: String,
    pub(crate) kubernetes: String,
    pub(crate) etcd: String,
    pub(crate) rustc: String,
    pub(crate) commit: String,
}

impl Machine {
    pub(crate) fn detect() -> Self {
        let cores = thread::available_parallelism().ok().map(|cores| cores.to_string());
        let server = |name| {
            server_binary(name)
                .ok()
                .and_then(|binary| first_line(&binary, &["--version"]))
        };
        Self {
            cores: or_unknown(cores),
            cpu: or_unknown(read("/proc/cpuinfo").and_then(|text| field(&text, "model name"))),
            memory: or_unknown(read("/proc/meminfo").and_then(|text| memory(&text))),
            kernel: or_unknown(first_line(Path::new("uname"), &["-sr"])),
            kubernetes: or_unknown(server("kube-apiserver").map(|line| line.replace("Kubernetes ", ""))),
            etcd: or_unknown(server("etcd").map(|line| line.replace("etcd Version: ", ""))),
            rustc: or_unknown(first_line(Path::new("rustc"), &["--version"]).map(|line| line.replace("rustc ", ""))),
            commit: or_unknown(commit()),
        }
    }
}

fn or_unknown(found: Option<String>) -> String {
    found.unwrap_or_else(|| "unknown".to_owned())
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Returns the value of a line `name : value` in a file of `/proc`.
fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory(meminfo: &str) -> Option<String> {
    let kibibytes: u64 = field(meminfo, "MemTotal")?.strip_suffix(" kB")?.parse().ok()?;
    let tenths = kibibytes * 10 / (1 << 20);
    Some(format!("{}.{} GiB", tenths / 10, tenths % 10))
}

fn output(program: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    let has_succeeded = output.status.success();
    has_succeeded.then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn first_line(program: &Path, args: &[&str]) -> Option<String> {
    output(program, args)?.lines().next().map(str::to_owned)
}

/// Returns the commit of the working tree, with the suffix `-dirty` if it has uncommitted changes,
/// as in `git describe --dirty`.
fn commit() -> Option<String> {
    let git = Path::new("git");
    let commit = output(git, &["rev-parse", "--short=12", "HEAD"])?;
    let is_clean = output(git, &["status", "--porcelain"]).is_some_and(|changes| changes.is_empty());
    Some(if is_clean { commit } else { format!("{commit}-dirty") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc_files_are_parsed() {
        let cpuinfo = "processor\t: 0\nmodel name\t: AMD EPYC\n\nprocessor\t: 1\nmodel name\t: AMD EPYC\n";
        assert_eq!(field(cpuinfo, "model name").as_deref(), Some("AMD EPYC"));
        assert_eq!(field(cpuinfo, "flags"), None);
        assert_eq!(memory("MemTotal:       24684096 kB\n").as_deref(), Some("23.5 GiB"));
    }
}
