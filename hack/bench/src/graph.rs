//! A graph of a million objects, without a cluster: the memory per object, and the rates of
//! additions, changes and removals.
//!
//! [`fill`] runs in its own process. A process does not return all freed memory to the kernel, so
//! earlier measurements in the same process would distort the numbers.

use std::collections::HashMap;
use std::time::{Duration, Instant};
use std::{env, mem, process};

use anyhow::{Context, Result, bail, ensure};
use portreeve_garbagecollector_graph as collector;
use portreeve_testing::Process;

use crate::options::Options;
use crate::statistics::{Unit, Value, number};
use crate::tables::{Subject, row};
use crate::usage::Memory;

/// The time limit, fifty times the target.
const LIMIT: Duration = Duration::from_mins(5);
/// The number of objects in a batch. A batch is built before the graph processes it, so that its
/// construction is not timed; it is small, so that it takes little memory.
const BATCH: usize = 10_000;

/// The `apiVersion` and the kind of every kind.
const KINDS: [(&str, &str); 4] = [
    ("apps/v1", "Deployment"),
    ("apps/v1", "ReplicaSet"),
    ("v1", "Pod"),
    ("v1", "ConfigMap"),
];
/// The objects of an application, as indexes into [`KINDS`]: a Deployment, its old ReplicaSet, its
/// current one with six Pods, and a ConfigMap without an owner.
const PARTS: [usize; 10] = [0, 1, 1, 2, 2, 2, 2, 2, 2, 3];
/// The number of applications in a namespace.
const APPLICATIONS_PER_NAMESPACE: usize = 100;

pub(crate) async fn measure(subject: Subject, count: usize) -> Result<Vec<Value>> {
    let folder = tempfile::tempdir().context("failed to create a temporary folder")?;
    let program = env::current_exe().context("failed to find this program")?;
    let (fill, of) = (format!("--fill={}", subject.name()), format!("--count={count}"));
    let args = ["no-daemon", &fill, &of];
    let process = Process::spawn("a graph", &program, args, &[], &folder.path().join("log"))?;
    let status = process.wait(LIMIT).await?;
    let log = process.log_tail();
    ensure!(status.success(), "it exited with {status}{log}");
    let line = process.wait_for_log(LIMIT, |line| line.starts_with('[')).await?;
    let filled: [f64; 4] = serde_json::from_str(&line).context("failed to parse the result")?;
    let [resident, adding, changing, removing] = filled;
    let count = number(count);
    Ok(vec![
        Unit::Bytes.of("memory an object", resident * 1024.0 / count),
        Unit::PerSecond.of("objects added", count / adding),
        Unit::PerSecond.of("objects changed", count / changing),
        Unit::PerSecond.of("objects removed", count / removing),
    ])
}

/// Fills one graph in this process and prints the result to stdout.
pub(crate) fn fill(subject: Subject, options: &Options) -> Result<()> {
    let count = row("graph").map_or(0, |row| options.count(row));
    let filled = match subject {
        Subject::Floor => filled::<MapGraph>(count)?,
        Subject::Portreeve => filled::<CollectorGraph>(count)?,
        _ => bail!("{} has no graph", subject.name()),
    };
    println!("{}", serde_json::to_string(&filled)?);
    Ok(())
}

/// Returns the resident memory in KiB, and the seconds of additions, changes and removals.
fn filled<G: Graph>(count: usize) -> Result<[f64; 4]> {
    // Builds one batch in advance, so that the allocator already has the memory of a batch when the
    // measurement begins.
    drop(batch(0, count, 0));
    let before = Memory::of(process::id())?.resident;
    let mut graph = G::default();
    let adding = timed(count, 0, |event| graph.apply(event, false));
    let (added, resident) = (graph.len(), Memory::of(process::id())?.resident - before);
    let changing = timed(count, 1, |event| graph.apply(event, false));
    ensure!((added, graph.len()) == (count, count), "the graph lacks objects");
    let removing = timed(count, 1, |event| graph.apply(event, true));
    ensure!(graph.len() == 0, "{} objects are left in the graph", graph.len());
    Ok([resident, adding, changing, removing])
}

/// Runs `apply` on every object of a round and returns the total time in seconds. Building the
/// events and freeing what `apply` leaves of them are not timed.
fn timed(count: usize, round: usize, mut apply: impl FnMut(&mut Event)) -> f64 {
    let mut took = Duration::ZERO;
    for start in (0..count).step_by(BATCH) {
        let mut batch = batch(start, count, round);
        let started = Instant::now();
        batch.iter_mut().for_each(&mut apply);
        took += started.elapsed();
        drop(batch);
    }
    took.as_secs_f64()
}

/// An event of a watch: an object, and its kind as an index into [`KINDS`].
struct Event {
    kind: usize,
    object: collector::PartialObject,
}

/// Returns the events of a batch in a cluster of `count` objects, after `round` changes of each
/// object. The same arguments give the same events.
fn batch(start: usize, count: usize, round: usize) -> Vec<Event> {
    let indexes = start..count.min(start + BATCH);
    indexes.map(|index| event(index, index + count * round + 1)).collect()
}

