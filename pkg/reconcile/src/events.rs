//! Events on objects: queued, best-effort, never in the way of a plan.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube_runtime::events::{Event, EventType, Recorder, Reporter};
use parking_lot::Mutex;
use prometheus::{IntCounter, Registry};
use tokio::{sync::mpsc, time::Instant};

use crate::{Note, NoteType, Shutdown, Target};

/// How many events may wait. A burst over that is not worth its memory: events are hints for people, conditions are the truth.
const WAITING: usize = 1_000;
/// How long an event waits before it is written. Events come in bursts together with the work that they tell of, and the work goes
/// first.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many notes that are sent once are remembered; of more the oldest may be sent again.
const REMEMBERED: usize = 10_000;

/// Takes events in. Cheap to clone.
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<Queued>,
    dropped: IntCounter,
    said: Arc<Mutex<Said>>,
}

/// What was said of what, as hashes.
#[derive(Default)]
struct Said {
    known: HashSet<u64>,
    order: VecDeque<u64>,
}

impl Said {
    fn remember(&mut self, what: u64) {
        if self.known.insert(what) {
            self.order.push_back(what);
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

/// Writes what was taken in.
pub struct EventWriter {
    queue: mpsc::Receiver<Queued>,
    client: Client,
    instance: String,
}

struct Queued {
    since: Instant,
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
        let said = Arc::default();
        Ok((
            Self {
                queue: sender,
                dropped,
                said,
            },
            writer,
        ))
    }

    /// Queues one event, or drops it when too many wait. A note that is for once is sent once.
    pub fn send(&self, controller: &str, target: &Target, note: &Note) {
        let subject = note.once.as_ref().map(|subject| {
            let mut hasher = DefaultHasher::new();
            (&target.uid, note.reason, subject).hash(&mut hasher);
            hasher.finish()
        });
        if subject.is_some_and(|subject| self.said.lock().known.contains(&subject)) {
            return;
        }
        let queued = Queued {
            since: Instant::now(),
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
        } else if let Some(subject) = subject {
            self.said.lock().remember(subject);
        }
    }
}

impl EventWriter {
    /// Writes events, each a second after it was sent, until `stop` is requested; then what is still waiting, at once.
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
                since,
                controller,
                regarding,
                event,
            }) = queued
            else {
                return;
            };
            tokio::select! {
                () = tokio::time::sleep_until(since + PATIENCE) => {}
                () = stop.requested() => {}
            }
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
