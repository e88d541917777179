//! Garbage collection: the time from the deletion of an owner until its dependents are deleted or
//! orphaned, and memory, connections and files with many objects or definitions.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions, WatchParams};
use kube::{Api, Client};
use portreeve_testing::eventually;
use serde_json::{Value as Json, json};

use crate::controller::Controller;
use crate::objects::{CONFIG_MAP, CRON_JOB, Created, JOB, api, create_all, create_far_schedules};
use crate::objects::{create_sample_definitions, definitions, object, post};
use crate::run::{Run, log};
use crate::statistics::{Unit, Value, number};
use crate::tables::Propagation;
use crate::usage::{CpuTime, Memory, connections, open_files};
use crate::watch::{Change, Watch};

/// The label of the owner and its dependents.
const PART: &str = "family";
/// The time limit of a deletion, four times as long as kube-controller-manager takes for 1,000
/// dependents with its default limits.
const CASCADE_LIMIT: Duration = Duration::from_mins(4);
/// How long the apiserver may take to establish all definitions, and the collector to watch one.
const DEFINITIONS_LIMIT: Duration = Duration::from_mins(10);
/// The number of groups that share the definitions.
const GROUPS: usize = 50;

/// Measures the deletion of an owner.
pub(crate) async fn measure_cascade(run: &Run<'_>, propagation: Propagation) -> Result<Vec<Value>> {
    let cascade = Cascade::create(run, propagation).await?;
    if run.step.subject.is_floor() {
        run.idle(None).await?;
        let took = cascade.took(cascade.collect(run.concurrency())).await?;
        return Ok(vec![Unit::Seconds.of("DELETE to the end", took)]);
    }
    let controller = Controller::start(run, None).await?;
    wait_for_canary(&controller, &run.client).await?;
    controller.idle(run).await?;
    let before = controller.cpu_time()?;
    let took = controller.guard(cascade.took(async { Ok(()) })).await?;
    Ok(vec![
        Unit::Seconds.of("DELETE to the end", took),
        Unit::Seconds.of("CPU time of it", controller.cpu_time()?.since(&before)),
        Unit::Kibibytes.of("peak resident memory", controller.memory()?.peak),
    ])
}

/// An owner and its dependents: small ConfigMaps, so that the kind adds little work.
struct Cascade {
    api: Api<DynamicObject>,
    owner: Created,
    dependents: Vec<Created>,
    propagation: Propagation,
}

