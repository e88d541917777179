//! The profile of serviceaccount-controller.

use anyhow::{Context, Result, ensure};
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, ResourceExt, api::DeleteParams};
use portreeve_api::Resource;
use portreeve_testing::eventually;

use crate::{
    fixtures::{LIMIT, namespace::NamespaceFixture},
    namespaces::environment::NAMESPACES,
    profile::{Expected, Profile, Reach, Reads, Wave, Work},
};

pub(crate) static PROFILE: Profile = Profile {
    descriptor: portreeve_serviceaccount::DESCRIPTOR,
    reach: Reach::OwnKinds,
    reads: Reads::Never,
    objects: &[Resource::namespaced("", "v1", "ServiceAccount", "serviceaccounts")],
    metadata: Some(NAMESPACES),
    queues: &["serviceaccount"],
    families: &[],
    kubernetes_role: Some("system:controller:service-account-controller"),
    use_permissions: |fixture, _| {
        async move { wait_for_account(&fixture.namespace.api(), None).await.map(|_| ()) }.boxed()
    },
    work: |wave| async move { Ok(Box::new(DefaultAccount::of(&wave.fixture)) as Box<dyn Work>) }.boxed(),
    pending: |fixture| async move { Ok(Box::new(DefaultAccount::of(&fixture)) as Box<dyn Expected>) }.boxed(),
};

/// Waits until the account exists with another UID than this, and returns it.
pub(super) async fn wait_for_account(accounts: &Api<ServiceAccount>, uid: Option<&str>) -> Result<ServiceAccount> {
    eventually(LIMIT, "the account", || async {
        let account = accounts.get_opt("default").await?.context("it does not exist")?;
        ensure!(account.uid().as_deref() != uid, "it is the deleted one");
        anyhow::Ok(account)
    })
    .await
}

/// The account of a namespace, which is deleted in each wave.
struct DefaultAccount {
    accounts: Api<ServiceAccount>,
    deleted: Option<String>,
}

impl DefaultAccount {
    fn of(fixture: &NamespaceFixture) -> Self {
        Self {
            accounts: fixture.namespace.api(),
            deleted: None,
        }
    }
}

impl Expected for DefaultAccount {
    fn check(&self) -> BoxFuture<'_, Result<()>> {
        let checked = async {
            let account = self.accounts.get_opt("default").await?;
            let account = account.context("the account does not exist")?;
            ensure!(account.uid() != self.deleted, "the account is the deleted one");
            Ok(())
        };
        checked.boxed()
    }
}

impl Work for DefaultAccount {
    fn wave<'a>(&'a mut self, _: &'a Wave) -> BoxFuture<'a, Result<()>> {
        let work = async {
            // The controller creates it for the first time.
            if let Some(account) = self.accounts.get_opt("default").await? {
                self.deleted = account.uid();
                self.accounts.delete("default", &DeleteParams::default()).await?;
            }
            Ok(())
        };
        work.boxed()
    }
}