fn event(index: usize, version: usize) -> Event {
    let (application, part) = (index / PARTS.len(), index % PARTS.len());
    let owner = [None, Some(0), Some(2), None][PARTS[part]].map(|part: usize| {
        let (api_version, kind) = KINDS[PARTS[part]];
        collector::Reference {
            api_version: api_version.into(),
            kind: kind.into(),
            name: name(application, part).into(),
            uid: uid(application * PARTS.len() + part).into(),
            blocks: true,
        }
    });
    let metadata = collector::PartialMetadata {
        namespace: Some(format!("team-{:04}", application / APPLICATIONS_PER_NAMESPACE).into()),
        name: name(application, part).into(),
        uid: uid(index).into(),
        resource_version: version.to_string().into(),
        owner_references: owner.into_iter().collect(),
        ..collector::PartialMetadata::default()
    };
    Event {
        kind: PARTS[part],
        object: collector::PartialObject { metadata },
    }
}

/// Returns a name as long as those of real controllers.
fn name(application: usize, part: usize) -> String {
    let hash = mix(application as u64) >> 32;
    match PARTS[part] {
        0 => format!("application-{application:06}"),
        1 => format!("application-{application:06}-{hash:08x}{part}"),
        2 => format!("application-{application:06}-{hash:08x}2-{part:05x}"),
        _ => format!("application-{application:06}-settings"),
    }
}

/// Returns a UUID that is unique to the index.
fn uid(index: usize) -> String {
    let (high, low) = (mix(index as u64), mix(!(index as u64)));
    let (first, second, third) = (high >> 32, high >> 16 & 0xffff, high & 0xfff);
    format!(
        "{first:08x}-{second:04x}-4{third:03x}-8{:03x}-{:012x}",
        low >> 52,
        low << 16 >> 16
    )
}

/// Returns pseudorandom bits (the finalizer of `SplitMix64`), so that a map cannot profit from the
/// order of keys.
fn mix(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// A graph under measurement.
trait Graph: Default {
    /// Adds, changes or removes the object of an event, and may take it out of the event.
    fn apply(&mut self, event: &mut Event, is_removal: bool);
    fn len(&self) -> usize;
}

/// The simplest graph: a map of objects by UID, with the UIDs of each object's dependents.
#[derive(Default)]
struct MapGraph(HashMap<Box<str>, MapNode>);

#[expect(dead_code, reason = "the fields that a collector reads take memory")]
struct MapNode {
    kind: usize,
    namespace: Option<Box<str>>,
    name: Box<str>,
    version: Box<str>,
    owners: Vec<collector::Reference>,
    dependents: Vec<Box<str>>,
}

impl Graph for MapGraph {
    fn apply(&mut self, event: &mut Event, is_removal: bool) {
        let object = mem::take(&mut event.object.metadata);
        if let Some(node) = self.0.get_mut(&object.uid).filter(|_| !is_removal) {
            node.version = object.resource_version;
            return;
        }
        // Owners precede their dependents in the input.
        for reference in &object.owner_references {
            match self.0.get_mut(&reference.uid) {
                Some(owner) if is_removal => owner.dependents.retain(|uid| *uid != object.uid),
                Some(owner) => owner.dependents.push(object.uid.clone()),
                None => {}
            }
        }
        if is_removal {
            self.0.remove(&object.uid);
            return;
        }
        let node = MapNode {
            kind: event.kind,
            namespace: object.namespace,
            name: object.name,
            version: object.resource_version,
            owners: object.owner_references,
            dependents: Vec::new(),
        };
        self.0.insert(object.uid, node);
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// The garbage collector's graph.
struct CollectorGraph {
    graph: collector::Graph,
    /// The monitor of each of [`KINDS`].
    monitors: [collector::Monitor; 4],
    follow_ups: collector::FollowUps,
}

impl Default for CollectorGraph {
    fn default() -> Self {
        let mut graph = collector::Graph::default();
        Self {
            monitors: KINDS.map(|(api_version, kind)| graph.add_monitor(api_version, kind)),
            graph,
            follow_ups: collector::FollowUps::default(),
        }
    }
}

impl Graph for CollectorGraph {
    fn apply(&mut self, event: &mut Event, is_removal: bool) {
        let (monitor, follow_ups) = (self.monitors[event.kind], &mut self.follow_ups);
        if is_removal {
            self.graph.deleted(monitor, &event.object, follow_ups);
        } else {
            self.graph.observe(monitor, &event.object, follow_ups);
        }
        // Nothing is collected.
        follow_ups.attempt.clear();
        follow_ups.orphan.clear();
        follow_ups.invalid.clear();
        follow_ups.cascades_started.clear();
        follow_ups.cascades_finished.clear();
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
    fn graphs_are_filled_changed_and_emptied() {
        assert!(filled::<MapGraph>(25_000).unwrap()[0] > 0.0);
        assert!(filled::<CollectorGraph>(25_000).unwrap()[3] > 0.0);
    }
}
