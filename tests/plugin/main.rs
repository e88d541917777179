//! The command line of the kubectl plugin. What its commands do to a cluster is tested in
//! `integration`.

use std::{
    env, fs,
    path::Path,
    process::{Command, Output},
};

use anyhow::{Context, Result, ensure};

const PROGRAM: &str = env!("CARGO_BIN_EXE_kubectl-portreeve");

/// Runs a command, with this value of `KUBECONFIG`.
fn run(args: &[&str], kubeconfig: Option<&str>) -> Result<Output> {
    let mut command = Command::new(PROGRAM);
    command.args(args);
    for variable in [
        "HOME",
        "KUBECONFIG",
        "KUBERNETES_SERVICE_HOST",
        "KUBERNETES_SERVICE_PORT",
    ] {
        command.env_remove(variable);
    }
    if let Some(kubeconfig) = kubeconfig {
        command.env("KUBECONFIG", kubeconfig);
    }
    command.output().context("failed to run the plugin")
}

/// Checks that a command fails with an error that has these words.
fn check(args: &[&str], kubeconfig: Option<&str>, words: &[&str]) -> Result<()> {
    let output = run(args, kubeconfig)?;
    let error = String::from_utf8(output.stderr)?;
    ensure!(output.status.code() == Some(1), "{args:?}: {}", output.status);
    for word in words {
        ensure!(error.contains(word), "the error of {args:?} lacks {word:?}: {error}");
    }
    Ok(())
}

#[test]
fn commands_that_change_a_definition_need_an_address() -> Result<()> {
    for (args, words) in [
        (&["conversion", "enable"][..], &["--service", "--url"][..]),
        (
            &["conversion", "enable", "--service=portreeve"],
            &["--service", "portreeve-system/portreeve-webhook"],
        ),
        (&["conversion", "enable", "--url=http://a"], &["--url", "https://"]),
        (
            &["conversion", "enable", "--service=a/b", "--url=https://a"],
            &["--service", "--url"],
        ),
        (&["conversion", "disable"], &["in-cluster", "--kubeconfig"]),
        (&["migrate", "--page-size=0"], &["--page-size"]),
        (&["migrate"], &["in-cluster", "--kubeconfig"]),
    ] {
        check(args, None, words)?;
    }
    Ok(())
}

/// Writes a kubeconfig with one cluster, at this port, and a context for it.
fn write_kubeconfig(path: &Path, name: &str, port: u16, is_current: bool) -> Result<()> {
    let current = if is_current { name } else { "" };
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: \"{current}\"\n\
         clusters: [{{name: {name}, cluster: {{server: \"http://127.0.0.1:{port}\"}}}}]\n\
         users: [{{name: {name}, user: {{token: t}}}}]\n\
         contexts: [{{name: {name}, context: {{cluster: {name}, user: {name}}}}}]\n"
    );
    fs::write(path, text)?;
    Ok(())
}

/// Nothing listens on the ports, so the error shows which cluster was chosen.
#[test]
fn the_cluster_is_that_of_kubectl() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);
    write_kubeconfig(&path("a"), "a", 1, true)?;
    write_kubeconfig(&path("b"), "b", 2, false)?;
    let list = env::join_paths([path("absent"), path("a"), path("b")])?;
    let list = Some(list.to_str().context("a path is not text")?);
    check(&["migrate"], list, &["127.0.0.1:1"])?;
    check(&["migrate", "--context=b"], list, &["127.0.0.1:2"])?;
    check(
        &["conversion", "disable", "--context=c"],
        list,
        &["\"c\"", "kubectl config get-contexts"],
    )?;
    let one = format!("--kubeconfig={}", path("b").display());
    check(&["migrate", &one, "--context=b"], list, &["127.0.0.1:2"])
}

#[test]
fn schedules_are_printed() -> Result<()> {
    let args = ["cron", "next", "30 2 * * *", "--from=2026-03-28T12:00:00Z", "-n1"];
    let output = run(&args, None)?;
    ensure!(output.status.success(), "{output:?}");
    ensure!(output.stdout == b"2026-03-29T02:30:00Z\n", "{output:?}");
    Ok(())
}
