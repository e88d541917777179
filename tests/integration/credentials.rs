//! Credentials that change on disk while daemons run: client certificates, the apiserver's CA, and
//! the serving certificate.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
    coordination::v1::{Lease, LeaseSpec},
    rbac::v1::ClusterRoleBinding,
};
use kube::{
    Api, Client, Config, CustomResourceExt,
    api::{DeleteParams, PostParams},
};
use portreeve_foo::api::Foo;
use portreeve_testing::{Authority, ControlPlane, FaultProxy, IssuedCertificate, PooledPlane, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixtures::{
    LIMIT,
    admin::Admin,
    daemon::{Daemon, LONG_LEASE},
    namespace::NamespaceFixture,
};

const RELOADS: &str = "portreeve_client_credential_reloads_total";
const SERVING_RELOADS: &str = "portreeve_serving_certificate_reloads_total";
const SUCCESS: &str = r#"status="success""#;
const FAILURE: &str = r#"status="failure""#;

/// A folder with a certificate, its key and a kubeconfig.
struct Files(TempDir);

impl Files {
    fn new() -> Result<Self> {
        Ok(Self(tempfile::tempdir()?))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.path(name);
        replace(&path, text)?;
        Ok(path)
    }

    fn write_pair(&self, issued: &IssuedCertificate) -> Result<()> {
        self.write("tls.crt", &issued.certificate)?;
        self.write("tls.key", &issued.key)?;
        Ok(())
    }

    /// Writes the kubeconfig of a user with the client certificate in this folder.
    fn write_kubeconfig(&self, plane: &ControlPlane) -> Result<PathBuf> {
        self.write("ca.crt", &plane.authority().pem())?;
        let kubeconfig = json!({
            "clusters": [{"name": "a", "cluster": {"server": plane.url(), "certificate-authority": "ca.crt"}}],
            "users": [{"name": "a", "user": {"client-certificate": "tls.crt", "client-key": "tls.key"}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            "current-context": "a",
        });
        self.write("kubeconfig", &kubeconfig.to_string())
    }
}

/// Replaces a file that a daemon may be reading.
fn replace(path: &Path, text: &str) -> Result<()> {
    let whole = path.with_extension("whole");
    fs::write(&whole, text)?;
    Ok(fs::rename(whole, path)?)
}

async fn plane_with_foos() -> Result<PooledPlane> {
    let plane = ControlPlane::pooled().await?;
    let crds = Api::all(plane.client()?);
    crds.create(&PostParams::default(), &Foo::crd()).await?;
    Ok(plane)
}

/// Waits until a counter has at least this value.
async fn wait_for_count(admin: Admin, name: &str, status: &str, least: f64) -> Result<()> {
    eventually(LIMIT, &format!("{name}{{{status}}} to be {least}"), || async {
        let found = admin.metrics().await?.sum(name, &[status]);
        ensure!(found >= least, "it is {found}");
        anyhow::Ok(())
    })
    .await
}

/// Returns the number of requests that failed because of the connection or the credentials.
async fn failed_requests(admin: Admin) -> Result<f64> {
    let metrics = admin.metrics().await?;
    let codes = ["<error>", "401", "403", "500", "503"];
    let count = |code| metrics.sum("rest_client_requests_total", &[&format!("code=\"{code}\"")]);
    Ok(codes.into_iter().map(count).sum())
}

fn binding(group: &str) -> Result<ClusterRoleBinding> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": group},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}],
    }))?)
}

