//! Permissions that are revoked and restored, and tokens that become invalid.

use std::{cell::Cell, fs, path::PathBuf};

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use k8s_openapi::api::{core::v1::Secret, rbac::v1::ClusterRoleBinding};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use portreeve_testing::{Namespace, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::scenario::{Account, NAME, Scenario};
use crate::{
    fixtures::{LIMIT, tokens},
    registry::watched_objects,
};

/// The number of polls between two connection resets. It leaves time to establish all connections
/// again.
const POLLS_BETWEEN_RESETS: usize = 10;

/// Revokes all permissions of the accounts of the daemon's namespace.
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

/// Returns whether a line of `/readyz` reports missing permissions.
pub(super) fn is_forbidden(line: &str) -> bool {
    line.contains(": forbidden: ")
}

#[tokio::test]
async fn revoked_permissions_are_reported_and_restoring_them_completes_the_work() -> Result<()> {
    let mut scenario = Scenario::start().await?;
    revoke(&scenario).await?;
    // An open watch continues without permissions. Resets make the informers open new watches,
    // which the apiserver rejects once it has observed the change.
    let resets = ConnectionResets::of(&scenario);
    eventually(LIMIT, "every watch to be forbidden", || async {
        resets.poll();
        let (status, text) = scenario.daemon.admin.get("/readyz?verbose").await?;
        ensure!(status == StatusCode::INTERNAL_SERVER_ERROR, "{status}: {text}");
        for resource in watched_objects() {
            // The name of a watch with selectors goes on.
            let check = format!("[-]informer/{resource}");
            let mut lines = text.lines().filter(|line| line.starts_with(&check));
            ensure!(lines.any(is_forbidden), "{check} is not forbidden in {text}");
        }
        anyhow::Ok(())
    })
    .await?;
    scenario.work.wave().await?;
    scenario.account.grant().await?;
    scenario.verify_with_failing_checks(is_forbidden).await?;
    scenario.finish().await
}

/// A file with a token. Each token is valid while its Secret exists.
pub(super) struct TokenFile {
    folder: TempDir,
    system: Namespace,
    issued: usize,
}

impl TokenFile {
    /// Issues a token for the account, writes it to a file, and makes the account's kubeconfig
    /// refer to that file.
    async fn of(account: &Account) -> Result<Self> {
        let mut file = Self {
            folder: tempfile::tempdir()?,
            system: account.system.clone(),
            issued: 0,
        };
        file.renew().await?;
        let mut config: Value = serde_json::from_slice(&fs::read(&account.kubeconfig)?)?;
        let user = config
            .pointer_mut("/users/0/user")
            .context("the kubeconfig has no user")?;
        *user = json!({"tokenFile": file.path()});
        fs::write(&account.kubeconfig, config.to_string())?;
        Ok(file)
    }

    /// Starts a daemon with additional flags, whose account has its token in a file.
    pub(super) async fn start(flags: &'static [&'static str]) -> Result<(Scenario, Self)> {
        let mut file = None;
        let use_token_file = async |account: &Account| {
            file = Some(Self::of(account).await?);
            Ok(())
        };
        let scenario = Scenario::start_with(flags, use_token_file).await?;
        Ok((scenario, file.context("the account was not created")?))
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("token")
    }

    /// Returns the name of the Secret to which the last token is bound.
    fn secret_name(&self) -> String {
        format!("token-{}", self.issued)
    }

    /// Writes a new token into the file.
    pub(super) async fn renew(&mut self) -> Result<()> {
        self.issued += 1;
        let secret: Secret = serde_json::from_value(json!({"metadata": {"name": self.secret_name()}}))?;
        let secret = self.system.api().create(&PostParams::default(), &secret).await?;
        let token = tokens::token(&self.system, NAME, Some(tokens::reference("Secret", &secret))).await?;
        // Rename the file into place, because the daemon may be reading it.
        let whole = self.folder.path().join("whole");
        fs::write(&whole, token)?;
        Ok(fs::rename(whole, self.path())?)
    }

    /// Invalidates the token in the file, and resets connections until the daemon receives a 401.
    /// That takes some seconds, because an apiserver caches the validity of tokens.
    pub(super) async fn expire(&self, scenario: &Scenario) -> Result<()> {
        let unauthorized = || count_of(scenario, "401");
        let before = unauthorized().await?;
        let secrets: Api<Secret> = self.system.api();
        secrets.delete(&self.secret_name(), &DeleteParams::default()).await?;
        let resets = ConnectionResets::of(scenario);
        eventually(LIMIT, "the token to be refused", || async {
            resets.poll();
            ensure!(unauthorized().await? > before, "no request was refused yet");
            anyhow::Ok(())
        })
        .await
    }
}

/// Returns the number of the daemon's requests whose responses had this status code.
pub(super) async fn count_of(scenario: &Scenario, code: &str) -> Result<f64> {
    let metrics = scenario.daemon.admin.metrics().await?;
    Ok(metrics.sum("rest_client_requests_total", &[&format!("code=\"{code}\"")]))
}

/// Resets all connections at intervals that leave time to establish new ones.
struct ConnectionResets<'a> {
    scenario: &'a Scenario,
    polls: Cell<usize>,
}

impl<'a> ConnectionResets<'a> {
    fn of(scenario: &'a Scenario) -> Self {
        let polls = Cell::new(0);
        Self { scenario, polls }
    }

    /// Counts a poll of the condition, and resets the connections at every
    /// [`POLLS_BETWEEN_RESETS`]th.
    fn poll(&self) {
        if self
            .polls
            .replace(self.polls.get() + 1)
            .is_multiple_of(POLLS_BETWEEN_RESETS)
        {
            self.scenario.proxy.reset();
        }
    }
}

#[tokio::test]
async fn an_invalid_token_is_reloaded_from_its_file() -> Result<()> {
    let (mut scenario, mut file) = TokenFile::start(&[]).await?;
    file.expire(&scenario).await?;
    // An open watch continues with the old token, so break the connections.
    scenario.proxy.reset();
    eventually(LIMIT, "forbidden watches in /readyz", || async {
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
    // The client reads the token file once a minute.
    eventually(LIMIT, "the new token to be used", || async {
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
