//! Tests of discovery with a real apiserver: how it notices changes, and how it handles unavailable
//! API services.

use futures::{TryFutureExt, future::try_join_all};
use http::{HeaderValue, Request, header};
use k8s_openapi::{
    api::rbac::v1::PolicyRule, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    kube_aggregator::pkg::apis::apiregistration::v1::APIService,
};
use kube::{
    api::{ApiResource, DynamicObject, ListParams},
    client::Body,
    core::GroupVersionKind,
};
use portreeve_informer::{Discovery, ServedResources, Verb};
use tokio::sync::watch;

use super::*;

const COLLECTABLE: &[Verb] = &[Verb::Delete, Verb::List, Verb::Watch];

type Known = watch::Receiver<Option<Arc<ServedResources>>>;

/// Returns a CRD in `group` with one version.
fn definition(group: &str) -> Result<CustomResourceDefinition> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": format!("widgets.{group}")},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": "Widget", "plural": "widgets"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}},
            }],
        },
    }))?)
}

fn start_discovery(client: Client) -> (Discovery, Known) {
    let informers = Factory::new(client.clone(), InformerConfig::default());
    Discovery::start(client, &informers.shared_watches())
}

/// Waits until the known resources satisfy `expected`, and returns them.
async fn wait_for_known(known: &Known, expected: impl Fn(&ServedResources) -> bool) -> Result<Arc<ServedResources>> {
    let mut known = known.clone();
    let is = |served: &Option<Arc<ServedResources>>| served.as_deref().is_some_and(&expected);
    let Ok(served) = tokio::time::timeout(LIMIT, known.wait_for(is)).await else {
        let served = known.borrow().clone().unwrap_or_default();
        let widgets = served.preferred(&[]).filter(|resource| resource.kind == "Widget");
        let widgets: Vec<_> = widgets.map(ToString::to_string).collect();
        anyhow::bail!(
            "timed out waiting for discovery; known: {widgets:?}, failed: {:?}",
            served.failed().collect::<Vec<_>>()
        );
    };
    let served = served?.clone();
    Ok(served.unwrap_or_default())
}

fn has_widgets(served: &ServedResources, group: &str) -> bool {
    served.lookup(&format!("{group}/v1"), "Widget").is_some()
}

fn is_established(definition: &CustomResourceDefinition) -> bool {
    let conditions = definition
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|condition| condition.type_ == "Established" && condition.status == "True")
}

/// Waits until the CRD is established, or deleted if `is_present` is false.
async fn wait_for_crd(api: &Api<CustomResourceDefinition>, group: &str, is_present: bool) -> Result<()> {
    let name = format!("widgets.{group}");
    eventually(LIMIT, &name, || async {
        let definition = api.get_opt(&name).await.map_err(|error| error.to_string())?;
        match (definition, is_present) {
            (Some(definition), true) if is_established(&definition) => Ok(()),
            (None, false) => Ok(()),
            (other, _) => Err(format!("{other:?}")),
        }
    })
    .await
}

/// Creates the CRD, and waits until it is discovered.
async fn create_and_await_discovery(
    api: &Api<CustomResourceDefinition>,
    known: &Known,
    group: &str,
) -> Result<Arc<ServedResources>> {
    api.create(&PostParams::default(), &definition(group)?).await?;
    wait_for_known(known, |served| has_widgets(served, group)).await
}

/// Waits until the apiserver lists the CRD's objects.
///
/// The apiserver opens the storage of a CRD at the first request for its objects, and rejects lists
/// until the storage is ready. Its finalizer, too, lists the objects of a CRD that is deleted. If
/// that list fails, the finalizer reports the failure in the CRD's status and tries again. When it
/// does so before it has observed its own report, it gets a conflict and waits for an update; but
/// it ignores updates of that condition alone, so the CRD stays for minutes.
async fn wait_for_storage(api: &Api<CustomResourceDefinition>, group: &str) -> Result<()> {
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", "Widget"), "widgets");
    let widgets: Api<DynamicObject> = Api::all_with(api.clone().into_client(), &resource);
    let params = ListParams::default();
    eventually(LIMIT, "a list of widgets", || {
        widgets.list(&params).map_err(|error| error.to_string())
    })
    .await?;
    Ok(())
}

/// Deletes the CRD, and waits until discovery has removed it.
async fn delete_and_await_removal(api: &Api<CustomResourceDefinition>, known: &Known, group: &str) -> Result<()> {
    wait_for_storage(api, group).await?;
    api.delete(&format!("widgets.{group}"), &DeleteParams::default())
        .await?;
    wait_for_crd(api, group, false).await?;
    wait_for_known(known, |served| !has_widgets(served, group)).await?;
    Ok(())
}

#[tokio::test]
async fn definitions_are_discovered_and_removed() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let (discovery, known) = start_discovery(plane.client()?);
    wait_for_known(&known, |served| served.lookup("v1", "Pod").is_some()).await?;
    let api: Api<CustomResourceDefinition> = Api::all(plane.client()?);
    let groups = [0, 1, 2, 3, 4, 5, 6].map(|number| format!("one-by-one-{number}.example.com"));
    for group in &groups {
        create_and_await_discovery(&api, &known, group).await?;
    }
    let others = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(|number| format!("at-once-{number}.example.com"));
    try_join_all(
        others
            .iter()
            .map(|group| create_and_await_discovery(&api, &known, group)),
    )
    .await?;
    for group in &groups {
        delete_and_await_removal(&api, &known, group).await?;
    }
    assert_eq!(discovery.failures(), 0);
    discovery.stop().await;
    Ok(())
}

