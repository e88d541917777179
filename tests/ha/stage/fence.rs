//! A stage whose apiserver has the fence of `portreeve fence`: one account for all replicas, and a token for each that is bound to its
//! Pod.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    apps::v1::Deployment,
    authentication::v1::TokenRequest,
    coordination::v1::Lease,
    core::v1::{Pod, ServiceAccount},
};
use kube::{
    Api, Client, Config,
    api::{PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use portreeve_testing::eventually;
use serde_json::json;

use super::{Fencing, LEASE, Stage, Timing};
use crate::support::{LIMIT, daemon::printed, manifests, scene::foreign};

/// The account of all replicas.
pub(super) const ACCOUNT: &str = "portreeve";

impl Stage {
    /// A stage with the server's fence, which stands when this returns.
    pub(crate) async fn fenced(name: &str, timing: Timing) -> Result<Self> {
        let mut stage = Self::timed(name, timing).await?;
        stage.fencing = Fencing::Server;
        // The Lease comes with the manifests, as what is fenced by a Lease that is not there is not fenced.
        let lease: Lease = serde_json::from_value(json!({"metadata": {"name": LEASE}}))?;
        stage.home.api().create(&PostParams::default(), &lease).await?;
        stage.kubeconfig_with(ACCOUNT, stage.rules.clone()).await?;
        let namespace = format!("--namespace={}", stage.home.name());
        let of_lease = format!("--leader-elect-resource-namespace={}", stage.home.name());
        let fence = printed(&["fence", "--controllers=foo", &namespace, &of_lease])?;
        let parameters = PatchParams::apply("an-administrator").force();
        for document in manifests::documents(&fence)? {
            manifests::apply(stage.home.client(), &document, None, &parameters).await?;
        }
        stage.wait_for_fence().await?;
        Ok(stage)
    }

    /// Waits until a replica that does not lead is refused.
    async fn wait_for_fence(&self) -> Result<()> {
        let kubeconfig = Kubeconfig::read_from(self.bound_kubeconfig("probe").await?)?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let deployments: Api<Deployment> = Api::namespaced(Client::try_from(config)?, self.scene.name());
        let deployment = serde_json::from_value(foreign("probe"))?;
        let for_show = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        eventually(LIMIT, "the fence to stand", || async {
            let answer = deployments.create(&for_show, &deployment).await;
            let refusal = answer.err().context("it let the write pass")?.to_string();
            ensure!(refusal.contains("portreeve-fence"), "{refusal}");
            Ok(())
        })
        .await
    }

    /// The kubeconfig of the account with a token that is bound to a Pod of that name, which is made when it is not there.
    pub(super) async fn bound_kubeconfig(&self, pod: &str) -> Result<PathBuf> {
        let pods: Api<Pod> = self.home.api();
        if pods.get_opt(pod).await?.is_none() {
            let wanted = json!({
                "metadata": {"name": pod},
                "spec": {"serviceAccountName": ACCOUNT, "containers": [{"name": "main", "image": "example.com/main:1"}]},
            });
            pods.create(&PostParams::default(), &serde_json::from_value(wanted)?)
                .await?;
        }
        let uid = pods.get(pod).await?.metadata.uid;
        let reference = json!({"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid});
        let request: TokenRequest =
            serde_json::from_value(json!({"spec": {"audiences": [], "boundObjectRef": reference}}))?;
        let accounts: Api<ServiceAccount> = self.home.api();
        let answer = accounts
            .create_token_request(ACCOUNT, &PostParams::default(), &request)
            .await?;
        let token = answer.status.and_then(|status| status.token).context("no token")?;
        // Another token aside, it is the administrator's.
        let mut kubeconfig = serde_json::to_value(Kubeconfig::read_from(self.plane.kubeconfig())?)?;
        for user in kubeconfig["users"].as_array_mut().into_iter().flatten() {
            user["user"] = json!({ "token": token });
        }
        let path = self.plane.folder().join(format!("{pod}-bound.kubeconfig"));
        fs::write(&path, kubeconfig.to_string()).with_context(|| format!("failed to write {}", path.display()))?;
        Ok(path)
    }
}