impl Cascade {
    async fn create(run: &Run<'_>, propagation: Propagation) -> Result<Self> {
        let api = api(&run.client, CONFIG_MAP);
        let parent = post(&api, dependent("owner", PART, None)).await?;
        let blocks = Json::Bool(propagation == Propagation::Foreground);
        let dependents = (0..run.count()).map(|index| {
            let mut dependent = dependent(&format!("dependent-{index:05}"), PART, Some(&parent));
            dependent["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = blocks.clone();
            dependent
        });
        Ok(Self {
            dependents: create_all(&api, dependents).await?,
            owner: parent,
            api,
            propagation,
        })
    }

    /// Deletes the owner, runs `work`, and returns the seconds from the deletion until the owner is
    /// gone and every dependent is deleted or orphaned.
    async fn took(&self, work: impl Future<Output = Result<()>>) -> Result<f64> {
        let members = WatchParams::default().labels(&format!("bench={PART}"));
        let watch = Watch::start(&self.api, members).await?;
        let all = self.dependents.iter().chain([&self.owner]);
        let mut left: HashSet<String> = all.map(|member| member.uid.clone()).collect();
        let (owner, is_orphaning) = (self.owner.uid.clone(), self.propagation == Propagation::Orphan);
        let watch = watch.until(CASCADE_LIMIT, move |change| {
            let Change { object, is_deleted } = change;
            let metadata = object.metadata;
            let uid = metadata.uid.context("the watch received an object without a UID")?;
            let is_owner = uid == owner;
            let is_unexpected = is_deleted && is_orphaning && !is_owner;
            ensure!(!is_unexpected, "{:?} was deleted instead of orphaned", metadata.name);
            let has_no_owner = metadata.owner_references.is_none_or(|owners| owners.is_empty());
            if is_deleted || is_orphaning && has_no_owner && !is_owner {
                left.remove(&uid);
            }
            Ok(left.is_empty())
        });
        let policy = match self.propagation {
            Propagation::Background => DeleteParams::background(),
            Propagation::Foreground => DeleteParams::foreground(),
            Propagation::Orphan => DeleteParams::orphan(),
        };
        let started = Instant::now();
        let deleted = self.api.delete(&self.owner.name, &policy).await;
        deleted.context("failed to delete the owner")?;
        work.await?;
        watch.last(started).await
    }

    /// Sends the requests that a collector has to send, from a client that knows all dependents.
    async fn collect(&self, concurrency: u16) -> Result<()> {
        let dependents = stream::iter(&self.dependents).map(Ok);
        let written = dependents.try_for_each_concurrent(usize::from(concurrency), |dependent| self.write(dependent));
        written.await.context("failed to write what a collector writes")?;
        // After background deletion, the owner is gone and has no finalizer to remove.
        if self.propagation != Propagation::Background {
            let patch = Patch::Merge(json!({"metadata": {"uid": self.owner.uid, "finalizers": null}}));
            let patched = self.api.patch(&self.owner.name, &PatchParams::default(), &patch).await;
            patched.context("failed to remove the owner's finalizer")?;
        }
        Ok(())
    }

    async fn write(&self, Created { name, uid, version }: &Created) -> kube::Result<()> {
        if self.propagation == Propagation::Orphan {
            let metadata = json!({"uid": uid, "resourceVersion": version, "ownerReferences": null});
            let patch = Patch::Merge(json!({"metadata": metadata}));
            self.api.patch(name, &PatchParams::default(), &patch).await?;
        } else {
            let delete = DeleteParams::background().preconditions(Preconditions {
                resource_version: Some(version.clone()),
                uid: Some(uid.clone()),
            });
            self.api.delete(name, &delete).await?;
        }
        Ok(())
    }
}

/// Returns a small ConfigMap with an owner, or without if it is an owner itself.
fn dependent(name: &str, part: &str, owner: Option<&Created>) -> Json {
    let mut object = object("dependent", &[("name", &name), ("part", &part)]);
    if let Some(Created { name, uid, .. }) = owner {
        let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid});
        object["metadata"]["ownerReferences"] = json!([reference]);
    }
    object
}

/// Creates an owner with a dependent, deletes the owner, and waits until the collector has deleted
/// the dependent. By then its graph contains all earlier ConfigMaps, because watches and work
/// queues keep their order.
async fn wait_for_canary(controller: &Controller, client: &Client) -> Result<()> {
    let api = api(client, CONFIG_MAP);
    let parent = post(&api, dependent("canary-owner", "canary", None)).await?;
    let canary = post(&api, dependent("canary", "canary", Some(&parent))).await?;
    let deleted = api.delete(&parent.name, &DeleteParams::background()).await;
    deleted.context("failed to delete the owner of the canary")?;
    controller.guard(wait_until_gone(api, &canary.name)).await
}

async fn wait_until_gone(api: Api<DynamicObject>, name: &str) -> Result<()> {
    let gone = || async {
        let left = api.get_metadata_opt(name).await?;
        ensure!(left.is_none(), "it still exists");
        Ok(())
    };
    let what = format!("{} to be collected", api.resource_url());
    eventually(DEFINITIONS_LIMIT, &what, gone).await
}

/// Creates ConfigMaps of about `bytes` bytes without owners.
async fn create_configmaps(run: &Run<'_>, bytes: usize) -> Result<()> {
    let content = "x".repeat(bytes);
    let name = |index| format!("object-{index:05}");
    let configmap = |index| object("configmap", &[("name", &name(index)), ("content", &content)]);
    create_all(&api(&run.client, CONFIG_MAP), (0..run.count()).map(configmap)).await?;
    Ok(())
}

