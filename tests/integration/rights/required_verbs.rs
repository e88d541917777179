//! Checks that `portreeve rbac` prints exactly the required verbs: the daemon uses every
//! permission, and none of its requests is rejected. Only permissions on finalizers and `escalate`
//! are never used by a request, so a daemon runs without each of them.
//!
//! The apiserver's audit log has the requests of the daemon's account and the rejections. The
//! apiserver here also requires permissions on finalizers for `blockOwnerDeletion`.

use std::{collections::BTreeSet, future::Future, sync::Arc};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    CustomResourceExt,
    api::{PatchParams, PostParams},
};
use portreeve_daemon::{Config, Error};
use portreeve_foo::api::Foo;
use portreeve_reconcile::Shutdown;
use portreeve_testing::{ControlPlane, Namespace, PooledPlane, eventually, free_port};
use serde_json::json;
use tokio::task::JoinSet;

use super::permissions::{Permission, printed_roles};
use crate::{
    audit::{AuditLog, Event, policy},
    certificates::webhooks::Bundles,
    fixtures::{
        LIMIT,
        admin::{Admin, Credentials},
        clock::OffsetClock,
        daemon::printed,
        manifests,
        namespace::NamespaceFixture,
        tokens::token,
    },
    foo,
    profile::{Profile, Reach},
    registry,
};

pub(super) struct RightsChecker {
    pub(super) plane: PooledPlane,
    system: Namespace,
}

/// A daemon that need not become ready. Dropping it aborts it.
pub(super) struct RestrictedDaemon {
    pub(super) clock: OffsetClock,
    _task: JoinSet<Result<(), Error>>,
}

impl RightsChecker {
    pub(super) async fn start_control_plane() -> Result<Self> {
        let plane = ControlPlane::builder()
            .audit_policy(policy::REQUESTS_OF_ACCOUNTS)
            .apiserver_arg("--enable-admission-plugins=OwnerReferencesPermissionEnforcement")
            .pooled()
            .await?;
        let system = plane.namespace("portreeve-system").await?;
        Ok(Self { plane, system })
    }

    /// Starts a daemon with a new account that has exactly these permissions.
    pub(super) async fn start(
        &self,
        account: &str,
        permissions: &[&Permission],
        flags: &[&str],
    ) -> Result<RestrictedDaemon> {
        let rules = permissions.iter().map(|permission| permission.rule()).collect();
        let kubeconfig = self
            .plane
            .service_account_kubeconfig(self.system.name(), account, rules)
            .await?;
        let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
        let serves = flags.iter().any(|flag| flag.starts_with("--secure-port"));
        let port = (!serves).then_some(&"--secure-port=0");
        let common = ["portreeve", &kubeconfig];
        let config = Config::parse(common.iter().chain(port).chain(flags), portreeve_cli::CONTROLLERS)?;
        let clock = OffsetClock::new();
        let mut task = JoinSet::new();
        task.spawn(portreeve_daemon::run(
            config,
            portreeve_cli::CONTROLLERS,
            Arc::new(clock.clone()),
            Shutdown::new(),
        ));
        Ok(RestrictedDaemon { clock, _task: task })
    }

    /// Returns the requests of an account, from the offset `since` of the audit log.
    pub(super) fn requests_of(&self, account: &str, since: u64) -> Result<Vec<Event>> {
        let user = format!("system:serviceaccount:{}:{account}", self.system.name());
        let mut events = AuditLog::of(&self.plane)?.events_containing(account, since)?;
        events.retain(|event| event.user.username == user);
        Ok(events)
    }

    /// Ensures that the apiserver has rejected no request of an account for missing permissions.
    /// Its admission plugin also rejects owners of a kind that it has not discovered yet.
    pub(super) fn ensure_nothing_forbidden(&self, account: &str) -> Result<()> {
        let requests = self.requests_of(account, 0)?;
        let forbidden = requests.iter().filter(|request| request.code() == 403);
        let mut forbidden: Vec<_> = forbidden.map(Event::to_string).collect();
        forbidden.retain(|rejection| !rejection.contains("cannot find RESTMapping"));
        ensure!(forbidden.is_empty(), "{forbidden:#?}");
        Ok(())
    }

    /// Starts a daemon with all permissions but one that no request uses, and waits until the
    /// apiserver rejects a request because of it while `scenario` runs.
    async fn check_rejection_without<F: Future<Output = Result<()>>>(
        &self,
        all: &[&Permission],
        missing: &Permission,
        flags: &[&str],
        scenario: impl FnOnce(OffsetClock) -> F,
    ) -> Result<()> {
        let account = &*missing.resource.replace('/', "-");
        let rest: Vec<_> = all
            .iter()
            .copied()
            .filter(|permission| *permission != missing)
            .collect();
        let since = AuditLog::of(&self.plane)?.end();
        let daemon = self.start(account, &rest, flags).await?;
        let what = format!("a refused request without {missing}");
        let rejected = eventually(LIMIT, &what, || async {
            let requests = self.requests_of(account, since)?;
            let rejections = requests.iter().filter(|request| request.code() == 403);
            let rejections: Vec<_> = rejections.map(Event::to_string).collect();
            let is_expected = |rejection: &String| {
                missing
                    .indirect_rejection()
                    .is_some_and(|text| rejection.contains(text))
            };
            ensure!(rejections.iter().any(is_expected), "{rejections:#?}");
            anyhow::Ok(())
        });
        tokio::select! {
            rejected = rejected => rejected,
            Err(error) = scenario(daemon.clock.clone()) => Err(error.context(format!("without {missing}"))),
        }
    }
}

