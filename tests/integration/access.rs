//! Authentication and authorization of requests to the listener, by a real apiserver.

mod connections;
mod kubernetes;
mod outage;
mod pages;
mod profile;

use anyhow::{Result, ensure};
use http::StatusCode;
use k8s_openapi::api::rbac::v1::PolicyRule;
use portreeve_testing::{Authority, ControlPlane, Namespace};

use crate::fixtures::{
    admin::{Admin, Credentials},
    daemon::{Daemon, PROGRAM},
    tokens::token,
};

/// The flag for daemons that need no controller.
pub(crate) const NOTHING: &str = "--controllers=-foo";

/// Every path but health, and the status for a user who may get it.
const CLOSED: [(&str, u16); 10] = [
    ("/metrics", 200),
    ("/metrics/slis", 200),
    ("/configz", 200),
    ("/flagz", 200),
    ("/statusz", 200),
    ("/debug/controllers", 200),
    ("/debug/controllers/garbage-collector-controller/graph", 404),
    ("/debug/flags/v", 405),
    // An invalid length, because a profile takes a second.
    ("/debug/pprof/profile?seconds=0", 400),
    ("/nothing", 404),
];

/// Returns the rule for reading these paths.
pub(crate) fn rule(paths: &[&str]) -> PolicyRule {
    PolicyRule {
        non_resource_urls: Some(paths.iter().copied().map(str::to_owned).collect()),
        verbs: vec!["get".to_owned()],
        ..PolicyRule::default()
    }
}

/// Returns a token of an account with exactly these rules.
pub(crate) async fn account_token(
    plane: &ControlPlane,
    system: &Namespace,
    name: &str,
    rules: Vec<PolicyRule>,
) -> Result<Credentials> {
    plane.service_account_client(system.name(), name, rules).await?;
    Ok(Credentials::Token(token(system, name, None).await?))
}

/// Ensures that the response has this status, and that only an error names the path.
async fn ensure_status(admin: &Admin, path: &str, credentials: &Credentials, expected: u16) -> Result<String> {
    let (status, text) = admin.get_as(path, credentials).await?;
    ensure!(
        status.as_u16() == expected,
        "{path} as {credentials:?}: {status}: {text}"
    );
    Ok(text)
}

#[tokio::test]
async fn credentials_decide_on_every_path() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let system = plane.namespace("access").await?;
    let daemon = Daemon::start_closed(plane, plane.kubeconfig(), "access-daemon", &[NOTHING]).await?;
    daemon.admin.wait_until_ready().await?;
    let unprivileged = account_token(plane, &system, "unprivileged", vec![]).await?;
    let scraper = account_token(plane, &system, "scraper", vec![rule(&["/metrics"])]).await?;
    let reader = account_token(plane, &system, "reader", vec![rule(&["/*"])]).await?;
    let wrong = Credentials::Token("wrong".to_owned());
    let masters = plane.authority().client_certificate("an-admin", "system:masters")?;
    let nobody = plane.authority().client_certificate("nobody", "nogroup")?;
    let stranger = Authority::new()?.client_certificate("an-admin", "system:masters")?;
    let [masters, nobody, stranger] = [masters, nobody, stranger].map(Credentials::Certificate);

    for (path, expected) in CLOSED {
        let text = ensure_status(&daemon.admin, path, &Credentials::None, 403).await?;
        let name = path.split('?').next().unwrap_or_default();
        let message = format!(r#"forbidden: User \"system:anonymous\" cannot get path \"{name}\""#);
        ensure!(text.contains(&message), "{text}");
        ensure_status(&daemon.admin, path, &wrong, 401).await?;
        ensure_status(&daemon.admin, path, &stranger, 401).await?;
        let text = ensure_status(&daemon.admin, path, &unprivileged, 403).await?;
        ensure!(
            text.contains(&format!("system:serviceaccount:{}:unprivileged", system.name())),
            "{text}"
        );
        ensure_status(&daemon.admin, path, &nobody, 403).await?;
        ensure_status(&daemon.admin, path, &reader, expected).await?;
        ensure_status(&daemon.admin, path, &masters, expected).await?;
        let expected = if path == "/metrics" { 200 } else { 403 };
        ensure_status(&daemon.admin, path, &scraper, expected).await?;
    }
    for path in ["/livez", "/readyz", "/healthz"] {
        for credentials in [&Credentials::None, &unprivileged, &scraper, &masters] {
            ensure_status(&daemon.admin, path, credentials, 200).await?;
        }
        for credentials in [&wrong, &stranger] {
            ensure_status(&daemon.admin, path, credentials, 401).await?;
        }
    }
    // A certificate that is not accepted does not matter if the token is.
    let metrics = ensure_status(&daemon.admin, "/metrics", &scraper, 200).await?;
    for family in [
        "apiserver_delegated_authn_request_total{code=\"201\"}",
        "apiserver_delegated_authz_request_total{code=\"201\"}",
        "authentication_attempts{result=\"success\"}",
        "authentication_attempts{result=\"error\"}",
        "authorization_attempts_total{result=\"allowed\"}",
        "authorization_attempts_total{result=\"no-opinion\"}",
        "authentication_token_cache_request_total{status=\"hit\"}",
    ] {
        ensure!(metrics.contains(family), "{family} is not in {metrics}");
    }
    Ok(())
}

