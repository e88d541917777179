//! The format of the log, and the secrets that it must not contain.

use std::fs;

use anyhow::{Context, Result, ensure};
use portreeve_testing::{ControlPlane, Signal};
use serde_json::Value;

use crate::fixtures::{LIMIT, daemon::Daemon, definitions::plane_with_definitions, namespace::NamespaceFixture};

#[tokio::test]
async fn json_logs_have_one_object_per_line_with_kubernetes_keys() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let flags = ["--controllers=-foo", "--logging-format=json", "-v=4"];
    let daemon = Daemon::start(plane, "json-daemon", &flags).await?;
    daemon.admin.wait_until_ready().await?;
    daemon.process.signal(Signal::TERM)?;
    daemon.process.wait(LIMIT).await?;
    let log = daemon.log()?;
    let mut messages = Vec::new();
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        ensure!(line["ts"].is_number(), "{line}");
        ensure!(
            line["logger"]
                .as_str()
                .is_some_and(|logger| logger.starts_with("portreeve")),
            "{line}"
        );
        ensure!(line["v"].is_u64(), "only errors lack v: {line}");
        messages.push(
            line["msg"]
                .as_str()
                .with_context(|| format!("no msg: {line}"))?
                .to_owned(),
        );
    }
    for message in ["starting portreeve", "no controller is enabled", "stopped"] {
        ensure!(messages.iter().any(|found| found.starts_with(message)), "{messages:?}");
    }
    Ok(())
}

/// Uses its own control plane, because other daemons would reconcile the same Foos.
#[tokio::test]
async fn the_log_contains_no_token_at_the_highest_verbosity() -> Result<()> {
    let plane = plane_with_definitions().await?;
    let kubeconfig: Value = serde_json::from_str(&fs::read_to_string(plane.kubeconfig())?)?;
    let token = kubeconfig
        .pointer("/users/0/user/token")
        .and_then(Value::as_str)
        .context("the kubeconfig has no token")?;
    let daemon = Daemon::start(&plane, "talkative-daemon", &["--install-crds", "-v=9"]).await?;
    daemon.admin.wait_until_ready().await?;
    let fixture = NamespaceFixture::new(&plane, "talkative").await?;
    fixture.ready_foo("web", 2).await?;
    plane.apiserver().restart().await?;
    fixture.ready_foo("again", 2).await?;
    daemon.process.signal(Signal::TERM)?;
    daemon.process.wait(LIMIT).await?;
    let log = daemon.log()?;
    ensure!(
        log.lines().any(|line| line.contains("TRACE") || line.contains("DEBUG")),
        "the log has no debug lines: {log}"
    );
    ensure!(
        log.contains(fixture.name()),
        "the log does not mention the namespace: {log}"
    );
    for secret in [token, "Bearer", "bearer", "authorization:"] {
        let line = log.lines().find(|line| line.contains(secret));
        ensure!(line.is_none(), "{line:?}");
    }
    Ok(())
}
