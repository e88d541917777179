//! A namespace on a control plane with the fence, and accounts that write in it.

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    apps::v1::Deployment,
    coordination::v1::Lease,
    core::v1::ServiceAccount,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use portreeve_client::ApiErrorKind;
use portreeve_testing::{ControlPlane, Namespace, eventually};
use serde_json::json;

use crate::fixtures::{
    LIMIT,
    daemon::printed,
    manifests,
    namespace::unrelated_deployment,
    rbac, shared_daemon,
    tokens::{pod_token, token},
};

/// A namespace with a service account, its RBAC rules, its Lease, and the fence.
pub(super) struct FenceEnvironment<'a> {
    pub(super) plane: &'a ControlPlane,
    pub(super) namespace: Namespace,
    /// Named after its namespace, so that its cluster-scoped objects belong to this test alone.
    pub(super) account: String,
    /// Another account with the same RBAC rules.
    pub(super) bystander: String,
}

impl FenceEnvironment<'static> {
    pub(super) async fn new(prefix: &str) -> Result<Self> {
        // The shared daemon installs the CRDs. Its own account is not fenced.
        shared_daemon::daemon().await?;
        Self::on(ControlPlane::shared().await, prefix).await
    }
}

impl<'a> FenceEnvironment<'a> {
    pub(super) async fn on(plane: &'a ControlPlane, prefix: &str) -> Result<Self> {
        let namespace = plane.namespace(prefix).await?;
        let account = namespace.name().to_owned();
        let bystander = format!("{account}-bystander");
        let environment = Self {
            plane,
            namespace,
            account,
            bystander,
        };
        for name in [&environment.account, &environment.bystander] {
            let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": name}}))?;
            environment
                .namespace
                .api()
                .create(&PostParams::default(), &account)
                .await?;
            let (flag, lease) = (format!("--service-account={name}"), environment.lease_flags());
            let within = format!("--namespace={}", environment.namespace.name());
            let rbac = printed(&[
                "rbac",
                "--controllers=foo",
                "--install-crds",
                &flag,
                &within,
                &lease[0],
                &lease[1],
            ])?;
            rbac::apply_and_wait_for(
                environment.namespace.client(),
                environment.namespace.name(),
                name,
                &rbac,
            )
            .await?;
        }
        let lease: Lease = serde_json::from_value(json!({"metadata": {"name": "lease"}}))?;
        environment.leases().create(&PostParams::default(), &lease).await?;
        Ok(environment)
    }

    /// Applies the fence and waits until it is enforced. The Lease must be free, or held by a Pod.
    pub(super) async fn fence(&self) -> Result<()> {
        self.fence_with(&["--controllers=foo"]).await
    }

    /// Applies the fence that these flags describe, and waits until it is enforced.
    pub(super) async fn fence_with(&self, flags: &[&str]) -> Result<()> {
        self.apply(&self.account, flags).await?;
        let nobody = self.client_of(&self.account, None).await?;
        eventually(LIMIT, "the fence to be enforced", || async {
            ensure!(is_fenced(&self.write(&nobody).await)?, "a write passed");
            Ok(())
        })
        .await
    }

    /// Applies the output of `portreeve fence` for an account.
    pub(super) async fn apply(&self, account: &str, flags: &[&str]) -> Result<()> {
        let (account, lease) = (format!("--service-account={account}"), self.lease_flags());
        let within = format!("--namespace={}", self.namespace.name());
        let common = ["fence", &account, &within, &lease[0], &lease[1]];
        let fence = printed(&[&common, flags].concat())?;
        let force = PatchParams::apply("an-administrator").force().validation_strict();
        for document in manifests::documents(&fence)? {
            manifests::apply(self.namespace.client(), &document, None, &force).await?;
        }
        Ok(())
    }