/// The flag that turns leader election off.
pub(super) const NO_ELECTION: &str = "--leader-elect=false";

impl RightsChecker {
    /// Checks each permission of a controller that no request uses, with a daemon that runs no
    /// other controller. Returns how many there are.
    async fn check_indirect_permissions(&self, profile: &Profile) -> Result<usize> {
        let flags = [&*format!("--controllers={}", profile.descriptor.name), NO_ELECTION];
        let printed = printed_roles(&flags)?;
        let all: Vec<_> = printed.values().flatten().collect();
        let mut tested = 0;
        for permission in all
            .iter()
            .filter(|permission| permission.indirect_rejection().is_some())
        {
            let fixture = NamespaceFixture::new(&self.plane, "without").await?;
            self.check_rejection_without(&all, permission, &flags, |clock| {
                (profile.use_permissions)(fixture, clock)
            })
            .await?;
            tested += 1;
        }
        Ok(tested)
    }

    /// Waits until an account has used each of these permissions, and ensures that it has used no
    /// other and that no request of it was rejected.
    async fn ensure_all_used(&self, account: &str, all: &[&Permission]) -> Result<()> {
        let used = || {
            let mut used = BTreeSet::new();
            for event in self.requests_of(account, 0)? {
                used.extend(used_permissions(&event));
            }
            anyhow::Ok(used)
        };
        let by_requests = all
            .iter()
            .filter(|permission| permission.indirect_rejection().is_none());
        let allowed: BTreeSet<_> = by_requests.map(ToString::to_string).collect();
        eventually(LIMIT, "each permission to be used", || async {
            let used = used()?;
            let unused: Vec<_> = allowed.difference(&used).collect();
            ensure!(unused.is_empty(), "{unused:?} are not used");
            Ok(())
        })
        .await?;
        let used = used()?;
        ensure!(used == allowed, "{used:?} of {allowed:?}");
        self.ensure_nothing_forbidden(account)
    }

    /// Installs a CRD that the daemon has to upgrade.
    async fn install_older_crd(&self) -> Result<()> {
        let mut older = json!(Foo::crd());
        older["spec"]["versions"][0]["additionalPrinterColumns"] = json!([]);
        let parameters = PatchParams::apply("an-older-portreeve");
        manifests::apply(&self.plane.client()?, &older, None, &parameters).await?;
        Ok(())
    }

    /// Creates the objects of [`certificate_flags`] that publish CAs.
    async fn create_bundles(&self, namespace: &Namespace) -> Result<()> {
        let config_map = serde_json::from_value(json!({"metadata": {"name": "ca"}}))?;
        let config_maps = namespace.api::<ConfigMap>();
        config_maps.create(&PostParams::default(), &config_map).await?;
        let bundles = Bundles::new(self.plane.client()?);
        bundles.create_at(&bundle_locations(namespace.name())).await
    }

    /// Sends a request with a token to the daemon's listener, which is about to open.
    async fn ask_for_metrics(&self, listener: &Listener) -> Result<()> {
        self.plane
            .service_account_client(self.system.name(), "scraper", Vec::new())
            .await?;
        let token = Credentials::Token(token(&self.system, "scraper", None).await?);
        eventually(LIMIT, "a response", || listener.admin.get_as("/metrics", &token)).await?;
        Ok(())
    }

    async fn install_crds(&self) -> Result<()> {
        let force = PatchParams::apply("an-administrator").force();
        for crd in manifests::documents(&printed(&["crds"])?)? {
            manifests::apply(&self.plane.client()?, &crd, None, &force).await?;
        }
        let fixture = NamespaceFixture::new(&self.plane, "served").await?;
        eventually(LIMIT, "Foos to be served", || fixture.create_foo("web", "web", 1)).await?;
        Ok(())
    }
}

/// Returns the objects of `--tls-ca-bundles` for a namespace.
fn bundle_locations(namespace: &str) -> [String; 3] {
    [
        format!("mutatingwebhookconfigurations/{namespace}"),
        format!("validatingwebhookconfigurations/{namespace}"),
        format!("customresourcedefinitions/widgets.{namespace}.example"),
    ]
}

/// Returns the flags of a daemon that issues certificates for objects of this namespace.
fn certificate_flags(namespace: &str) -> [String; 6] {
    let bundles = bundle_locations(namespace).join(",");
    [
        "--controllers=foo".to_owned(),
        NO_ELECTION.to_owned(),
        format!("--tls-secret={namespace}/serving"),
        "--tls-issue-names=portreeve.svc".to_owned(),
        format!("--tls-ca-config-map={namespace}/ca"),
        format!("--tls-ca-bundles={bundles}"),
    ]
}

