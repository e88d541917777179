//! Events on objects: queued, best-effort, never in the way of a plan.

use std::{collections::HashMap, sync::Arc};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube_runtime::events::{Event, EventType, Recorder, Reporter};
use prometheus::{IntCounter, Registry};
use tokio::sync::mpsc;

use crate::{Note, NoteType, Shutdown, Target};

/// How many events may wait. A burst over that is not worth its memory: events are hints for people, conditions are the truth.
const WAITING: usize = 1_000;

/// Takes events in. Cheap to clone.
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<Queued>,
    dropped: IntCounter,
}

/// Writes what was taken in.
pub struct EventWriter {
    queue: mpsc::Receiver<Queued>,
    client: Client,
    instance: String,
}

struct Queued {
    controller: Arc<str>,
    regarding: ObjectReference,
    event: Event,
}

impl Events {
    /// The two ends of a queue of events. `instance` says which replica reports.
    ///
    /// # Errors
    ///
    /// Fails when the registry already holds the counter of dropped events.
    pub fn channel(
        client: Client,
        instance: impl Into<String>,
        registry: &Registry,
    ) -> Result<(Self, EventWriter), prometheus::Error> {
        let dropped = IntCounter::new(
            "portreeve_events_dropped_total",
            "Number of Kubernetes events that were not written because too many were waiting.",
        )?;
        registry.register(Box::new(dropped.clone()))?;
        let (sender, receiver) = mpsc::channel(WAITING);
        let writer = EventWriter {
            queue: receiver,
            client,
            instance: instance.into(),
        };
        Ok((Self { queue: sender, dropped }, writer))
    }

    /// Queues one event, or drops it when too many wait.
    pub fn send(&self, controller: &str, target: &Target, note: &Note) {
        let queued = Queued {
            controller: controller.into(),
            regarding: ObjectReference {
                api_version: Some(target.resource.api_version()),
                kind: Some(target.resource.kind.to_string()),
                name: Some(target.key.name.to_string()),
                namespace: target.key.namespace.as_deref().map(str::to_owned),
                uid: Some(target.uid.to_string()),
                ..ObjectReference::default()
            },
            event: Event {
                type_: match note.type_ {
                    NoteType::Normal => EventType::Normal,
                    NoteType::Warning => EventType::Warning,
                },
                reason: note.reason.to_owned(),
                note: Some(note.message.clone()),
                action: note.action.to_owned(),
                secondary: None,
            },
        };
        if self.queue.try_send(queued).is_err() {
            self.dropped.inc();
        }
    }
}

impl EventWriter {
    /// Writes events until `stop` is requested, then what is still waiting.
    pub async fn run(mut self, stop: Shutdown) {
        let mut recorders: HashMap<Arc<str>, Recorder> = HashMap::new();
        loop {
            let queued = tokio::select! {
                biased;
                queued = self.queue.recv() => queued,
                () = stop.requested() => {
                    // Nothing is added any more, and the loop goes on until nothing is left.
                    self.queue.close();
                    self.queue.recv().await
                }
            };
            let Some(Queued {
                controller,
                regarding,
                event,
            }) = queued
            else {
                return;
            };
            let recorder = recorders.entry(Arc::clone(&controller)).or_insert_with(|| {
                let reporter = Reporter {
                    controller: controller.to_string(),
                    instance: Some(self.instance.clone()),
                };
                Recorder::new(self.client.clone(), reporter)
            });
            if let Err(error) = recorder.publish(&event, &regarding).await {
                tracing::debug!(reason = event.reason, %error, "failed to write an event");
            }
        }
    }
}