    /// Applies the output of `portreeve fence-anchor`.
    pub(super) async fn anchor(&self) -> Result<()> {
        let account = format!("--service-account={}", self.account);
        let namespace = format!("--namespace={}", self.namespace.name());
        let force = PatchParams::apply("an-administrator").force().validation_strict();
        for document in manifests::documents(&printed(&["fence-anchor", &account, &namespace])?)? {
            manifests::apply(self.namespace.client(), &document, None, &force).await?;
        }
        Ok(())
    }

    /// Deletes the fence, and returns once the apiserver no longer has its policy. Then every pod
    /// may write.
    pub(super) async fn delete_fence(&self) -> Result<()> {
        let name = format!("portreeve-fence.{}.{}", self.namespace.name(), self.account);
        let client = self.namespace.client();
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
        policies.delete(&name, &DeleteParams::default()).await?;
        let nobody = self.client_of(&self.account, None).await?;
        eventually(LIMIT, "the fence to stop refusing writes", || self.write(&nobody)).await?;
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
        bindings.delete(&name, &DeleteParams::default()).await?;
        Ok(())
    }

    pub(super) fn lease_flags(&self) -> [String; 2] {
        let namespace = self.namespace.name();
        [
            "--leader-elect-resource-name=lease".to_owned(),
            format!("--leader-elect-resource-namespace={namespace}"),
        ]
    }

    pub(super) fn leases(&self) -> Api<Lease> {
        self.namespace.api()
    }

    /// Returns a client with a token of `account`, bound to a new Pod if `pod` names one.
    pub(super) async fn client_of(&self, account: &str, pod: Option<&str>) -> Result<Client> {
        let token = match pod {
            Some(pod) => pod_token(&self.namespace, account, pod).await?,
            None => token(&self.namespace, account, None).await?,
        };
        let mut config = self.plane.config()?;
        config.auth_info.token = Some(token.into());
        Ok(Client::try_from(config)?)
    }

    pub(super) async fn replica(&self, pod: &str) -> Result<Client> {
        self.client_of(&self.account, Some(pod)).await
    }

    /// Makes `identity` the holder of the Lease. An empty identity releases it.
    pub(super) async fn set_holder(&self, identity: &str) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": {"holderIdentity": identity}}));
        self.leases().patch("lease", &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Makes `identity` the holder of the Lease, and returns once the fence admits writes of `who`.
    pub(super) async fn set_leader(&self, identity: &str, who: &Client) -> Result<()> {
        self.set_holder(identity).await?;
        eventually(LIMIT, &format!("writes of {identity} to pass"), || self.write(who)).await
    }

    pub(super) fn deployments(&self, client: &Client) -> Api<Deployment> {
        Api::namespaced(client.clone(), self.namespace.name())
    }

    /// Sends one dry-run write. The apiserver runs admission for it as for any other write.
    pub(super) async fn write(&self, client: &Client) -> Result<(), kube::Error> {
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let deployment = serde_json::from_value(unrelated_deployment("probe")).map_err(kube::Error::SerdeError)?;
        self.deployments(client).create(&dry_run, &deployment).await.map(drop)
    }

    pub(super) async fn ensure_fenced(&self, who: &Client, what: &str) -> Result<()> {
        ensure!(is_fenced(&self.write(who).await)?, "a write of {what} passed the fence");
        Ok(())
    }
}

/// Returns whether the fence rejected the write. Any other failure is an error.
pub(super) fn is_fenced<T>(result: &Result<T, kube::Error>) -> Result<bool> {
    let Err(error) = result else {
        return Ok(false);
    };
    let kube::Error::Api(status) = error else {
        bail!("{error}");
    };
    ensure!(
        status.message.contains("ValidatingAdmissionPolicy 'portreeve-fence."),
        "{status:?}"
    );
    ensure!(status.code == 403 && status.reason == "Forbidden", "{status:?}");
    ensure!(
        ApiErrorKind::of(error) == ApiErrorKind::Fenced,
        "the client does not classify the refusal as fenced: {status:?}"
    );
    Ok(true)
}