#[tokio::test]
async fn reasons_of_health_checks_are_for_readers_of_metrics() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let system = plane.namespace("access").await?;
    // The CRD of Foo is not installed, which the note of a check says.
    let daemon = Daemon::start_closed(&plane, plane.kubeconfig(), "noted-daemon", &["--controllers=foo"]).await?;
    let scraper = account_token(&plane, &system, "scraper", vec![rule(&["/metrics"])]).await?;
    let unprivileged = account_token(&plane, &system, "unprivileged", vec![]).await?;
    let has_reason = |line: &&str| line.contains(" ok: ") || line.contains(" failed: ");
    let readyz = |credentials| daemon.admin.get_as("/readyz?verbose", credentials);
    let (_, shown) = readyz(&scraper).await?;
    ensure!(shown.lines().any(|line| has_reason(&line)), "{shown}");
    for credentials in [&Credentials::None, &unprivileged] {
        let (_, text) = readyz(credentials).await?;
        let reasons = text.lines().filter(has_reason);
        let reasons: Vec<_> = reasons
            .filter(|line| !line.ends_with("failed: reason withheld"))
            .collect();
        ensure!(reasons.is_empty(), "{credentials:?}: {reasons:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_front_proxy_names_the_user_in_headers() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let authority = Authority::new()?;
    let folder = plane.folder().join("front-proxy.crt");
    std::fs::write(&folder, authority.pem())?;
    let ca = format!("--requestheader-client-ca-file={}", folder.display());
    let flags = [NOTHING, &ca, "--requestheader-allowed-names=front-proxy"];
    let daemon = Daemon::start_closed(plane, plane.kubeconfig(), "proxied-daemon", &flags).await?;
    daemon.admin.wait_until_ready().await?;
    let proxy = authority.client_certificate("front-proxy", "")?;
    let other = authority.client_certificate("other", "")?;
    let admin = vec![("x-remote-user", "alice"), ("x-remote-group", "system:masters")];
    let user = vec![("x-remote-user", "alice"), ("x-remote-group", "developers")];
    let table = [
        (Credentials::Proxy(proxy.clone(), admin.clone()), 200),
        (Credentials::Proxy(proxy.clone(), user), 403),
        // The certificate of the proxy itself is no user's.
        (Credentials::Proxy(proxy, vec![]), 401),
        (Credentials::Proxy(other, admin.clone()), 401),
        // Nobody has signed these: the request is anonymous, or the certificate is rejected.
        (Credentials::Headers(admin.clone()), 403),
        (
            Credentials::Proxy(Authority::new()?.client_certificate("front-proxy", "")?, admin.clone()),
            401,
        ),
        // A user cannot name another user.
        (
            Credentials::Proxy(plane.authority().client_certificate("bob", "developers")?, admin),
            403,
        ),
    ];
    for (credentials, expected) in table {
        ensure_status(&daemon.admin, "/metrics", &credentials, expected).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_forbidden_lookup_ends_the_daemon_unless_it_is_tolerated() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let system = plane.namespace("access").await?;
    let reviews = PolicyRule {
        api_groups: Some(vec!["authentication.k8s.io".to_owned()]),
        resources: Some(vec!["tokenreviews".to_owned()]),
        verbs: vec!["create".to_owned()],
        ..PolicyRule::default()
    };
    let kubeconfig = plane
        .service_account_kubeconfig(system.name(), "reviewer", vec![reviews])
        .await?;
    let flag = format!("--authentication-kubeconfig={}", kubeconfig.display());
    let port = format!("--secure-port={}", portreeve_testing::free_port()?);
    let own = format!("--kubeconfig={}", plane.kubeconfig().display());
    let flags = [
        NOTHING,
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        &own,
        &port,
        &flag,
    ];
    let strict = plane.spawn("strict-daemon", std::path::Path::new(PROGRAM), &flags, &[])?;
    let status = strict.wait(crate::fixtures::LIMIT).await?;
    ensure!(status.code() == Some(1), "{status}");
    let log = strict.log_tail();
    for words in [
        "forbidden to read configmap",
        "extension-apiserver-authentication-reader",
    ] {
        ensure!(log.contains(words), "{log}");
    }

    let flags = [NOTHING, &flag, "--authentication-tolerate-lookup-failure"];
    let tolerant = Daemon::start_closed(plane, plane.kubeconfig(), "tolerant-daemon", &flags).await?;
    tolerant
        .wait_for_line(&["keeping previous configuration of client certificates"])
        .await?;
    let masters = plane.authority().client_certificate("an-admin", "system:masters")?;
    let text = ensure_status(&tolerant.admin, "/metrics", &Credentials::Certificate(masters), 403).await?;
    ensure!(text.contains("system:anonymous"), "{text}");
    let (status, _) = tolerant.admin.get("/livez").await?;
    ensure!(status == StatusCode::OK);
    Ok(())
}