/// The listener of a daemon, without the lookup of CAs, whose permission is not in a printed role.
struct Listener {
    admin: Admin,
    port: String,
}

impl Listener {
    fn new() -> Result<Self> {
        let admin = Admin { port: free_port()? };
        let port = format!("--secure-port={}", admin.port);
        Ok(Self { admin, port })
    }

    fn flags<'a>(&'a self, others: &[&'a str]) -> Vec<&'a str> {
        let own = ["--bind-address=127.0.0.1", "--authentication-skip-lookup", &self.port];
        own.into_iter().chain(others.iter().copied()).collect()
    }
}

/// Returns the flag that enables all controllers that can share a control plane.
fn controllers_flag() -> String {
    let names: Vec<_> = registry::profiles_with(Reach::OwnKinds)
        .map(|profile| profile.descriptor.name)
        .collect();
    format!("--controllers={}", names.join(","))
}

#[tokio::test]
async fn each_permission_that_no_request_uses_is_required() -> Result<()> {
    let checker = RightsChecker::start_control_plane().await?;
    checker.install_crds().await?;
    let own_kinds = registry::profiles_with(Reach::OwnKinds);
    let checks = own_kinds.map(|profile| checker.check_indirect_permissions(profile));
    let tested: usize = try_join_all(checks).await?.into_iter().sum();
    ensure!(
        tested == 4,
        "{tested} permissions that no request uses, not 4: correct the number if a controller has another one"
    );
    Ok(())
}

#[tokio::test]
async fn the_permissions_of_the_serving_certificate_are_used_and_suffice() -> Result<()> {
    let checker = RightsChecker::start_control_plane().await?;
    checker.install_crds().await?;
    let namespace = checker.plane.namespace("certificate").await?;
    checker.create_bundles(&namespace).await?;
    let flags = certificate_flags(namespace.name());
    let flags = flags.each_ref().map(String::as_str);
    let printed = printed_roles(&flags)?;
    let roles = ["portreeve:serving-certificate", "portreeve:ca-bundles"];
    let own: usize = roles.iter().map(|&role| printed[role].len()).sum();
    ensure!(own == 14, "{own} permissions of the serving certificate");
    let all: Vec<_> = printed.values().flatten().collect();
    let listener = Listener::new()?;
    let daemon = checker.start("portreeve", &all, &listener.flags(&flags)).await?;
    checker.ask_for_metrics(&listener).await?;
    let fixture = NamespaceFixture::new(&checker.plane, "everything").await?;
    (foo::profile::PROFILE.use_permissions)(fixture, daemon.clock.clone()).await?;
    checker.ensure_all_used("portreeve", &all).await
}

#[tokio::test]
async fn the_printed_permissions_are_used_and_suffice() -> Result<()> {
    let checker = RightsChecker::start_control_plane().await?;
    checker.install_older_crd().await?;
    let controllers = controllers_flag();
    let namespace = format!("--leader-elect-resource-namespace={}", checker.system.name());
    // A replica may not list the Leases of other namespaces.
    let flags = [
        &*controllers,
        "--install-crds",
        &namespace,
        "--leader-elect-ignore-others",
    ];
    let printed = printed_roles(&flags)?;
    let all: Vec<_> = printed.values().flatten().collect();
    let listener = Listener::new()?;
    let daemon = checker.start("portreeve", &all, &listener.flags(&flags)).await?;
    checker.ask_for_metrics(&listener).await?;
    let clock = &daemon.clock;
    let fixture = NamespaceFixture::new(&checker.plane, "everything").await?;
    let client = checker.plane.client()?;
    for resource in registry::watched_objects() {
        eventually(LIMIT, &format!("{resource} to be served"), || async {
            let list = http::Request::get(resource.collection_path(None)).body(Vec::new())?;
            anyhow::Ok(client.request_text(list).await?)
        })
        .await?;
    }
    for profile in registry::profiles_with(Reach::OwnKinds) {
        clock.reset();
        let done = (profile.use_permissions)(fixture.clone(), clock.clone()).await;
        done.context(profile.descriptor.name)?;
    }
    checker.ensure_all_used("portreeve", &all).await
}

/// Returns the permissions that a request used, in the form of [`Permission`]'s `Display`. Every
/// authenticated user may review its own access (ClusterRole `system:basic-user`). A server-side
/// apply that has created its object has used the permission to create it, too.
fn used_permissions(event: &Event) -> Vec<String> {
    let target = event.object_ref.as_ref().filter(|target| !target.resource.is_empty());
    let Some(target) = target.filter(|target| target.resource != "selfsubjectaccessreviews") else {
        return Vec::new();
    };
    let slash = if target.subresource.is_empty() { "" } else { "/" };
    let resource = format!("{}{slash}{}.{}", target.resource, target.subresource, target.api_group);
    let has_created = event.verb == "patch" && event.code() == 201;
    let verbs = [&*event.verb].into_iter().chain(has_created.then_some("create"));
    verbs.map(|verb| format!("{verb} {resource}")).collect()
}
