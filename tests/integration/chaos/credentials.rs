//! Rights that are taken away and given back, and tokens that are good no more.

use std::{cell::Cell, fs, path::Path};

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

use super::{
    course::{Course, NAME},
    weather::WHOLE,
};
use crate::support::{LIMIT, SETTLED};

/// How many looks connections last between two resets: as long as all of them may take to be made.
const CONNECTED: usize = 10;

/// Takes all rights away from the accounts of a namespace, and waits until that is so.
pub(super) async fn revoke(course: &Course) -> Result<()> {
    let system = &course.account.system;
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
    let mut course = Course::start().await?;
    revoke(&course).await?;
    // A watch that is open goes on; whoever opens one anew is refused, once the apiserver knows.
    let looks = Cell::new(0_usize);
    eventually(SETTLED, "every watch to be forbidden", || async {
        if looks.replace(looks.get() + 1).is_multiple_of(CONNECTED) {
            course.proxy.reset();
        }
        let (status, text) = course.daemon.admin.get("/readyz?verbose").await?;
        ensure!(status == StatusCode::INTERNAL_SERVER_ERROR, "{status}: {text}");
        for resource in &WHOLE {
            let forbidden = format!("[-]informer/{resource} failed: forbidden");
            ensure!(text.contains(&forbidden), "no {forbidden}: {text}");
        }
        anyhow::Ok(())
    })
    .await?;
    course.work.wave().await?;
    course.account.grant().await?;
    course.judge_red(is_forbidden).await?;
    course.finish().await
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

/// Makes a kubeconfig name a file instead of holding a token.
fn name_a_file(kubeconfig: &Path, file: &Path) -> Result<()> {
    let mut config: Value = serde_json::from_slice(&fs::read(kubeconfig)?)?;
    let user = config.pointer_mut("/users/0/user").context("it has a user")?;
    fs::write(file, user["token"].as_str().context("it has a token")?)?;
    *user = json!({"tokenFile": file});
    Ok(fs::write(kubeconfig, config.to_string())?)
}

#[tokio::test]
async fn a_token_that_is_good_no_more_is_read_anew_from_its_file() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("token");
    let named = file.clone();
    let mut course = Course::start_with(&[], move |account| name_a_file(&account.kubeconfig, &named)).await?;
    let system = course.account.system.clone();
    let first = token(&system, "first").await?;
    fs::write(&file, first)?;
    // The daemon goes by the new one before long; from then on the old one is of no use to it.
    course = course.restart().await?;
    course.work.wave().await?;
    course.judge().await?;

    let secrets: Api<Secret> = system.api();
    secrets.delete("first", &DeleteParams::default()).await?;
    eventually(SETTLED, "the token to be refused, and to be told of", || async {
        course.proxy.reset();
        let (status, text) = course.daemon.admin.get("/readyz?verbose").await?;
        ensure!(
            status == StatusCode::INTERNAL_SERVER_ERROR && text.contains("forbidden"),
            "{text}"
        );
        anyhow::Ok(())
    })
    .await?;
    course.work.wave().await?;
    fs::write(&file, token(&system, "second").await?)?;
    // A file is read again each minute.
    eventually(SETTLED + LIMIT, "the new token to be taken", || async {
        let (status, text) = course.daemon.admin.get("/readyz?verbose").await?;
        ensure!(status == StatusCode::OK, "{text}");
        anyhow::Ok(())
    })
    .await?;
    course.judge_red(|line| line.contains("forbidden")).await?;
    course.finish().await
}