/// Measures the memory of a garbage collector. The objects exist before it starts, as after a
/// restart.
pub(crate) async fn measure_load(run: &Run<'_>, bytes: usize) -> Result<Vec<Value>> {
    create_configmaps(run, bytes).await?;
    let controller = Controller::start(run, None).await?;
    wait_for_canary(&controller, &run.client).await?;
    Ok(controller.at_rest(run, Instant::now()).await?.values())
}

/// Measures all controllers in a cluster with ConfigMaps, and a third as many Jobs and CronJobs
/// that cause no work.
pub(crate) async fn measure_everything(run: &Run<'_>) -> Result<Vec<Value>> {
    create_sample_definitions(&run.client).await?;
    create_configmaps(run, 1000).await?;
    let third = run.count() / 3;
    let jobs = (0..third).map(|index| object("inert-job", &[("name", &format!("job-{index:05}"))]));
    create_all(&api(&run.client, JOB), jobs).await?;
    create_far_schedules(&run.client, CRON_JOB, third).await?;
    run.idle(None).await?;
    let controller = Controller::start(run, None).await?;
    wait_for_canary(&controller, &run.client).await?;
    controller.idle(run).await?;
    let used = controller.cpu_time()?.since(&CpuTime::default());
    let mut values = controller.at_rest(run, Instant::now()).await?.values();
    values.push(Unit::Seconds.of("CPU time of the start", used));
    values.push(connections_of(run, &controller)?);
    Ok(values)
}

/// Returns the number of a controller's connections to the apiserver.
fn connections_of(run: &Run<'_>, controller: &Controller) -> Result<Value> {
    let port = run.plane.url().rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let count = connections(controller.pid(), port.context("the apiserver's URL has no port")?)?;
    Ok(Unit::Count.of("connections to the apiserver", number(count)))
}

/// Measures a garbage collector that watches many custom resources, and the apiserver that serves
/// the watches.
pub(crate) async fn measure_definitions(run: &Run<'_>) -> Result<Vec<Value>> {
    let kinds: Vec<Custom> = (0..run.count()).map(Custom::new).collect();
    let api = definitions(&run.client);
    let established = Watch::start(&api, WatchParams::default()).await?;
    let established = established.until_all(DEFINITIONS_LIMIT, kinds.len(), is_established);
    create_all(&api, kinds.iter().map(|kind| kind.object("definition"))).await?;
    established.last(Instant::now()).await?;
    log("  all definitions are established");
    // The collector deletes these objects once it watches their kinds.
    for kind in &kinds {
        post(&kind.api(&run.client), kind.object("absent-owner")).await?;
    }
    run.idle(None).await?;
    log("  the apiserver is idle");
    let apiserver = run.plane.apiserver().pid()?;
    let before = Memory::of(apiserver)?.resident;
    let controller = Controller::start(run, None).await?;
    for kind in &kinds {
        let gone = wait_until_gone(kind.api(&run.client), "canary");
        controller.guard(gone).await?;
    }
    let mut values = controller.at_rest(run, Instant::now()).await?.values();
    values.push(connections_of(run, &controller)?);
    values.push(Unit::Count.of("open files", number(open_files(controller.pid())?.len())));
    let growth = Memory::of(apiserver)?.resident - before;
    values.push(Unit::Kibibytes.of("growth of the apiserver's memory", growth));
    values.push(Unit::Count.of("open files of the apiserver", number(open_files(apiserver)?.len())));
    Ok(values)
}

fn is_established(definition: &DynamicObject) -> bool {
    let conditions = definition.data["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Established" && condition["status"] == "True")
}

/// A custom resource.
struct Custom {
    kind: String,
    group: String,
}

impl Custom {
    fn new(index: usize) -> Self {
        Self {
            kind: format!("Thing{index:04}"),
            group: format!("group-{:02}.bench.example.com", index % GROUPS),
        }
    }

    fn api(&self, client: &Client) -> Api<DynamicObject> {
        api(client, (&format!("{}/v1", self.group), &self.kind))
    }

    /// Returns an object with the names of this kind.
    fn object(&self, id: &str) -> Json {
        let (kind, group, singular) = (&self.kind, &self.group, self.kind.to_lowercase());
        object(id, &[("kind", kind), ("group", group), ("singular", &singular)])
    }
}
