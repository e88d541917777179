//! The profile of clusterrole-aggregation-controller.

use anyhow::{Context, Result, ensure};
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use portreeve_api::Resource;
use portreeve_testing::eventually;
use serde_json::{Value, json};

use crate::{
    fixtures::{LIMIT, namespace::NamespaceFixture},
    profile::{Expected, Profile, Reach, Reads, Wave, Work},
};

pub(crate) static PROFILE: Profile = Profile {
    descriptor: portreeve_clusterroleaggregation::DESCRIPTOR,
    reach: Reach::OwnKinds,
    reads: Reads::Never,
    objects: &[Resource::cluster(
        "rbac.authorization.k8s.io",
        "v1",
        "ClusterRole",
        "clusterroles",
    )],
    metadata: None,
    queues: &["ClusterRoleAggregator"],
    families: &[],
    kubernetes_role: Some("system:controller:clusterrole-aggregation-controller"),
    use_permissions: |fixture, _| async move { use_permissions(&fixture).await }.boxed(),
    work: |wave| async move { Ok(Box::new(Parts::create(&wave.fixture).await?) as Box<dyn Work>) }.boxed(),
    pending: |fixture| async move { pending(&fixture).await }.boxed(),
};

pub(super) async fn create(roles: &Api<ClusterRole>, role: Value) -> Result<()> {
    let role: ClusterRole = serde_json::from_value(role)?;
    let created = roles.create(&PostParams::default(), &role).await;
    created.with_context(|| format!("failed to create {:?}", role.metadata.name))?;
    Ok(())
}

/// Returns a role that permits something with this resource, and has its name as a label.
pub(super) fn part(name: &str, resource: &str) -> Value {
    let rules = json!([{"verbs": ["hammer"], "apiGroups": ["example.com"], "resources": [resource]}]);
    json!({"metadata": {"name": name, "labels": {"part-of": resource}}, "rules": rules})
}

/// Returns a role that aggregates those with this label.
pub(super) fn aggregated(name: &str, label: &str, rules: &Value) -> Value {
    let selectors = json!([{"matchLabels": {"part-of": label}}]);
    json!({"metadata": {"name": name}, "aggregationRule": {"clusterRoleSelectors": selectors}, "rules": rules})
}

/// Returns the resources in the rules of a role.
pub(super) async fn resources(roles: &Api<ClusterRole>, name: &str) -> Result<Vec<String>> {
    let granted = roles.get(name).await?.rules.into_iter().flatten();
    let mut found: Vec<_> = granted.flat_map(|rule| rule.resources.unwrap_or_default()).collect();
    found.sort();
    Ok(found)
}

pub(super) async fn wait_for_resources(roles: &Api<ClusterRole>, name: &str, expected: &[&str]) -> Result<()> {
    eventually(LIMIT, &format!("the rules of {name}"), || async {
        let found = resources(roles, name).await?;
        ensure!(found == expected, "{found:?}, expected {expected:?}");
        anyhow::Ok(())
    })
    .await
}

async fn use_permissions(fixture: &NamespaceFixture) -> Result<()> {
    let mut parts = Parts::create(fixture).await?;
    parts.add("used").await?;
    wait_for_resources(&parts.roles, &parts.whole(), &["used"]).await
}

async fn pending(fixture: &NamespaceFixture) -> Result<Box<dyn Expected>> {
    let mut parts = Parts::create(fixture).await?;
    parts.add("pending").await?;
    Ok(Box::new(parts))
}

/// An aggregated role, of which each wave replaces a part. The names of all roles begin with that
/// of the namespace.
struct Parts {
    roles: Api<ClusterRole>,
    prefix: String,
    added: Vec<String>,
}

impl Parts {
    async fn create(fixture: &NamespaceFixture) -> Result<Self> {
        let parts = Self {
            roles: Api::all(fixture.namespace.client().clone()),
            prefix: fixture.name().to_owned(),
            added: Vec::new(),
        };
        let whole = aggregated(&parts.whole(), &parts.prefix, &json!([]));
        create(&parts.roles, whole).await?;
        Ok(parts)
    }

    fn whole(&self) -> String {
        format!("{}-whole", self.prefix)
    }

    fn part(&self, resource: &str) -> String {
        format!("{}-{resource}", self.prefix)
    }

    async fn add(&mut self, resource: &str) -> Result<()> {
        let mut part = part(&self.part(resource), resource);
        part["metadata"]["labels"] = json!({"part-of": self.prefix});
        create(&self.roles, part).await?;
        self.added.push(resource.to_owned());
        Ok(())
    }
}

impl Expected for Parts {
    fn check(&self) -> BoxFuture<'_, Result<()>> {
        let checked = async {
            let found = resources(&self.roles, &self.whole()).await?;
            ensure!(
                found == self.added,
                "found rules on {found:?}, expected {:?}",
                self.added
            );
            Ok(())
        };
        checked.boxed()
    }
}

impl Work for Parts {
    fn wave<'a>(&'a mut self, wave: &'a Wave) -> BoxFuture<'a, Result<()>> {
        let work = async {
            if let Some(last) = self.added.pop() {
                self.roles.delete(&self.part(&last), &DeleteParams::default()).await?;
            }
            self.add(&format!("wave-{}", wave.number)).await
        };
        work.boxed()
    }
}
