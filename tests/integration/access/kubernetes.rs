//! The cases of Kubernetes' `TestComponentSecureServingAndAuth`, with a scheme that is no bearer
//! token, as there, and with a bearer token.

use std::path::Path;

use anyhow::{Context, Result};
use portreeve_testing::ControlPlane;

use super::{Credentials, NOTHING, ensure_status};
use crate::fixtures::daemon::Daemon;

struct Case {
    name: &'static str,
    flags: Vec<String>,
    path: &'static str,
    /// The status of a request without a bearer token.
    without_token: u16,
}

/// Returns the cases, given a kubeconfig of the apiserver and one of a server that does not exist.
fn cases(good: &Path, broken: &Path) -> Vec<Case> {
    let kubeconfigs = |authentication: &Path, authorization: &Path| {
        vec![
            format!("--authentication-kubeconfig={}", authentication.display()),
            format!("--authorization-kubeconfig={}", authorization.display()),
        ]
    };
    let with = |mut flags: Vec<String>, flag: &str| {
        flags.push(flag.to_owned());
        flags
    };
    let skipped = with(kubeconfigs(broken, broken), "--authentication-skip-lookup");
    let opened = with(skipped.clone(), "--authorization-always-allow-paths=/healthz,/metrics");
    let table = [
        ("health-without-authn-authz", vec![], "/healthz", 200),
        ("metrics-without-authn-authz", vec![], "/metrics", 403),
        ("health-with-authn-authz", kubeconfigs(good, good), "/healthz", 200),
        ("health-with-broken-authn-authz", skipped, "/healthz", 200),
        ("metrics-with-broken-authz", kubeconfigs(good, broken), "/metrics", 500),
        ("allowed-metrics-with-broken-authn-authz", opened, "/metrics", 200),
    ];
    let case = |(name, flags, path, without_token)| Case {
        name,
        flags,
        path,
        without_token,
    };
    table.into_iter().map(case).collect()
}

#[tokio::test]
async fn secure_serving_and_auth_of_components() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let broken = plane.folder().join("broken.kubeconfig");
    let kubeconfig = std::fs::read_to_string(plane.kubeconfig())?;
    // Nobody listens on this port.
    std::fs::write(&broken, kubeconfig.replace(plane.url(), "https://127.0.0.1:1"))?;
    for case in cases(plane.kubeconfig(), &broken) {
        let flags: Vec<&str> = std::iter::once(NOTHING)
            .chain(case.flags.iter().map(String::as_str))
            .collect();
        let daemon = Daemon::start_closed(plane, plane.kubeconfig(), case.name, &flags).await?;
        for (credentials, expected) in [
            (Credentials::None, case.without_token),
            (Credentials::Authorization("Token abc".to_owned()), case.without_token),
            // The apiserver does not know this token, or nobody can ask it.
            (Credentials::Token("abc".to_owned()), 401),
        ] {
            ensure_status(&daemon.admin, case.path, &credentials, expected)
                .await
                .context(case.name)?;
        }
    }
    Ok(())
}
