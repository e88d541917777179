//! A row of the table, and how its object is sent to the apiserver.

use anyhow::{Context, Result, ensure};
use kube::{Client, core::Status};
use serde_json::Value;

use super::environment::Environment;

/// The place that rejects an object.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Place {
    /// The CRD: its schema, its CEL rules, or strict field validation.
    Definition,
    /// The ValidatingAdmissionPolicy.
    Policy,
    /// A ResourceQuota.
    Quota,
    /// The webhook.
    Webhook,
    /// The webhook, because of the limit of a CronTabPolicy.
    WebhookLimit,
}

/// The namespace to which an object is sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Space {
    /// A namespace without a CronTabPolicy and without a quota.
    Open,
    /// A namespace with [`super::environment::limits`].
    Limited,
    /// A namespace whose quota allows no CronTab.
    Full,
}

/// A row of the table.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) object: Value,
    pub(super) space: Space,
    /// `None` if the object is good.
    pub(super) rejection: Option<Rejection>,
}

/// How a bad object is rejected.
#[derive(Clone, Debug)]
pub(super) struct Rejection {
    pub(super) place: Place,
    /// The path of the bad field, which the message contains.
    pub(super) path: String,
    /// Other parts of the message.
    pub(super) parts: Vec<&'static str>,
}

impl Case {
    pub(super) fn good(object: Value) -> Self {
        Self {
            object,
            space: Space::Open,
            rejection: None,
        }
    }

    /// Returns a row whose object the CRD rejects.
    pub(super) fn bad(object: Value, path: impl Into<String>, parts: &[&'static str]) -> Self {
        Self::good(object).rejected_by(Place::Definition, path, parts)
    }

    pub(super) fn rejected_by(mut self, place: Place, path: impl Into<String>, parts: &[&'static str]) -> Self {
        self.rejection = Some(Rejection {
            place,
            path: path.into(),
            parts: parts.to_vec(),
        });
        self
    }

    pub(super) fn in_space(mut self, space: Space) -> Self {
        self.space = space;
        self
    }
}

/// Returns the place that has rejected an object.
pub(super) fn place_of(status: &Status) -> Option<Place> {
    let has = |text| status.message.contains(text);
    let is_denied = has("admission webhook \"crontabs.stable.example.com\" denied the request");
    match status.code {
        422 if is_denied && has("spec.limits.minIntervalSeconds") => Some(Place::WebhookLimit),
        422 if is_denied => Some(Place::Webhook),
        422 if !has("AdmissionPolicy '") => Some(Place::Definition),
        400 if has("strict decoding error") => Some(Place::Definition),
        403 if has("ValidatingAdmissionPolicy 'crontab-limits.stable.example.com'") => Some(Place::Policy),
        403 if has("exceeded quota") => Some(Place::Quota),
        _ => None,
    }
}

/// Sends the object of a row, and compares the response with the row.
pub(super) async fn check(environment: &Environment, client: &Client, case: &Case) -> Result<()> {
    let written = environment.dry_run(client, case.space, &case.object).await?;
    let short = |object: &Value| object.to_string().chars().take(300).collect::<String>();
    let sent = || format!("{} in {:?}", short(&case.object), case.space);
    let Some(rejection) = &case.rejection else {
        return written.map(drop).with_context(|| format!("{} was rejected", sent()));
    };
    let Err(status) = written else {
        anyhow::bail!("{} was not rejected, but should be: {rejection:?}", sent());
    };
    let message = || format!("{}: {rejection:?}: {}", sent(), short(&status.message.clone().into()));
    ensure!(place_of(&status) == Some(rejection.place), "{}", message());
    ensure!(status.message.contains(&rejection.path), "{}", message());
    for part in &rejection.parts {
        ensure!(status.message.contains(part), "{part:?} is missing: {}", message());
    }
    Ok(())
}
