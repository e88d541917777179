//! Namespaces for single tests, and clients with the rights of a service account.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, ensure};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{Namespace as NamespaceObject, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::ClusterResourceScope;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::control_plane::ControlPlane;
use crate::eventually::{LIMIT, eventually};

const FIELD_MANAGER: &str = "portreeve-testing";

/// A new namespace. It is never deleted, because no controller would empty it; it disappears with
/// the control plane.
#[derive(Clone)]
pub struct Namespace {
    name: String,
    client: Client,
}

impl Namespace {
    /// Returns its name: the requested prefix and a unique suffix.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the administrator's client that created it.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the API of a kind in this namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType: Default>,
    {
        Api::namespaced(self.client.clone(), &self.name)
    }
}

impl ControlPlane {
    /// Creates a new namespace for one test, with an administrator's client that is bound to the
    /// caller's runtime.
    ///
    /// # Errors
    /// Returns an error if the apiserver does not create it.
    pub async fn namespace(&self, prefix: &str) -> Result<Namespace> {
        let client = self.client()?;
        let metadata = ObjectMeta {
            generate_name: Some(format!("{prefix}-")),
            ..ObjectMeta::default()
        };
        let namespaces: Api<NamespaceObject> = Api::all(client.clone());
        let created = namespaces
            .create(
                &PostParams::default(),
                &NamespaceObject {
                    metadata,
                    ..NamespaceObject::default()
                },
            )
            .await
            .with_context(|| format!("failed to create a namespace {prefix}-"))?;
        let name = created.metadata.name.context("the created namespace has no name")?;
        Ok(Namespace { name, client })
    }

    /// Returns a client with the rights of a service account that has exactly these rules in all
    /// namespaces.
    ///
    /// Creates the account, its role and its binding, or updates them if they exist. Returns once
    /// the apiserver grants the rules.
    ///
    /// # Errors
    /// Returns an error if the apiserver rejects an object or does not grant the rules within 30 s.
    pub async fn service_account_client(&self, namespace: &str, name: &str, rules: Vec<PolicyRule>) -> Result<Client> {
        let token = self.grant(namespace, name, rules).await?;
        let config = self.access().with_token(token).config()?;
        Client::try_from(config).with_context(|| format!("failed to build a client for {namespace}/{name}"))
    }

    /// Writes a kubeconfig for a process with the same rights as
    /// [`ControlPlane::service_account_client`] and returns its path. Its token is valid for one
    /// hour.
    ///
    /// # Errors
    /// Returns an error if the apiserver rejects an object or does not grant the rules within 30 s.
    pub async fn service_account_kubeconfig(
        &self,
        namespace: &str,
        name: &str,
        rules: Vec<PolicyRule>,
    ) -> Result<PathBuf> {
        let token = self.grant(namespace, name, rules).await?;
        let path = self.folder().join(format!("{namespace}-{name}.kubeconfig"));
        self.access().with_token(token).write_kubeconfig(&path)?;
        Ok(path)
    }

    /// Creates or updates the account and its rights, and returns a token for it.
    async fn grant(&self, namespace: &str, name: &str, rules: Vec<PolicyRule>) -> Result<String> {
        let client = self.client()?;
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
        // Namespace names contain no colon, so no two accounts share a role.
        let role = format!("{namespace}:{name}");
        let first = rules.first().cloned();
        apply(
            &accounts,
            name,
            &ServiceAccount {
                metadata: named(name),
                ..ServiceAccount::default()
            },
        )
        .await?;
        apply(
            &cluster_wide(&client),
            &role,
            &ClusterRole {
                metadata: named(&role),
                rules: Some(rules),
                ..ClusterRole::default()
            },
        )
        .await?;
        let subject = Subject {
            kind: "ServiceAccount".to_owned(),
            name: name.to_owned(),
            namespace: Some(namespace.to_owned()),
            ..Subject::default()
        };
        let role_ref = RoleRef {
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
            kind: "ClusterRole".to_owned(),
            name: role.clone(),
        };
        let binding = ClusterRoleBinding {
            metadata: named(&role),
            role_ref,
            subjects: Some(vec![subject]),
        };
        apply(&cluster_wide(&client), &role, &binding).await?;
        let request = TokenRequest {
            spec: Some(TokenRequestSpec::default()),
            ..TokenRequest::default()
        };
        let response = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await
            .with_context(|| format!("failed to request a token for {namespace}/{name}"))?;
        if let Some(rule) = first {
            wait_until_granted(&client, format!("system:serviceaccount:{namespace}:{name}"), rule).await?;
        }
        response
            .status
            .and_then(|status| status.token)
            .context("the response to the token request contains no token")
    }
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    }
}

fn cluster_wide<K>(client: &Client) -> Api<K>
where
    K: Resource<Scope = ClusterResourceScope, DynamicType: Default>,
{
    Api::all(client.clone())
}

/// Creates the object, or updates it if it exists.
async fn apply<K>(api: &Api<K>, name: &str, object: &K) -> Result<()>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    let params = PatchParams::apply(FIELD_MANAGER).force();
    api.patch(name, &params, &Patch::Apply(object))
        .await
        .with_context(|| format!("failed to apply {name}"))?;
    Ok(())
}

/// Waits until the apiserver grants the first rule. All rules are in one role, so it grants them
/// together.
async fn wait_until_granted(client: &Client, user: String, rule: PolicyRule) -> Result<()> {
    let first_of = |values: Option<Vec<String>>| values.into_iter().flatten().next();
    let verb = rule.verbs.into_iter().next();
    let what = format!("the apiserver to grant {user} its rules");
    let path = first_of(rule.non_resource_urls);
    let resource = first_of(rule.resources);
    ensure!(
        path.is_some() || resource.is_some(),
        "the first rule of {user} names neither a resource nor a path"
    );
    let resource_attributes = resource.map(|resource| {
        let (resource, subresource) = match resource.split_once('/') {
            Some((resource, subresource)) => (resource.to_owned(), Some(subresource.to_owned())),
            None => (resource, None),
        };
        ResourceAttributes {
            group: first_of(rule.api_groups),
            name: first_of(rule.resource_names),
            resource: Some(resource),
            subresource,
            verb: verb.clone(),
            ..ResourceAttributes::default()
        }
    });
    let non_resource_attributes = path.map(|path| NonResourceAttributes { path: Some(path), verb });
    let spec = SubjectAccessReviewSpec {
        user: Some(user),
        resource_attributes,
        non_resource_attributes,
        ..SubjectAccessReviewSpec::default()
    };
    let review = SubjectAccessReview {
        spec,
        ..SubjectAccessReview::default()
    };
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    eventually(LIMIT, &what, || async {
        let response = reviews.create(&PostParams::default(), &review).await?;
        let status = response.status.context("the access review has no status")?;
        if status.allowed {
            Ok(())
        } else {
            Err(anyhow!("denied: {}", status.reason.unwrap_or_default()))
        }
    })
    .await
}
