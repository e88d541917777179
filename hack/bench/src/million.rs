//! A graph of a million objects, without a cluster: the memory per object, and the rates of
//! additions, changes and removals.
//!
//! [`fill`] runs in its own process. A process does not return all freed memory to the kernel, so
//! earlier measurements in the same process would distort the numbers.

use std::collections::HashMap;
use std::env;
use std::process;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use portreeve_garbagecollector_graph as collector;
use portreeve_testing::Process;
use serde::{Deserialize, Serialize};

use crate::bench::Bench;
use crate::idle::kibibytes;
use crate::plan::Step;
use crate::resource_usage::Memory;
use crate::rows::{Measure, Row, Sample, Subject};
use crate::simulated_cluster::{Kind, Owner, SimulatedObject, object};

/// How long additions, changes and removals of a million objects may take, fifty times the target.
const LIMIT: Duration = Duration::from_mins(5);
/// The number of objects in a batch. A batch is built before the graph processes it, so that its
/// construction is not timed; it is small, so that it takes little memory.
const BATCH: usize = 10_000;

/// A graph under measurement.
trait Graph: Default {
    /// One event of the input. Its construction is not timed.
    type Event: From<SimulatedObject>;

    /// Adds or changes the object of an event. The graph may take the event out of the option.
    fn observe(&mut self, event: &mut Option<Self::Event>);
    /// Removes the object of an event. The graph may take the event out of the option.
    fn remove(&mut self, event: &mut Option<Self::Event>);
    fn len(&self) -> usize;
}

/// The result of filling a graph.
#[derive(Debug, Deserialize, Serialize)]
struct Filled {
    resident_kibibytes: u64,
    adding: Duration,
    changing: Duration,
    removing: Duration,
}

pub(crate) async fn measure(bench: &Bench, step: &Step) -> Result<Vec<Sample>> {
    let count = bench.options.count(Row::Graph);
    let folder = tempfile::tempdir().context("failed to create a temporary folder")?;
    let log = folder.path().join("log");
    let program = env::current_exe().context("failed to find this program")?;
    let (subject, number) = (format!("--fill={}", step.subject.name()), format!("--count={count}"));
    let args = ["no-daemon", &subject, &number];
    let process = Process::spawn("a graph", &program, args, &[], &log)?;
    let status = process.wait(LIMIT).await?;
    ensure!(
        status.success(),
        "the process that fills the graph exited with {status}{}",
        process.log_tail()
    );
    let line = process.wait_for_log(LIMIT, |line| line.starts_with('{')).await?;
    let filled: Filled = serde_json::from_str(&line).context("failed to parse the result")?;
    let all = f64::from(u32::try_from(count).context("too many objects")?);
    let values = [
        (Measure::BytesANode, kibibytes(filled.resident_kibibytes) * 1024.0 / all),
        (Measure::AddedASecond, all / filled.adding.as_secs_f64()),
        (Measure::ChangedASecond, all / filled.changing.as_secs_f64()),
        (Measure::RemovedASecond, all / filled.removing.as_secs_f64()),
    ];
    let sample = |(measure, value)| Sample {
        row: Row::Graph,
        subject: step.subject,
        measure,
        value,
    };
    Ok(values.map(sample).into())
}

/// Fills one graph in this process and prints the result to stdout.
pub(crate) fn fill(subject: Subject, count: usize) -> Result<()> {
    let filled = match subject {
        Subject::Floor => filled::<MapGraph>(count)?,
        Subject::Portreeve => filled::<CollectorGraph>(count)?,
        _ => bail!("{} has no graph", subject.name()),
    };
    println!("{}", serde_json::to_string(&filled)?);
    Ok(())
}

fn filled<G: Graph>(count: usize) -> Result<Filled> {
    // Builds one batch in advance, so that the allocator already has the memory of a batch when the
    // measurement begins.
    drop(batch::<G::Event>(0, count, 0));
    let before = Memory::of(process::id())?.resident;
    let mut graph = G::default();
    let adding = timed(count, 0, |event| graph.observe(event));
    ensure!(
        graph.len() == count,
        "{} of {count} objects are in the graph",
        graph.len()
    );
    let resident_kibibytes = Memory::of(process::id())?.resident.saturating_sub(before);
    let changing = timed(count, 1, |event| graph.observe(event));
    ensure!(graph.len() == count, "{} of {count} objects are left", graph.len());
    let removing = timed(count, 1, |event| graph.remove(event));
    ensure!(graph.len() == 0, "{} objects are left in the graph", graph.len());
    Ok(Filled {
        resident_kibibytes,
        adding,
        changing,
        removing,
    })
}

/// Runs `apply` on every object of a round and returns the total time. Building the events and
/// freeing what `apply` leaves of them are not timed.
fn timed<E: From<SimulatedObject>>(count: usize, round: usize, mut apply: impl FnMut(&mut Option<E>)) -> Duration {
    let mut took = Duration::ZERO;
    for start in (0..count).step_by(BATCH) {
        let mut batch: Vec<Option<E>> = batch(start, count, round).into_iter().map(Some).collect();
        let started = Instant::now();
        for event in &mut batch {
            apply(event);
        }
        took += started.elapsed();
        drop(batch);
    }
    took
}

