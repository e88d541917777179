//! Rights that are taken away and given back, and tokens that are good no more.

use std::{cell::Cell, fs, path::PathBuf};

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    core::v1::{Secret, ServiceAccount},
    rbac::v1::ClusterRoleBinding,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use portreeve_testing::{Namespace, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    faults::WHOLE,
    scenario::{Account, NAME, Scenario},
};
use crate::support::{LIMIT, SETTLED};

/// How many looks connections last between two resets: as long as all of them may take to be made.
const CONNECTED: usize = 10;

/// Takes all rights away from the accounts of a namespace, and waits until that is so.
pub(super) async fn revoke(scenario: &Scenario) -> Result<()> {
    let system = &scenario.account.system;
    let bindings: Api<ClusterRoleBinding> = Api::all(system.client().clone());
    for binding in bindings.list(&ListParams::default()).await? {
        let subjects = binding.subjects.iter().flatten();
        if subjects
            .into_iter()
            .any(|subject| subject.namespace.as_deref() == Some(system.name()))
        {
            bindings.delete(&binding.name_any(), &DeleteParams::default()).await?;
        }
    }
    Ok(())
}

/// Whether a line of `/readyz` says what is to be said when rights are missing.
pub(super) fn is_forbidden(line: &str) -> bool {
    line.contains("failed: forbidden")
}

#[tokio::test]
async fn rights_that_are_revoked_are_missed_by_name_and_restored_all_is_done() -> Result<()> {
    let mut scenario = Scenario::start().await?;
    revoke(&scenario).await?;
    // A watch that is open goes on; whoever opens one anew is refused, once the apiserver knows.
    let breaks = Breaks::of(&scenario);
    eventually(SETTLED, "every watch to be forbidden", || async {
        breaks.look();
        let (status, text) = scenario.daemon.admin.get("/readyz?verbose").await?;
        ensure!(status == StatusCode::INTERNAL_SERVER_ERROR, "{status}: {text}");
        for resource in &WHOLE {
            let forbidden = format!("[-]informer/{resource} failed: forbidden");
            ensure!(text.contains(&forbidden), "no {forbidden}: {text}");
        }
        anyhow::Ok(())
    })
    .await?;
    scenario.work.wave().await?;
    scenario.account.grant().await?;
    scenario.verify_with_failing_checks(is_forbidden).await?;
    scenario.finish().await
}

/// A token that is good for as long as its Secret is there.
async fn token(system: &Namespace, holder: &str) -> Result<String> {
    let secret: Secret = serde_json::from_value(json!({"metadata": {"name": holder}}))?;
    let secret = system.api::<Secret>().create(&PostParams::default(), &secret).await?;
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: None,
            expiration_seconds: Some(3_600),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Secret".to_owned()),
                name: Some(holder.to_owned()),
                uid: secret.uid(),
            }),
        }),
        ..TokenRequest::default()
    };
    let accounts: Api<ServiceAccount> = system.api();
    let answer = accounts
        .create_token_request(NAME, &PostParams::default(), &request)
        .await?;
    answer.status.and_then(|status| status.token).context("it is issued")
}

/// A token in a file, which is good for as long as a Secret is there.
pub(super) struct TokenFile {
    folder: TempDir,
    system: Namespace,
    issued: usize,
}

impl TokenFile {
    /// Has a token issued to an account, and makes its kubeconfig name the file of it.
    async fn of(account: &Account) -> Result<Self> {
        let mut file = Self {
            folder: tempfile::tempdir()?,
            system: account.system.clone(),
            issued: 0,
        };
        file.renew().await?;
        let mut config: Value = serde_json::from_slice(&fs::read(&account.kubeconfig)?)?;
        let user = config.pointer_mut("/users/0/user").context("it has a user")?;
        *user = json!({"tokenFile": file.path()});
        fs::write(&account.kubeconfig, config.to_string())?;
        Ok(file)
    }

    /// Starts a daemon with more flags, whose account has a token in a file.
    pub(super) async fn start(flags: &'static [&'static str]) -> Result<(Scenario, Self)> {
        let mut file = None;
        let give = async |account: &Account| {
            file = Some(Self::of(account).await?);
            Ok(())
        };
        let scenario = Scenario::start_with(flags, give).await?;
        Ok((scenario, file.context("it was given one")?))
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("token")
    }

    /// What the Secret is called that the last token depends on.
    fn holder(&self) -> String {
        format!("token-{}", self.issued)
    }

    /// Puts a new token into the file.
    pub(super) async fn renew(&mut self) -> Result<()> {
        self.issued += 1;
        let token = token(&self.system, &self.holder()).await?;
        // By rename: somebody may be reading the one before.
        let whole = self.folder.path().join("whole");
        fs::write(&whole, token)?;
        Ok(fs::rename(whole, self.path())?)
    }

    /// Makes the token that is in the file good no more, and breaks connections now and then until the daemon was told so, which is seconds
    /// later: an apiserver remembers for a while which tokens are good.
    pub(super) async fn expire(&self, scenario: &Scenario) -> Result<()> {
        let refused = || count_of(scenario, "401");
        let before = refused().await?;
        let secrets: Api<Secret> = self.system.api();
        secrets.delete(&self.holder(), &DeleteParams::default()).await?;
        let breaks = Breaks::of(scenario);
        eventually(SETTLED, "the token to be refused", || async {
            breaks.look();
            ensure!(refused().await? > before, "it is not");
            anyhow::Ok(())
        })
        .await
    }
}

/// How many requests the daemon has had answered so.
pub(super) async fn count_of(scenario: &Scenario, code: &str) -> Result<f64> {
    let metrics = scenario.daemon.admin.metrics().await?;
    Ok(metrics.sum("rest_client_requests_total", &[&format!("code=\"{code}\"")]))
}

/// Breaks all connections now and then, and leaves time for others to be made.
struct Breaks<'a> {
    scenario: &'a Scenario,
    looks: Cell<usize>,
}

impl<'a> Breaks<'a> {
    fn of(scenario: &'a Scenario) -> Self {
        let looks = Cell::new(0);
        Self { scenario, looks }
    }

    /// Whoever looks for what they lead to says so.
    fn look(&self) {
        if self.looks.replace(self.looks.get() + 1).is_multiple_of(CONNECTED) {
            self.scenario.proxy.reset();
        }
    }
}

#[tokio::test]
async fn a_token_that_is_good_no_more_is_read_anew_from_its_file() -> Result<()> {
    let (mut scenario, mut file) = TokenFile::start(&[]).await?;
    file.expire(&scenario).await?;
    // Whoever was let in before goes on until then.
    scenario.proxy.reset();
    eventually(SETTLED, "that to be told", || async {
        let (status, text) = scenario.daemon.admin.get("/readyz?verbose").await?;
        ensure!(
            status == StatusCode::INTERNAL_SERVER_ERROR && text.contains("forbidden"),
            "{text}"
        );
        anyhow::Ok(())
    })
    .await?;
    scenario.work.wave().await?;
    file.renew().await?;
    // A file is read again each minute.
    eventually(SETTLED + LIMIT, "the new token to be taken", || async {
        let (status, text) = scenario.daemon.admin.get("/readyz?verbose").await?;
        ensure!(status == StatusCode::OK, "{text}");
        anyhow::Ok(())
    })
    .await?;
    scenario
        .verify_with_failing_checks(|line| line.contains("forbidden"))
        .await?;
    scenario.finish().await
}
