//! Garbage collection: the time from the deletion of owners until their dependents are gone, and
//! the memory and connections of all controllers with many objects.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryFutureExt, TryStreamExt, stream};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions, WatchParams};
use kube::{Api, Client};
use portreeve_testing::eventually;
use serde_json::json;

use crate::controller::Controller;
use crate::objects::{CONCURRENT_CREATES, CONFIG_MAP, CRON_JOB, Created, JOB, POD, api, create_all};
use crate::objects::{create_far_schedules, create_sample_definitions, object, post};
use crate::run::Run;
use crate::statistics::{Unit, Value, number};
use crate::tables::Propagation;
use crate::usage::connections;
use crate::watch::{Change, Watch};

/// How the names of owners begin.
const OWNER: &str = "owner";
/// The time limit of a deletion, four times as long as kube-controller-manager takes for 1,000
/// dependents with its default limits.
const CASCADE_LIMIT: Duration = Duration::from_mins(4);
/// How long a collector may take to work on a first object.
const START_LIMIT: Duration = Duration::from_mins(2);

/// Measures the deletion of owners.
pub(crate) async fn measure_cascade(run: &Run<'_>, policy: Propagation) -> Result<Vec<Value>> {
    let pods = (0..run.step.row.pods).map(|index| object("pod-of-nobody", &[("name", &format!("pod-{index:05}"))]));
    create_all(&api(&run.client, POD), pods).await?;
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
    ])
}

/// Owners and their dependents: small ConfigMaps, so that the kind adds little work.
struct Cascade {
    configmaps: Api<DynamicObject>,
    owners: Vec<Created>,
    dependents: Vec<Created>,
    policy: Propagation,
}

impl Cascade {
    async fn create(run: &Run<'_>, policy: Propagation) -> Result<Self> {
        let configmaps = api(&run.client, CONFIG_MAP);
        let names: Vec<_> = (0..run.step.row.owners)
            .map(|index| format!("{OWNER}-{index:05}"))
            .collect();
        let owners = names.iter().map(|name| member(&configmaps, name, None));
        let owners: Vec<Created> = stream::iter(owners).buffered(CONCURRENT_CREATES).try_collect().await?;
        let names: Vec<_> = (0..run.count()).map(|index| format!("dependent-{index:05}")).collect();
        let dependents = names.iter().zip(owners.iter().cycle());
        let dependents = dependents.map(|(name, owner)| member(&configmaps, name, Some(owner)));
        let dependents = stream::iter(dependents).buffered(CONCURRENT_CREATES);
        Ok(Self {
            dependents: dependents.try_collect().await?,
            configmaps: configmaps.clone(),
            owners,
            policy,
        })
    }

    /// Deletes the owners, runs `work`, and returns the seconds from the first deletion until all
    /// are gone.
    async fn took(&self, work: impl Future<Output = Result<()>>) -> Result<f64> {
        let watch = Watch::start(&self.configmaps, WatchParams::default().labels("bench=family")).await?;
        let members = self.owners.iter().chain(&self.dependents);
        let mut left: HashSet<String> = members.map(|member| member.uid.clone()).collect();
        let watch = watch.until(CASCADE_LIMIT, move |Change { object, is_deleted }| {
            let uid = object.metadata.uid;
            if is_deleted {
                left.remove(&uid.context("the watch received an object without a UID")?);
            }
            Ok(left.is_empty())
        });
        let policy = match self.policy {
            Propagation::Background => DeleteParams::background(),
            Propagation::Foreground => DeleteParams::foreground(),
        };
        let started = Instant::now();
        let deletions = self
            .owners
            .iter()
            .map(|owner| self.configmaps.delete(&owner.name, &policy));
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

    async fn write(&self, Created { name, uid, version }: &Created) -> kube::Result<()> {
        if name.starts_with(OWNER) {
            let patch = Patch::Merge(json!({"metadata": {"uid": uid, "finalizers": null}}));
            return self
                .configmaps
                .patch(name, &PatchParams::default(), &patch)
                .await
                .map(drop);
        }
        let delete = DeleteParams::background().preconditions(Preconditions {
            resource_version: Some(version.clone()),
            uid: Some(uid.clone()),
        });
        self.configmaps.delete(name, &delete).await.map(drop)
    }
}

/// Creates a small ConfigMap: an owner, or a dependent of `owner`.
async fn member(api: &Api<DynamicObject>, name: &str, owner: Option<&Created>) -> Result<Created> {
    let mut member = object("dependent", &[("name", &name)]);
    if let Some(Created { name, uid, .. }) = owner {
        let reference = object("reference", &[("name", name), ("uid", uid)]);
        member["metadata"]["ownerReferences"] = json!([reference]);
    }
    post(api, member).await
}

/// Creates an owner with a dependent, deletes the owner, and waits until the collector has deleted
/// the dependent. By then its graph contains all earlier ConfigMaps, because watches and work
/// queues keep their order.
async fn wait_for_canary(controller: &Controller, client: &Client) -> Result<()> {
    let api = api(client, CONFIG_MAP);
    let parent = member(&api, "canary-owner", None).await?;
    let canary = member(&api, "canary", Some(&parent)).await?;
    let deleted = api.delete(&parent.name, &DeleteParams::background()).await;
    deleted.context("failed to delete the owner of the canary")?;
    let gone = || async {
        let left = api.get_metadata_opt(&canary.name).await?;
        ensure!(left.is_none(), "it still exists");
        Ok(())
    };
    controller
        .guard(eventually(START_LIMIT, "the canary to be collected", gone))
        .await
}

/// Creates ConfigMaps of 1000 bytes without owners.
async fn create_configmaps(run: &Run<'_>) -> Result<()> {
    let content = "x".repeat(1000);
    let name = |index| format!("object-{index:05}");
    let configmap = |index| object("configmap", &[("name", &name(index)), ("content", &content)]);
    create_all(&api(&run.client, CONFIG_MAP), (0..run.count()).map(configmap)).await?;
    Ok(())
}

/// Measures all controllers in a cluster with ConfigMaps, and a third as many Jobs and CronJobs
/// that cause no work.
pub(crate) async fn measure_everything(run: &Run<'_>) -> Result<Vec<Value>> {
    create_sample_definitions(&run.client).await?;
    create_configmaps(run).await?;
    let third = run.count() / 3;
    let jobs = (0..third).map(|index| object("inert-job", &[("name", &format!("job-{index:05}"))]));
    create_all(&api(&run.client, JOB), jobs).await?;
    create_far_schedules(&run.client, CRON_JOB, third).await?;
    run.idle(None).await?;
    let controller = Controller::start(run, None).await?;
    wait_for_canary(&controller, &run.client).await?;
    let memory = controller.at_rest(run, Instant::now()).await?;
    Ok(vec![memory, connections_of(run, &controller)?])
}

/// Returns the number of a controller's connections to the apiserver.
fn connections_of(run: &Run<'_>, controller: &Controller) -> Result<Value> {
    let port = run.plane.url().rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let count = connections(controller.pid(), port.context("the apiserver's URL has no port")?)?;
    Ok(Unit::Count.of("connections to the apiserver", number(count)))
}