fn batch<E: From<SimulatedObject>>(start: usize, count: usize, round: usize) -> Vec<E> {
    let indexes = start..count.min(start + BATCH);
    indexes.map(|index| E::from(object(index, count, round))).collect()
}

/// The simplest graph: a map of objects by UID, with the UIDs of each object's dependents.
#[derive(Default)]
struct MapGraph {
    objects: HashMap<String, MapNode>,
}

#[expect(dead_code, reason = "the fields that a collector reads take memory")]
struct MapNode {
    kind: Kind,
    namespace: String,
    name: String,
    version: u64,
    owners: Vec<Owner>,
    dependents: Vec<String>,
}

impl Graph for MapGraph {
    type Event = SimulatedObject;

    fn observe(&mut self, event: &mut Option<SimulatedObject>) {
        let Some(object) = event.take() else { return };
        if let Some(node) = self.objects.get_mut(&object.uid) {
            node.version = object.version;
            return;
        }
        // Owners precede their dependents in the input.
        if let Some(owner) = object.owner.as_ref().and_then(|owner| self.objects.get_mut(&owner.uid)) {
            owner.dependents.push(object.uid.clone());
        }
        let node = MapNode {
            kind: object.kind,
            namespace: object.namespace,
            name: object.name,
            version: object.version,
            owners: object.owner.into_iter().collect(),
            dependents: Vec::new(),
        };
        self.objects.insert(object.uid, node);
    }

    fn remove(&mut self, event: &mut Option<SimulatedObject>) {
        let Some(object) = event.take() else { return };
        if let Some(owner) = object.owner.and_then(|owner| self.objects.get_mut(&owner.uid)) {
            owner.dependents.retain(|uid| *uid != object.uid);
        }
        self.objects.remove(&object.uid);
    }

    fn len(&self) -> usize {
        self.objects.len()
    }
}

/// The garbage collector's graph. The follow-ups of each change are dropped, because nothing is
/// collected.
struct CollectorGraph {
    graph: collector::Graph,
    /// The monitor of each kind, indexed by `Kind as usize`.
    monitors: [collector::Monitor; 4],
    follow_ups: collector::FollowUps,
}

/// An object as its watch decodes it.
struct Change {
    kind: Kind,
    object: collector::PartialObject,
}

impl From<SimulatedObject> for Change {
    fn from(object: SimulatedObject) -> Self {
        let reference = |owner: Owner| {
            let (api_version, kind) = owner.kind.names();
            collector::Reference {
                api_version: api_version.into(),
                kind: kind.into(),
                name: owner.name.into(),
                uid: owner.uid.into(),
                blocks: true,
            }
        };
        let metadata = collector::PartialMetadata {
            namespace: Some(object.namespace.into()),
            name: object.name.into(),
            uid: object.uid.into(),
            resource_version: object.version.to_string().into(),
            owner_references: object.owner.map(reference).into_iter().collect(),
            ..collector::PartialMetadata::default()
        };
        Self {
            kind: object.kind,
            object: collector::PartialObject { metadata },
        }
    }
}

impl Default for CollectorGraph {
    fn default() -> Self {
        let mut graph = collector::Graph::default();
        let monitors = Kind::ALL.map(|kind| {
            let (api_version, kind) = kind.names();
            graph.add_monitor(api_version, kind)
        });
        Self {
            graph,
            monitors,
            follow_ups: collector::FollowUps::default(),
        }
    }
}

impl CollectorGraph {
    fn drop_follow_ups(&mut self) {
        let collector::FollowUps {
            attempt,
            orphan,
            invalid,
            cascades_started,
            cascades_finished,
        } = &mut self.follow_ups;
        attempt.clear();
        orphan.clear();
        invalid.clear();
        cascades_started.clear();
        cascades_finished.clear();
    }
}

impl Graph for CollectorGraph {
    type Event = Change;

    fn observe(&mut self, event: &mut Option<Change>) {
        let Some(Change { kind, object }) = event else { return };
        let monitor = self.monitors[*kind as usize];
        self.graph.observe(monitor, object, &mut self.follow_ups);
        self.drop_follow_ups();
    }

    fn remove(&mut self, event: &mut Option<Change>) {
        let Some(Change { kind, object }) = event else { return };
        let monitor = self.monitors[*kind as usize];
        self.graph.deleted(monitor, object, &mut self.follow_ups);
        self.drop_follow_ups();
    }

    fn len(&self) -> usize {
        let nodes = self.graph.statistics().nodes;
        nodes.iter().map(|(_, _, observed, _)| *observed as usize).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_is_filled_changed_and_emptied() {
        let filled = filled::<MapGraph>(25_000).unwrap();
        assert!(filled.resident_kibibytes > 0);
        assert!(filled.adding > Duration::ZERO && filled.removing > Duration::ZERO);
    }
}