/// Waits until a group may, or may not, do everything.
async fn wait_for_rights(client: &Client, group: &str, allowed: bool) -> Result<()> {
    let everything = || Some("*".to_owned());
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            groups: Some(vec![group.to_owned()]),
            resource_attributes: Some(ResourceAttributes {
                group: everything(),
                resource: everything(),
                verb: everything(),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    eventually(LIMIT, &format!("the rights of {group} to be {allowed}"), || async {
        let response = reviews.create(&PostParams::default(), &review).await?;
        let status = response.status.context("the review has no status")?;
        ensure!(status.allowed == allowed, "{status:?}");
        anyhow::Ok(())
    })
    .await
}

/// Two replicas with one client certificate: a leader and a standby.
struct Replicas {
    daemons: [Daemon; 2],
    fixture: NamespaceFixture,
    files: Files,
    bindings: Api<ClusterRoleBinding>,
    plane: PooledPlane,
}

impl Replicas {
    /// Starts replicas with a certificate of the group `before`. It and the group `after` may do
    /// everything.
    async fn start() -> Result<Self> {
        let plane = plane_with_foos().await?;
        let bindings = Api::all(plane.client()?);
        for group in ["before", "after"] {
            bindings.create(&PostParams::default(), &binding(group)?).await?;
            wait_for_rights(&plane.client()?, group, true).await?;
        }
        let files = Files::new()?;
        files.write_pair(&plane.authority().client_certificate("portreeve", "before")?)?;
        let kubeconfig = files.write_kubeconfig(&plane)?;
        let flags = [&LONG_LEASE[..], &["--controllers=foo"]].concat();
        let leader = Daemon::start_as(&plane, &kubeconfig, "leader", &flags).await?;
        leader.wait_for_line(&["acquired the lease"]).await?;
        let standby = Daemon::start_as(&plane, &kubeconfig, "standby", &flags).await?;
        let daemons = [leader, standby];
        for daemon in &daemons {
            daemon.admin.wait_until_ready().await?;
        }
        let fixture = NamespaceFixture::new(&plane, "rotated").await?;
        fixture.ready_foo("first", 1).await?;
        Ok(Self {
            daemons,
            fixture,
            files,
            bindings,
            plane,
        })
    }

    async fn lease(&self) -> Result<LeaseSpec> {
        let leases: Api<Lease> = Api::namespaced(self.plane.client()?, "kube-system");
        leases.get("portreeve").await?.spec.context("the Lease has no spec")
    }

    /// Waits for a renewal, and ensures that the term is still `term`.
    async fn ensure_same_term(&self, term: &LeaseSpec) -> Result<()> {
        let before = self.lease().await?.renew_time;
        let renewed = eventually(LIMIT, "a renewal", || async {
            let now = self.lease().await?;
            ensure!(now.renew_time > before, "the last one was at {:?}", now.renew_time);
            anyhow::Ok(now)
        })
        .await?;
        let term_of = |lease: &LeaseSpec| (lease.holder_identity.clone(), lease.lease_transitions);
        ensure!(term_of(&renewed) == term_of(term), "{term:?} became {renewed:?}");
        Ok(())
    }
}

#[tokio::test]
async fn a_changed_client_certificate_is_used_by_leader_and_standby_and_no_request_fails() -> Result<()> {
    let replicas = Replicas::start().await?;
    let Replicas {
        daemons,
        fixture,
        files,
        bindings,
        plane,
    } = &replicas;
    let term = replicas.lease().await?;
    let mut failed = Vec::new();
    for daemon in daemons {
        failed.push(failed_requests(daemon.admin).await?);
    }

    // A new certificate with the previous key, as between the two writes of a renewal.
    let renewed = plane.authority().client_certificate("portreeve", "after")?;
    files.write("tls.crt", &renewed.certificate)?;
    for daemon in daemons {
        wait_for_count(daemon.admin, RELOADS, FAILURE, 2.0).await?;
        for component in ["controllers", "leader-election"] {
            let line = daemon
                .wait_for_line(&["keeping previous credentials", component])
                .await?;
            ensure!(
                line.contains("failed to set up TLS or credentials for https://"),
                "{line}"
            );
        }
    }
    fixture.ready_foo("second", 1).await?;

    files.write("tls.key", &renewed.key)?;
    for daemon in daemons {
        wait_for_count(daemon.admin, RELOADS, SUCCESS, 2.0).await?;
    }
    // From now on, only requests with the new certificate succeed.
    bindings.delete("before", &DeleteParams::default()).await?;
    wait_for_rights(&plane.client()?, "before", false).await?;
    fixture.ready_foo("third", 1).await?;
    replicas.ensure_same_term(&term).await?;
    for (daemon, before) in daemons.iter().zip(failed) {
        let after = failed_requests(daemon.admin).await?;
        let log = daemon.log()?;
        ensure!(after <= before, "{after} requests failed instead of {before}: {log}");
        ensure_no_key(&log)?;
    }
    Ok(())
}

/// Ensures that a log contains no line of a key: `MIGH` begins each in PKCS #8.
fn ensure_no_key(log: &str) -> Result<()> {
    ensure!(!log.contains("PRIVATE KEY") && !log.contains("MIGH"), "{log}");
    Ok(())
}

/// A daemon behind a proxy, whose kubeconfig names a file with the CA.
struct ProxiedDaemon {
    daemon: Daemon,
    fixture: NamespaceFixture,
    proxy: FaultProxy,
    kubeconfig: PathBuf,
    files: Files,
    plane: PooledPlane,
}

impl ProxiedDaemon {
    async fn start() -> Result<Self> {
        let plane = plane_with_foos().await?;
        let proxy = FaultProxy::start(&plane).await?;
        let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), "rotated")?;
        let files = Files::new()?;
        files.write("ca.crt", &plane.authority().pem())?;
        name_server(&kubeconfig, &url(&proxy, &plane)?, &files.path("ca.crt"))?;
        let flags = [
            "--controllers=foo",
            // Longer than any interruption by the test.
            "--leader-elect-lease-duration=90s",
            "--leader-elect-renew-deadline=75s",
        ];
        let daemon = Daemon::start_as(&plane, &kubeconfig, "rotated", &flags).await?;
        daemon.admin.wait_until_ready().await?;
        let fixture = NamespaceFixture::new(&plane, "rotated").await?;
        fixture.ready_foo("first", 1).await?;
        Ok(Self {
            daemon,
            fixture,
            proxy,
            kubeconfig,
            files,
            plane,
        })
    }
}

fn url(proxy: &FaultProxy, plane: &ControlPlane) -> Result<String> {
    Ok(proxy.config(plane.config()?).cluster_url.to_string())
}

