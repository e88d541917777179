//! Checks that `portreeve rbac` prints exactly the required verbs: the daemon uses every
//! permission, and a request is rejected when any permission is missing.
//!
//! The apiserver's audit log has the requests of the daemon's account and the rejections. The
//! apiserver here also requires permissions on finalizers for `blockOwnerDeletion`.

use std::{collections::BTreeSet, future::Future, sync::Arc};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Secret},
};
use kube::{
    CustomResourceExt,
    api::{PatchParams, PostParams},
};
use portreeve::{Config, Error};
use portreeve_api::Foo;
use portreeve_reconcile::Shutdown;
use portreeve_testing::{ControlPlane, Namespace, eventually, free_port};
use serde_json::json;
use tokio::task::JoinSet;

use super::{
    permissions::{Permission, printed_roles},
    scenarios::{self, Reach, RightsScenario},
};
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
};

pub(super) struct RightsChecker {
    pub(super) plane: ControlPlane,
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
            .start()
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
        let config = Config::parse(common.iter().chain(port).chain(flags), portreeve::CONTROLLERS)?;
        let clock = OffsetClock::new();
        let mut task = JoinSet::new();
        task.spawn(portreeve::run(
            config,
            portreeve::CONTROLLERS,
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
    pub(super) fn ensure_nothing_forbidden(&self, account: &str) -> Result<()> {
        let requests = self.requests_of(account, 0)?;
        let forbidden = requests.iter().filter(|request| request.code() == 403);
        let forbidden: Vec<_> = forbidden.map(Event::to_string).collect();
        ensure!(forbidden.is_empty(), "{forbidden:#?}");
        Ok(())
    }

    /// Starts a daemon with all permissions but one, and waits until the apiserver rejects a
    /// request because of it while `scenario` runs.
    pub(super) async fn check_rejection_without<F: Future<Output = Result<()>>>(
        &self,
        all: &[&Permission],
        missing: &Permission,
        flags: &[&str],
        scenario: impl FnOnce(OffsetClock) -> F,
    ) -> Result<()> {
        let words = [&missing.verb, &missing.resource, &missing.group];
        let account = words
            .map(|word| word.replace(['/', '.'], "-").replace('*', "any"))
            .join("-");
        // The core group has no name.
        let account = account.trim_end_matches('-');
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
            let is_expected = |rejection: &String| rejection.contains(&missing.rejection_message());
            ensure!(rejections.iter().any(is_expected), "{rejections:#?}");
            anyhow::Ok(())
        });
        tokio::select! {
            rejected = rejected => rejected,
            // The end of the scenario does not end the wait: the rejected request may be an event
            // that is sent after the last write.
            Err(error) = scenario(daemon.clock.clone()) => Err(error.context(format!("without {missing}"))),
        }
    }
}

/// The flag that turns leader election off.
pub(super) const NO_ELECTION: &str = "--leader-elect=false";
/// The role of every daemon.
const COMMON_ROLE: &str = "portreeve";
/// The controller whose scenario also needs every permission of [`COMMON_ROLE`].
const COMMON_SCENARIO: &str = "foo-controller";

impl RightsChecker {
    /// Checks each permission of a controller in turn, with a daemon that runs no other controller.
    async fn check_each_permission(&self, scenario: &RightsScenario) -> Result<usize> {
        let RightsScenario { controller, run, .. } = scenario;
        let flag = format!("--controllers={controller}");
        let printed = printed_roles(&[&flag, NO_ELECTION])?;
        let all: Vec<_> = printed.values().flatten().collect();
        let mut roles = vec![scenario.role()];
        roles.extend((*controller == COMMON_SCENARIO).then(|| COMMON_ROLE.to_owned()));
        let mut tested = 0;
        for role in &roles {
            for permission in printed
                .get(role)
                .with_context(|| format!("the role {role} is not printed"))?
            {
                let fixture = NamespaceFixture::new(&self.plane, "without").await?;
                self.check_rejection_without(&all, permission, &[&flag, NO_ELECTION], |clock| run(fixture, clock))
                    .await?;
                tested += 1;
            }
        }
        Ok(tested)
    }

    /// Checks each permission of `--install-crds`. The cluster must have no CRDs yet.
    async fn check_each_install_permission(&self) -> Result<usize> {
        let flags = ["--controllers=foo", "--install-crds", NO_ELECTION];
        let printed = printed_roles(&flags)?;
        let all: Vec<_> = printed.values().flatten().collect();
        let permissions = &printed["portreeve:install-crds"];
        for permission in permissions {
            if permission.verb == "patch" {
                self.install_older_crd().await?;
            }
            self.check_rejection_without(&all, permission, &flags, |_| std::future::pending())
                .await?;
        }
        Ok(permissions.len())
    }

    /// Installs a CRD that the daemon has to upgrade.
    async fn install_older_crd(&self) -> Result<()> {
        let mut older = json!(Foo::crd());
        older["spec"]["versions"][0]["additionalPrinterColumns"] = json!([]);
        let parameters = PatchParams::apply("an-older-portreeve");
        manifests::apply(&self.plane.client()?, &older, None, &parameters).await?;
        Ok(())
    }

