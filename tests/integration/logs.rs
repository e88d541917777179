//! The log lines about an object that fails repeatedly.

use std::collections::HashSet;

use anyhow::{Context, Result, ensure};
use portreeve_testing::{CannedResponse, ControlPlane, FaultProxy, Matcher, Repeat, eventually};
use serde_json::Value;

use crate::fixtures::{LIMIT, admin::Metrics, daemon::Daemon, namespace::NamespaceFixture};

/// The number of attempts, which take a few seconds because of the backoff.
const ATTEMPTS: u64 = 9;
/// The lines that take the place of one for each attempt. A second one is due after a minute, if
/// the machine is slow.
const MOST_LINES: usize = 2;

/// Starts a daemon whose Deployments cannot be created, and returns its lines about a Foo once they
/// have failed several times.
async fn failing_foo(name: &'static str, verbosity: &str) -> Result<(Vec<Value>, Metrics)> {
    let plane = ControlPlane::pooled().await?;
    let proxy = FaultProxy::start(&plane).await?;
    let fixture = NamespaceFixture::new(&plane, name).await?;
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), name)?;
    let flags = [
        "--controllers=foo",
        "--install-crds",
        "--logging-format=json",
        verbosity,
    ];
    let daemon = Daemon::start_as(&plane, &kubeconfig, name, &flags).await?;
    daemon.admin.wait_until_ready().await?;
    let creations = Matcher::any().method("POST").resource("deployments");
    let failure = proxy.respond(
        creations.namespace(fixture.name()),
        CannedResponse::internal_error(),
        Repeat::UntilHealed,
    );
    fixture.create_foo("web", "web", 1).await?;
    failure.wait_for_applied(ATTEMPTS, LIMIT).await?;
    let object = format!("{}/web", fixture.name());
    let lines = || async {
        let log = daemon.log()?;
        let lines = log.lines().map(serde_json::from_str);
        let lines = lines.collect::<Result<Vec<Value>, _>>().context("not JSON")?;
        let lines: Vec<_> = lines.into_iter().filter(|line| line["object"] == object).collect();
        ensure!(
            lines.iter().any(|line| line["msg"] == "retrying failed plan"),
            "{lines:?}"
        );
        anyhow::Ok(lines)
    };
    let lines = eventually(LIMIT, "lines about the Foo", lines).await?;
    Ok((lines, daemon.admin.metrics().await?))
}

fn count(lines: &[Value], message: &str) -> usize {
    lines.iter().filter(|line| line["msg"] == message).count()
}

#[tokio::test]
async fn repeated_failures_of_an_object_are_limited_in_the_log_but_not_in_the_metric() -> Result<()> {
    let (lines, metrics) = failing_foo("quiet-failures", "-v=0").await?;
    let first = lines.iter().find(|line| line["msg"] == "retrying failed plan");
    let first = first.context("no failure was logged")?;
    ensure!(
        first["controller"] == "foo-controller" && first["severity"] == "warning",
        "{first}"
    );
    let err = first["err"].as_str().unwrap_or_default();
    ensure!(
        err.contains("failed to create") && first["suppressed"].is_null(),
        "{first}"
    );
    ensure!(count(&lines, "retrying failed plan") <= MOST_LINES, "{lines:?}");
    // The first attempt and the first retry show what was decided.
    ensure!(count(&lines, "decided") <= MOST_LINES, "{lines:?}");
    let errors = metrics.sum(
        "controller_runtime_reconcile_errors_total",
        &[r#"controller="foo-controller""#],
    );
    // The last attempt may not be counted yet.
    ensure!(errors > 7.0, "{errors} errors were counted");
    Ok(())
}

#[tokio::test]
async fn each_attempt_has_an_id_and_all_of_them_are_logged_at_debug() -> Result<()> {
    let (lines, _) = failing_foo("loud-failures", "-v=4").await?;
    let attempts: Vec<_> = lines.iter().filter(|line| line["msg"] == "decided").collect();
    ensure!(attempts.len() > 7, "{lines:?}");
    let ids: HashSet<_> = attempts.iter().map(|line| line["reconcileID"].to_string()).collect();
    ensure!(ids.len() == attempts.len(), "{attempts:?}");
    let failures = lines.iter().filter(|line| line["msg"] == "retrying failed plan");
    for failure in failures {
        ensure!(ids.contains(&failure["reconcileID"].to_string()), "{failure}");
    }
    Ok(())
}
