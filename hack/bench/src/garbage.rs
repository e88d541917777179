//! Garbage collection: the time from the deletion of an owner until its dependents are deleted or
//! orphaned, and memory, connections and files with many objects or definitions.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryFutureExt, TryStreamExt, stream};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions, WatchParams};
use kube::{Api, Client};
use portreeve_testing::eventually;
use serde_json::{Value as Json, json};

use crate::controller::Controller;
use crate::objects::{CONCURRENT_CREATES, CONFIG_MAP, CRON_JOB, Created, JOB, api, create_all};
use crate::objects::{create_far_schedules, create_sample_definitions, definitions, object, post, resource};
use crate::run::{Run, log};
use crate::statistics::{Unit, Value, number};
use crate::tables::Propagation;
use crate::usage::{CpuTime, Memory, connections, open_files};
use crate::watch::{Change, Watch};

/// The time limit of a deletion, four times as long as kube-controller-manager takes for 1,000
/// dependents with its default limits.
const CASCADE_LIMIT: Duration = Duration::from_mins(4);
/// How long the apiserver may take to establish all definitions, and the collector to watch one.
const DEFINITIONS_LIMIT: Duration = Duration::from_mins(10);
/// The number of groups that share the definitions.
const GROUPS: usize = 50;

/// Measures the deletion of an owner, or of one owner for each dependent.
pub(crate) async fn measure_cascade(run: &Run<'_>, policy: Propagation) -> Result<Vec<Value>> {
    create_definitions(run, run.step.row.definitions).await?;
    let cascade = Cascade::create(run, policy).await?;
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

/// Owners and their dependents: small ConfigMaps, so that the kind adds little work.
struct Cascade {
    client: Client,
    owners: Vec<Member>,
    dependents: Vec<Member>,
    policy: Propagation,
}

/// An object and the API of its namespace.
type Member = (Api<DynamicObject>, Created);

impl Cascade {
    async fn create(run: &Run<'_>, policy: Propagation) -> Result<Self> {
        let mut apis = vec![api(&run.client, CONFIG_MAP)];
        if run.step.row.spread {
            let names: Vec<_> = (0..run.count()).map(|index| format!("bench-{index:05}")).collect();
            let of_namespace = |name: &String| Api::namespaced_with(run.client.clone(), name, &resource(CONFIG_MAP));
            apis = names.iter().map(of_namespace).collect();
            let namespaces = names.iter().map(|name| object("namespace", &[("name", name)]));
            let all = Api::all_with(run.client.clone(), &resource(("v1", "Namespace")));
            create_all(&all, namespaces).await?;
        }
        let owners = apis.iter().map(|api| member(api, "owner", None));
        let owners: Vec<Member> = stream::iter(owners).buffered(CONCURRENT_CREATES).try_collect().await?;
        let names: Vec<_> = (0..run.count()).map(|index| format!("dependent-{index:05}")).collect();
        let dependents = names.iter().zip(owners.iter().cycle());
        let dependents = dependents.map(|(name, (api, owner))| member(api, name, Some(owner)));
        let dependents = stream::iter(dependents).buffered(CONCURRENT_CREATES);
        Ok(Self {
            client: run.client.clone(),
            dependents: dependents.try_collect().await?,
            owners,
            policy,
        })
    }

    /// Deletes the owners, runs `work`, and returns the seconds from the first deletion until the
    /// owners are gone and every dependent is deleted or orphaned.
    async fn took(&self, work: impl Future<Output = Result<()>>) -> Result<f64> {
        let all = Api::all_with(self.client.clone(), &resource(CONFIG_MAP));
        let watch = Watch::start(&all, WatchParams::default().labels("bench=family")).await?;
        let uids = |members: &[Member]| members.iter().map(|(_, member)| member.uid.clone()).collect();
        let (owners, mut left): (HashSet<String>, HashSet<String>) = (uids(&self.owners), uids(&self.dependents));
        left.extend(owners.iter().cloned());
        let is_orphaning = self.policy == Propagation::Orphan;
        let watch = watch.until(CASCADE_LIMIT, move |Change { object, is_deleted }| {
            let metadata = object.metadata;
            let uid = metadata.uid.context("the watch received an object without a UID")?;
            let is_owner = owners.contains(&uid);
            let is_lost = is_deleted && is_orphaning && !is_owner;
            ensure!(!is_lost, "{:?} was deleted instead of orphaned", metadata.name);
            let has_no_owner = metadata.owner_references.is_none_or(|owners| owners.is_empty());
            if is_deleted || is_orphaning && has_no_owner && !is_owner {
                left.remove(&uid);
            }
            Ok(left.is_empty())
        });
        let policy = match self.policy {
            Propagation::Background => DeleteParams::background(),
            Propagation::Foreground => DeleteParams::foreground(),
            Propagation::Orphan => DeleteParams::orphan(),
        };
        let started = Instant::now();
        let deletions = self.owners.iter().map(|(api, owner)| api.delete(&owner.name, &policy));
        let deletions = stream::iter(deletions).map(Ok);
        let deleted = deletions.try_for_each_concurrent(CONCURRENT_CREATES, |deletion| deletion.map_ok(drop));
        deleted.await.context("failed to delete the owners")?;
        work.await?;
        watch.last(started).await
    }

    /// Sends the requests that a collector has to send, from a client that knows all dependents.
    async fn collect(&self, concurrency: u16) -> Result<()> {
        // After background deletion, the owners are gone and have no finalizers to remove.
        let owners = (self.policy != Propagation::Background).then_some(&self.owners);
        for members in [&self.dependents].into_iter().chain(owners) {
            let writes = stream::iter(members).map(Ok);
            let written = writes.try_for_each_concurrent(usize::from(concurrency), |member| self.write(member));
            written.await.context("failed to write what a collector writes")?;
        }
        Ok(())
    }

    async fn write(&self, (api, Created { name, uid, version }): &Member) -> kube::Result<()> {
        let metadata = if name == "owner" {
            json!({"uid": uid, "finalizers": null})
        } else if self.policy == Propagation::Orphan {
            json!({"uid": uid, "resourceVersion": version, "ownerReferences": null})
        } else {
            let delete = DeleteParams::background().preconditions(Preconditions {
                resource_version: Some(version.clone()),
                uid: Some(uid.clone()),
            });
            return api.delete(name, &delete).await.map(drop);
        };
        let patch = Patch::Merge(json!({"metadata": metadata}));
        api.patch(name, &PatchParams::default(), &patch).await.map(drop)
    }
}

/// Creates a small ConfigMap: an owner, or a dependent of `owner`.
async fn member(api: &Api<DynamicObject>, name: &str, owner: Option<&Created>) -> Result<Member> {
    let mut member = object("dependent", &[("name", &name)]);
    if let Some(Created { name, uid, .. }) = owner {
        let reference = object("reference", &[("name", name), ("uid", uid)]);
        member["metadata"]["ownerReferences"] = json!([reference]);
    }
    Ok((api.clone(), post(api, member).await?))
}

/// Creates an owner with a dependent, deletes the owner, and waits until the collector has deleted
/// the dependent. By then its graph contains all earlier ConfigMaps, because watches and work
/// queues keep their order.
async fn wait_for_canary(controller: &Controller, client: &Client) -> Result<()> {
    let api = api(client, CONFIG_MAP);
    let (_, parent) = member(&api, "canary-owner", None).await?;
    let (_, canary) = member(&api, "canary", Some(&parent)).await?;
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
    let kinds = create_definitions(run, run.count()).await?;
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

/// Creates definitions and waits until the apiserver has established them.
async fn create_definitions(run: &Run<'_>, count: usize) -> Result<Vec<Custom>> {
    let kinds: Vec<Custom> = (0..count).map(Custom::new).collect();
    if count > 0 {
        let api = definitions(&run.client);
        let established = Watch::start(&api, WatchParams::default()).await?;
        let established = established.until_all(DEFINITIONS_LIMIT, count, is_established);
        create_all(&api, kinds.iter().map(|kind| kind.object("definition"))).await?;
        established.last(Instant::now()).await?;
        log("  all definitions are established");
    }
    Ok(kinds)
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
