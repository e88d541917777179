//! Namespaces: the time from their deletion until they are gone, and memory with many of them.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::{StreamExt, TryFutureExt, TryStreamExt, stream};
use http::Request;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, WatchParams};
use kube::discovery::{ApiGroup, Discovery, Scope, verbs};
use kube::{Api, Client};
use serde_json::{Value as Json, json};
use tokio::time::sleep;

use crate::controller::Controller;
use crate::objects::{CONCURRENT_CREATES, CONFIG_MAP, create_all, object, resource};
use crate::run::Run;
use crate::statistics::{Unit, Value};
use crate::watch::{Change, Watch};

/// The time that both controllers wait by default before they delete anything.
const GRACE: Duration = Duration::from_secs(5);
/// The time for which CPU time is measured while nothing happens.
const QUIET: Duration = Duration::from_mins(2);
/// The number of resources of one namespace that the bare client deletes at once.
const PARALLEL: usize = 8;
/// The time limit of the deletions.
const LIMIT: Duration = Duration::from_mins(10);

/// Measures the deletion of namespaces with this number of ConfigMaps each.
pub(crate) async fn measure(run: &Run<'_>, objects: usize) -> Result<Vec<Value>> {
    let names = create(run, objects).await?;
    if run.step.subject.is_floor() {
        run.idle(None).await?;
        let took = took(run, &names, empty_and_finalize(run, &names)).await?;
        return Ok(vec![Unit::Seconds.of("DELETE to the end", took)]);
    }
    let controller = Controller::start(run, None).await?;
    controller.idle(run).await?;
    let before = controller.cpu_time()?;
    let took = controller.guard(took(run, &names, async { Ok(()) })).await?;
    Ok(vec![
        Unit::Seconds.of("DELETE to the end", took - GRACE.as_secs_f64()),
        Unit::Seconds.of("CPU time of it", controller.cpu_time()?.since(&before)),
    ])
}

/// Measures memory and CPU time with namespaces that nobody deletes.
pub(crate) async fn measure_at_rest(run: &Run<'_>, objects: usize) -> Result<Vec<Value>> {
    create(run, objects).await?;
    let controller = Controller::start(run, None).await?;
    let memory = controller.at_rest(run, Instant::now()).await?;
    let before = controller.cpu_time()?;
    let quiet = async {
        sleep(QUIET).await;
        Ok(())
    };
    controller.guard(quiet).await?;
    let spent = controller.cpu_time()?.since(&before);
    Ok(vec![memory, Unit::Seconds.of("CPU time of two quiet minutes", spent)])
}

fn all(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &resource(("v1", "Namespace")))
}

/// Creates the namespaces and their objects. Returns the names of the namespaces.
async fn create(run: &Run<'_>, objects: usize) -> Result<Vec<String>> {
    let names: Vec<_> = (0..run.count()).map(|index| format!("bench-{index:05}")).collect();
    let namespaces = names.iter().map(|name| object("namespace", &[("name", name)]));
    create_all(&all(&run.client), namespaces).await?;
    for name in &names {
        let api = Api::namespaced_with(run.client.clone(), name, &resource(CONFIG_MAP));
        let object = |index| object("dependent", &[("name", &format!("object-{index:05}"))]);
        create_all(&api, (0..objects).map(object)).await?;
    }
    Ok(names)
}

/// Deletes the namespaces, runs `work`, and returns the seconds from the first deletion until a
/// watch has shown that all are gone.
async fn took(run: &Run<'_>, names: &[String], work: impl Future<Output = Result<()>>) -> Result<f64> {
    let api = all(&run.client);
    let mut left: HashSet<String> = names.iter().cloned().collect();
    let watch = Watch::start(&api, WatchParams::default()).await?;
    let gone = watch.until(LIMIT, move |Change { object, is_deleted }| {
        if is_deleted {
            left.remove(&object.metadata.name.unwrap_or_default());
        }
        Ok(left.is_empty())
    });
    let started = Instant::now();
    let params = DeleteParams::default();
    let deletions = names.iter().map(|name| api.delete(name, &params).map_ok(drop));
    let deletions = stream::iter(deletions).buffer_unordered(CONCURRENT_CREATES);
    let deleted = deletions.try_collect::<Vec<()>>().await;
    deleted.context("failed to delete the namespaces")?;
    work.await?;
    gone.last(started).await
}

/// Empties and finalizes the namespaces as a client would that looks at nothing: one deletion for
/// each resource, whether it has objects or not.
async fn empty_and_finalize(run: &Run<'_>, names: &[String]) -> Result<()> {
    let discovery = Discovery::new(run.client.clone()).run().await?;
    let resources = discovery.groups().flat_map(ApiGroup::recommended_resources);
    let deletable = resources.filter(|(_, capabilities)| {
        capabilities.scope == Scope::Namespaced && capabilities.supports_operation(verbs::DELETE_COLLECTION)
    });
    let resources: Vec<_> = deletable.map(|(resource, _)| resource).collect();
    let all = stream::iter(names).map(Ok);
    all.try_for_each_concurrent(usize::from(run.concurrency()), |name| finish(run, &resources, name))
        .await
}

async fn finish(run: &Run<'_>, resources: &[ApiResource], name: &str) -> Result<()> {
    let resources = stream::iter(resources).map(anyhow::Ok);
    let empty = async |resource| {
        let api: Api<DynamicObject> = Api::namespaced_with(run.client.clone(), name, resource);
        api.delete_collection(&DeleteParams::background(), &ListParams::default())
            .await?;
        Ok(())
    };
    resources.try_for_each_concurrent(PARALLEL, empty).await?;
    let namespace = all(&run.client).get(name).await?;
    let mut finalized = json!(namespace);
    finalized["spec"]["finalizers"] = json!([]);
    let request =
        Request::put(format!("/api/v1/namespaces/{name}/finalize")).header("content-type", "application/json");
    let request = request.body(finalized.to_string().into_bytes())?;
    run.client.request::<Json>(request).await?;
    Ok(())
}
