//! Benchmarks of the cost of a decoded event: storing and indexing the object, and producing the
//! change for subscribers.
//!
//! The target is 100,000 events per second.

#![expect(clippy::expect_used, reason = "the benchmark creates its own objects")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use portreeve_api::Metadata;
use portreeve_informer::{Event, Projection, Store, indexes};
use serde::Deserialize;
use serde_json::{json, value::RawValue};

/// The number of objects in the store.
const OBJECTS: usize = 10_000;
/// The number of events per measurement.
const EVENTS: usize = 1000;

/// The part of a Deployment that a controller stores.
#[derive(Clone, Deserialize)]
struct Deployment {
    metadata: Metadata,
    #[expect(dead_code, reason = "moving and freeing the field is part of the cost")]
    spec: Box<RawValue>,
}

impl Projection for Deployment {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

fn deployment(index: usize, version: usize) -> Deployment {
    let name = format!("deployment-{index:05}");
    let labels = json!({"app": "nginx", "controller": name});
    let object = json!({
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": format!("0d1b3a5c-9f0e-4c61-8a53-{index:012}"),
            "resourceVersion": version.to_string(),
            "generation": 1,
            "creationTimestamp": "2026-03-10T12:34:56Z",
            "labels": labels,
            "ownerReferences": [{
                "apiVersion": "samplecontroller.k8s.io/v1alpha1",
                "kind": "Foo",
                "name": name,
                "uid": format!("5c0d1b3a-9f0e-4c61-8a53-{index:012}"),
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "nginx", "image": "nginx:latest"}]},
            },
        },
    });
    serde_json::from_str(&object.to_string()).expect("the object is a Deployment")
}

/// Returns a synced store with an index by controlling owner.
fn store() -> Store<Deployment> {
    let mut store = Store::default();
    store.add_index("controller", Arc::new(indexes::by_controller));
    store.apply(Event::Relisting);
    for index in 0..OBJECTS {
        store.apply(Event::Listed(deployment(index, index + 1)));
    }
    store.apply(Event::Synced);
    store
}

fn events(
    event: impl Fn(Deployment) -> Event<Deployment>,
    indexes: impl Iterator<Item = usize>,
    version: usize,
) -> Vec<Event<Deployment>> {
    indexes.map(|index| event(deployment(index, version + index))).collect()
}

fn apply(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("store");
    group.throughput(Throughput::Elements(EVENTS as u64));
    let positions = || (0..OBJECTS).step_by(OBJECTS / EVENTS);

    let mut changing = store();
    let mut version = OBJECTS;
    group.bench_function("changed", |bencher| {
        bencher.iter_batched(
            || {
                version += OBJECTS;
                events(Event::Applied, positions(), version)
            },
            |events| {
                for event in events {
                    black_box(changing.apply(event));
                }
            },
            BatchSize::LargeInput,
        );
    });

    let mut growing = store();
    group.bench_function("added and deleted", |bencher| {
        bencher.iter_batched(
            || {
                let new = || OBJECTS..OBJECTS + EVENTS / 2;
                let mut batch = events(Event::Applied, new(), OBJECTS);
                batch.extend(events(Event::Deleted, new(), 2 * OBJECTS));
                batch
            },
            |events| {
                for event in events {
                    black_box(growing.apply(event));
                }
            },
            BatchSize::LargeInput,
        );
    });
}

criterion_group!(benches, apply);
criterion_main!(benches);
