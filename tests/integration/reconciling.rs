//! Failures that the framework handles for every controller, shown with controllers that misbehave.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::PostParams};
use portreeve_testing::{ControlPlane, Namespace, eventually};
use serde_json::json;

use crate::{
    controllers::{self, in_namespace},
    fixtures::{LIMIT, in_process::InProcess},
};

async fn create(namespace: &Namespace, name: &str) -> Result<ConfigMap> {
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": name}, "data": {"whose": "the test's"}}))?;
    let created = namespace.api().create(&PostParams::default(), &map).await;
    created.with_context(|| format!("failed to create ConfigMap {name}"))
}

#[tokio::test]
async fn a_panic_in_a_reconcile_is_counted_and_retried() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("panicky").await?;
    create(&namespace, "first").await?;
    let flag = in_namespace(namespace.name());
    let daemon = InProcess::start(plane, controllers::PANICKY, &[&flag]).await?;
    let maps: Api<ConfigMap> = namespace.api();
    eventually(LIMIT, "the copy that the retry creates", || maps.get("first-copy")).await?;
    let metrics = daemon.admin.metrics().await?;
    for (name, label, expected) in [
        (
            "controller_runtime_reconcile_panics_total",
            r#"controller="panicky-controller""#,
            1.0,
        ),
        (
            "controller_runtime_reconcile_errors_total",
            r#"controller="panicky-controller""#,
            1.0,
        ),
        ("running_managed_controllers", r#"name="panicky-controller""#, 1.0),
    ] {
        let found = metrics.sum(name, &[label]);
        ensure!((found - expected).abs() < f64::EPSILON, "{name} is {found}");
    }
    create(&namespace, "second").await?;
    eventually(LIMIT, "a copy that the same worker creates", || maps.get("second-copy")).await?;
    daemon.stop().await
}