/// Changes the server and the CA in the kubeconfig at `path`.
fn name_server(path: &Path, server: &str, authority: &Path) -> Result<()> {
    let cluster = json!({"server": server, "certificate-authority": authority});
    change_kubeconfig(path, "/clusters/0/cluster", cluster)
}

/// Changes a part of the kubeconfig at `path`.
fn change_kubeconfig(path: &Path, pointer: &str, value: Value) -> Result<()> {
    let mut kubeconfig: Value = serde_json::from_slice(&fs::read(path)?)?;
    *kubeconfig
        .pointer_mut(pointer)
        .context("the kubeconfig has no such part")? = value;
    replace(path, &kubeconfig.to_string())
}

#[tokio::test]
async fn a_changed_ca_is_used_once_the_apiserver_has_a_certificate_of_it() -> Result<()> {
    let ProxiedDaemon {
        daemon,
        fixture,
        proxy,
        files,
        plane: _plane,
        ..
    } = ProxiedDaemon::start().await?;
    // The CA of a certificate that the apiserver does not present yet must not end what works.
    let authority = Authority::new()?;
    files.write("ca.crt", &authority.pem())?;
    wait_for_count(daemon.admin, RELOADS, FAILURE, 2.0).await?;
    let warning = [
        "keeping previous credentials",
        "failed to reach",
        "invalid peer certificate",
    ];
    daemon.wait_for_line(&warning).await?;
    proxy.reset();
    fixture.ready_foo("second", 1).await?;

    proxy.present(&authority.server_certificate()?)?;
    proxy.reset();
    wait_for_count(daemon.admin, RELOADS, SUCCESS, 2.0).await?;
    fixture.ready_foo("third", 1).await?;
    Ok(())
}

#[tokio::test]
async fn a_kubeconfig_with_another_server_or_a_rejected_token_is_not_used() -> Result<()> {
    let ProxiedDaemon {
        daemon,
        fixture,
        proxy,
        kubeconfig,
        files,
        plane,
    } = ProxiedDaemon::start().await?;
    let before = fs::read_to_string(&kubeconfig)?;
    let other = FaultProxy::start(&plane).await?;
    let (server, other_server) = (url(&proxy, &plane)?, url(&other, &plane)?);
    name_server(&kubeconfig, &other_server, &files.path("ca.crt"))?;
    wait_for_count(daemon.admin, RELOADS, FAILURE, 2.0).await?;
    let warning = [
        "keeping previous credentials",
        "now names the apiserver",
        &other_server,
        &server,
    ];
    daemon.wait_for_line(&warning).await?;
    proxy.reset();
    fixture.ready_foo("second", 1).await?;
    ensure!(other.accepted() == 0, "the daemon connected to the other server");

    replace(&kubeconfig, &before)?;
    change_kubeconfig(&kubeconfig, "/users/0/user/token", json!("hunter2"))?;
    daemon
        .wait_for_line(&["keeping previous credentials", "rejects the changed credentials (401"])
        .await?;
    proxy.reset();
    fixture.ready_foo("third", 1).await?;
    ensure!(!daemon.log()?.contains("hunter2"));

    replace(&kubeconfig, &before)?;
    daemon.wait_for_line(&["found the previous credentials again"]).await?;
    Ok(())
}

#[tokio::test]
async fn a_changed_serving_certificate_is_presented_to_new_connections() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let files = Files::new()?;
    let (before, after) = (Authority::new()?, Authority::new()?);
    files.write_pair(&before.server_certificate()?)?;
    let certificate = format!("--tls-cert-file={}", files.path("tls.crt").display());
    let key = format!("--tls-private-key-file={}", files.path("tls.key").display());
    let daemon = Daemon::start(plane, "serving-rotated", &["--controllers=-foo", &certificate, &key]).await?;
    get_trusting(&before, daemon.admin).await?;

    fs::write(files.path("tls.key"), "-----BEGIN PRIVATE KEY-----")?;
    wait_for_count(daemon.admin, SERVING_RELOADS, FAILURE, 2.0).await?;
    let warning = [
        "keeping previous serving certificate",
        "contains no readable private key",
    ];
    daemon.wait_for_line(&warning).await?;
    get_trusting(&before, daemon.admin).await?;
    let log = daemon.log()?;
    ensure!(log.matches(warning[0]).count() == 1, "the warning is repeated: {log}");

    files.write_pair(&after.server_certificate()?)?;
    wait_for_count(daemon.admin, SERVING_RELOADS, SUCCESS, 1.0).await?;
    get_trusting(&after, daemon.admin).await?;
    ensure!(get_trusting(&before, daemon.admin).await.is_err());
    Ok(())
}

/// Sends a request over a new connection, with a client that trusts only this authority.
async fn get_trusting(authority: &Authority, admin: Admin) -> Result<()> {
    let mut config = Config::new(format!("https://127.0.0.1:{}/", admin.port).parse()?);
    config.root_cert = Some(vec![authority.der()]);
    config.default_retry = false;
    let request = http::Request::get("/livez").body(kube::client::Body::empty())?;
    let response = Client::try_from(config)?.send(request).await?;
    ensure!(response.status() == StatusCode::OK, "{}", response.status());
    Ok(())
}