#[tokio::test]
async fn discovery_without_the_aggregated_document_has_the_same_result() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let (_discovery, aggregated) = start_discovery(plane.client()?);
    let inner = plane.client()?;
    let old = tower::service_fn(move |mut request: Request<Body>| {
        let inner = inner.clone();
        // Imitate an apiserver without the aggregated document.
        if !request.uri().path().contains("apiservices") && !request.uri().path().contains("customresourcedefinitions")
        {
            let plain = HeaderValue::from_static("application/json");
            request.headers_mut().insert(header::ACCEPT, plain);
        }
        async move { inner.send(request).await }
    });
    let (_old, plain) = start_discovery(Client::new(old, "default"));
    let plain = wait_for_known(&plain, |served| served.lookup("v1", "Pod").is_some()).await?;
    let aggregated = wait_for_known(&aggregated, |served| served.lookup("v1", "Pod").is_some()).await?;
    assert_eq!(plain, aggregated);
    let collected: Vec<_> = aggregated.preferred(COLLECTABLE).map(ToString::to_string).collect();
    for expected in [
        "pods.v1",
        "deployments.v1.apps",
        "horizontalpodautoscalers.v2.autoscaling",
        "apiservices.v1.apiregistration.k8s.io",
    ] {
        assert!(collected.iter().any(|resource| resource == expected), "{collected:?}");
    }
    assert!(
        !collected
            .iter()
            .any(|resource| resource.starts_with("bindings") || resource.contains('/')),
        "{collected:?}"
    );
    Ok(())
}

#[tokio::test]
async fn an_unavailable_api_service_fails_separately_until_it_is_deleted() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let (discovery, known) = start_discovery(plane.client()?);
    let before = wait_for_known(&known, |served| served.lookup("v1", "Pod").is_some()).await?;
    let services: Api<APIService> = Api::all(plane.client()?);
    let nowhere = serde_json::from_value(json!({
        "metadata": {"name": "v1.nowhere.example.com"},
        "spec": {
            "group": "nowhere.example.com", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 15,
            "insecureSkipTLSVerify": true, "service": {"namespace": "default", "name": "nowhere"},
        },
    }))?;
    services.create(&PostParams::default(), &nowhere).await?;
    let failing = wait_for_known(&known, |served| served.failed().eq(["nowhere.example.com/v1"])).await?;
    assert!(failing.preferred(&[]).eq(before.preferred(&[])));
    // Other groups are still discovered.
    let api: Api<CustomResourceDefinition> = Api::all(plane.client()?);
    create_and_await_discovery(&api, &known, "meanwhile.discovery.example.com").await?;
    services
        .delete("v1.nowhere.example.com", &DeleteParams::default())
        .await?;
    let after = wait_for_known(&known, |served| served.failed().count() == 0).await?;
    assert!(after.lookup("nowhere.example.com/v1", "Widget").is_none());
    assert_eq!(discovery.failures(), 0);
    Ok(())
}

#[tokio::test]
async fn a_restart_of_the_apiserver_removes_no_resources() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let (discovery, known) = start_discovery(plane.client()?);
    let api: Api<CustomResourceDefinition> = Api::all(plane.client()?);
    let group = "kept.discovery.example.com";
    let before = create_and_await_discovery(&api, &known, group).await?;
    let mut updates = known.clone();
    let restart = async {
        plane.apiserver().kill().await?;
        plane.apiserver().start().await?;
        create_and_await_discovery(&api, &known, "new.discovery.example.com").await
    };
    let all_kept = async {
        loop {
            updates.changed().await?;
            let now = updates.borrow_and_update().clone().unwrap_or_default();
            for resource in before.preferred(&[]) {
                let found = now.lookup(&resource.api_version(), &resource.kind);
                anyhow::ensure!(found == Some(resource), "discovery has lost {resource}");
            }
        }
    };
    tokio::select! {
        restarted = restart => restarted?,
        lost = all_kept => return lost,
    };
    eventually(LIMIT, "discovery to recover", || async {
        discovery.failure().map_or(Ok(()), |failure| Err(failure.message))
    })
    .await
}

#[tokio::test]
async fn discovery_works_without_permission_to_watch_definitions_and_services() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("discovery").await?;
    // Every account may use discovery.
    let rule = PolicyRule {
        api_groups: Some(vec![String::new()]),
        resources: Some(vec!["configmaps".to_owned()]),
        verbs: vec!["get".to_owned()],
        ..PolicyRule::default()
    };
    let client = plane
        .service_account_client(namespace.name(), "nobody", vec![rule])
        .await?;
    let (discovery, known) = start_discovery(client);
    wait_for_known(&known, |served| served.lookup("v1", "Pod").is_some()).await?;
    let api: Api<CustomResourceDefinition> = Api::all(plane.client()?);
    let group = "unheard.discovery.example.com";
    api.create(&PostParams::default(), &definition(group)?).await?;
    wait_for_crd(&api, group, true).await?;
    discovery.refresh();
    wait_for_known(&known, |served| has_widgets(served, group)).await?;
    assert_eq!(discovery.failures(), 0);
    Ok(())
}