    /// Checks each permission of leader election, each in its own namespace. A request of the
    /// previous, dropped daemon may still create a Lease, which the next daemon must not find.
    async fn check_each_election_permission(&self) -> Result<usize> {
        let printed = printed_roles(&["--controllers=foo"])?;
        let all: Vec<_> = printed.values().flatten().collect();
        let permissions = &printed["portreeve:leader-election"];
        for permission in permissions {
            let election_namespace = self.plane.namespace("election").await?;
            if permission.verb == "patch" {
                let lease = serde_json::from_value(json!({"metadata": {"name": "portreeve"}}))?;
                election_namespace
                    .api::<Lease>()
                    .create(&PostParams::default(), &lease)
                    .await?;
            }
            let namespace = format!("--leader-elect-resource-namespace={}", election_namespace.name());
            let flags = ["--controllers=foo", &*namespace];
            self.check_rejection_without(&all, permission, &flags, |_| std::future::pending())
                .await?;
        }
        Ok(permissions.len())
    }

    /// Checks each permission of the listener, while an account without permissions asks for
    /// metrics.
    async fn check_each_serving_permission(&self) -> Result<usize> {
        let printed = printed_roles(&["--controllers=foo", NO_ELECTION])?;
        let all: Vec<_> = printed.values().flatten().collect();
        let permissions = &printed["portreeve:serving"];
        for permission in permissions {
            let listener = Listener::new()?;
            let flags = listener.flags(&["--controllers=foo", NO_ELECTION]);
            self.check_rejection_without(&all, permission, &flags, |_| async {
                self.ask_for_metrics(&listener).await?;
                std::future::pending().await
            })
            .await?;
        }
        Ok(permissions.len())
    }

    /// Checks each permission of the serving certificate, each with objects of its own.
    async fn check_each_certificate_permission(&self) -> Result<usize> {
        let mut tested = 0;
        for role in ["portreeve:serving-certificate", "portreeve:ca-bundles"] {
            for index in 0.. {
                let namespace = self.plane.namespace("certificate").await?;
                let flags = certificate_flags(namespace.name());
                let flags = flags.each_ref().map(String::as_str);
                let printed = printed_roles(&flags)?;
                let all: Vec<_> = printed.values().flatten().collect();
                let Some(permission) = printed[role].get(index) else {
                    break;
                };
                // The Secret exists, unless the leader is to create it.
                if permission.verb != "create" {
                    let secret = serde_json::from_value(json!({"metadata": {"name": "serving"}}))?;
                    let secrets = namespace.api::<Secret>();
                    secrets.create(&PostParams::default(), &secret).await?;
                }
                self.create_bundles(&namespace).await?;
                self.check_rejection_without(&all, permission, &flags, |_| std::future::pending())
                    .await?;
                tested += 1;
            }
        }
        Ok(tested)
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
    let names: Vec<_> = scenarios::with(Reach::OwnKinds)
        .map(|scenario| scenario.controller)
        .collect();
    format!("--controllers={}", names.join(","))
}

#[tokio::test]
async fn the_daemon_requires_each_of_its_permissions() -> Result<()> {
    let checker = RightsChecker::start_control_plane().await?;
    let mut tested = checker.check_each_install_permission().await?;
    checker.install_crds().await?;
    tested += checker.check_each_election_permission().await?;
    tested += checker.check_each_serving_permission().await?;
    let certificate = checker.check_each_certificate_permission().await?;
    ensure!(
        certificate == 14,
        "{certificate} permissions of the serving certificate"
    );
    let checks = scenarios::with(Reach::OwnKinds).map(|scenario| checker.check_each_permission(scenario));
    tested += try_join_all(checks).await?.into_iter().sum::<usize>();
    let printed = printed_roles(&[&controllers_flag(), "--install-crds"])?;
    let all: usize = printed.values().map(Vec::len).sum();
    ensure!(tested == all, "only {tested} of {all} permissions were checked");
    println!("checked {tested} permissions, each of which is required");
    Ok(())
}

#[tokio::test]
async fn the_printed_permissions_are_used_and_suffice() -> Result<()> {
    let checker = RightsChecker::start_control_plane().await?;
    checker.install_older_crd().await?;
    let controllers = controllers_flag();
    let namespace = format!("--leader-elect-resource-namespace={}", checker.system.name());
    let flags = [&*controllers, "--install-crds", &namespace];
    let printed = printed_roles(&flags)?;
    let all: Vec<_> = printed.values().flatten().collect();
    let listener = Listener::new()?;
    let daemon = checker.start("portreeve", &all, &listener.flags(&flags)).await?;
    checker.ask_for_metrics(&listener).await?;
    let clock = &daemon.clock;
    let fixture = NamespaceFixture::new(&checker.plane, "everything").await?;
    eventually(LIMIT, "definitions to be served", || {
        fixture.create_foo("first", "first", 1)
    })
    .await?;
    for scenario in scenarios::with(Reach::OwnKinds) {
        clock.reset();
        let done = (scenario.run)(fixture.clone(), clock.clone()).await;
        done.context(scenario.controller)?;
    }
    let used = || {
        let mut used = BTreeSet::new();
        for event in checker.requests_of("portreeve", 0)? {
            used.extend(used_permissions(&event));
        }
        anyhow::Ok(used)
    };
    let allowed: BTreeSet<_> = all
        .iter()
        .filter(|permission| !permission.is_on_finalizers())
        .map(ToString::to_string)
        .collect();
    eventually(LIMIT, "each permission to be used", || async {
        let used = used()?;
        let unused: Vec<_> = allowed.difference(&used).collect();
        ensure!(unused.is_empty(), "{unused:?} are not used");
        Ok(())
    })
    .await?;
    let used = used()?;
    ensure!(used == allowed, "{used:?} of {allowed:?}");
    checker.ensure_nothing_forbidden("portreeve")
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
