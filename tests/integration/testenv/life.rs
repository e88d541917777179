//! The start and the end of the command, and what it refuses.

use std::{fs, path::Path};

use anyhow::{Result, ensure};
use kube::config::Kubeconfig;
use portreeve_testing::{ControlPlane, Signal, Testenv};

use super::environment::start;
use crate::fixtures::daemon::{PROGRAM, run};

#[tokio::test]
async fn it_prints_its_address_once_it_is_ready_and_ends_with_its_standard_input() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let mut testenv = start(plane.kubeconfig(), &[]).await?;
    let (status, _) = testenv.get("/readyz").await?;
    ensure!(status == 200, "{status}");
    testenv.settled().await?;
    testenv.close_input();
    let status = testenv.ended().await?;
    ensure!(status.code() == Some(0), "{status}: {}", testenv.log()?);
    let stdout = testenv.stdout()?;
    let port = stdout
        .strip_prefix("ready https://127.0.0.1:")
        .and_then(|rest| rest.strip_suffix('\n'));
    ensure!(port.is_some_and(|port| port.parse::<u16>().is_ok()), "{stdout:?}");
    Ok(())
}

/// Nothing protects what it does from its end, so it does not wait for an apiserver that hangs.
#[tokio::test]
async fn it_ends_by_a_signal_although_the_apiserver_hangs() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let mut testenv = start(plane.kubeconfig(), &["--controllers=namespace"]).await?;
    plane.apiserver().pause()?;
    testenv.signal(Signal::TERM)?;
    let status = testenv.ended().await?;
    plane.apiserver().resume()?;
    ensure!(status.code() == Some(0), "{status}: {}", testenv.log()?);
    Ok(())
}

#[tokio::test]
async fn it_refuses_an_apiserver_on_another_machine() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    // An address in the range for documentation, to which nothing is sent.
    let server = "https://192.0.2.1:6443";
    let remote = fs::read_to_string(plane.kubeconfig())?.replace(plane.url().trim_end_matches('/'), server);
    ensure!(
        remote.contains(server),
        "the kubeconfig does not contain {}",
        plane.url()
    );
    let kubeconfig = plane.folder().join("remote.kubeconfig");
    fs::write(&kubeconfig, remote)?;
    let mut testenv = Testenv::launch(Path::new(PROGRAM), &kubeconfig, &[])?;
    let status = testenv.ended().await?;
    let log = testenv.log()?;
    ensure!(status.code() == Some(1), "{status}: {log}");
    for words in ["192.0.2.1", "not a loopback address", "--kubeconfig", "--allow-remote"] {
        ensure!(log.contains(words), "{words}: {log}");
    }
    Ok(())
}

/// The unspecified address is not a loopback address, but leads to this machine.
#[tokio::test]
async fn allow_remote_accepts_any_address() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let mut remote = Kubeconfig::read_from(plane.kubeconfig())?;
    for cluster in remote.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        cluster.server = Some(plane.url().replace("127.0.0.1", "0.0.0.0"));
        // The certificate of the apiserver is for its loopback address.
        cluster.tls_server_name = Some("127.0.0.1".to_owned());
    }
    let kubeconfig = plane.folder().join("unspecified.kubeconfig");
    fs::write(&kubeconfig, serde_json::to_string(&remote)?)?;
    let mut refused = Testenv::launch(Path::new(PROGRAM), &kubeconfig, &[])?;
    let (status, log) = (refused.ended().await?, refused.log()?);
    ensure!(status.code() == Some(1) && log.contains("0.0.0.0"), "{status}: {log}");
    let testenv = start(&kubeconfig, &["--allow-remote", "--controllers=namespace"]).await?;
    testenv.settled().await
}

#[test]
fn bad_flags_are_errors_that_name_the_flag_and_the_value() -> Result<()> {
    let missing = "--kubeconfig=/missing/kubeconfig";
    let cases: [(&[&str], &str); 6] = [
        (&[], "--kubeconfig"),
        (&[missing], "/missing/kubeconfig"),
        (&[missing, "--port=many"], "many"),
        (
            &[missing, "--controllers=foo"],
            "unknown controllers in --controllers: foo; testenv runs ",
        ),
        (&[missing, "--ready-file=/missing/ready"], "--ready-file /missing/ready"),
        (&[missing, "--leader-elect"], "--leader-elect"),
    ];
    for (flags, words) in cases {
        let output = run(&[&["testenv"], flags].concat())?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code() == Some(1) && error.contains(words),
            "{flags:?}: {error}"
        );
    }
    Ok(())
}
