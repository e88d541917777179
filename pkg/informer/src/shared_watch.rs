//! One list-and-watch loop with all its readers.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use portreeve_client::ApiErrorKind;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    Report, StatusReporter, Watch, WatchFailure,
    readers::{Reader, Readers},
};

/// The state that a loop shares with its readers. The loop ends when the last reader is dropped.
pub(crate) struct SharedWatch {
    pub(crate) watch: Watch,
    pub(crate) readers: Arc<Readers>,
    pub(crate) reporter: StatusReporter,
    /// The current term. Each new term starts a new list.
    pub(crate) terms: watch::Sender<u64>,
    pub(crate) crd_signal: CrdSignal,
    /// The versions that every reader decodes; unset if there is only one.
    pub(crate) versions: Arc<OnceLock<&'static [&'static str]>>,
    pub(crate) stopped: CancellationToken,
    has_loop: AtomicBool,
    _loop_guard: DropGuard,
}

/// Notifies a list-and-watch loop of changes of its resource's CRD.
#[derive(Clone, Default)]
pub(crate) struct CrdSignal {
    /// Wakes the loop while it waits for a resource that is not served.
    pub(crate) wake: Arc<Notify>,
    pub(crate) definition_deleted: Arc<AtomicBool>,
}

impl CrdSignal {
    pub(crate) fn notify(&self, deleted: bool) {
        self.definition_deleted.store(deleted, Ordering::Relaxed);
        self.wake.notify_waiters();
    }
}

impl SharedWatch {
    pub(crate) fn new(watch: Watch, stopped: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            watch,
            readers: Arc::default(),
            reporter: StatusReporter::default(),
            terms: watch::Sender::new(0),
            crd_signal: CrdSignal::default(),
            versions: Arc::default(),
            has_loop: AtomicBool::new(false),
            _loop_guard: stopped.clone().drop_guard(),
            stopped,
        })
    }

    /// Returns `true` to the first caller, who must start the loop.
    pub(crate) fn claim_start(&self) -> bool {
        !self.has_loop.swap(true, Ordering::Relaxed)
    }

    fn status_of(&self, reader: &Arc<Reader>) -> AttachmentStatus {
        AttachmentStatus {
            reporter: self.reporter.clone(),
            reader: Arc::clone(reader),
        }
    }

    /// Returns why a handler of an informer has missed changes, if one has.
    pub(crate) fn missed(&self) -> Option<String> {
        let required = self.readers.required();
        let mut failures = required.iter().filter_map(|reader| reader.state()?.failure);
        failures.next().map(|failure| failure.message)
    }

    /// Returns the state of the watch, or `None` if only optional readers use it.
    pub(crate) fn report(&self) -> Option<Report> {
        let required = self.readers.required();
        let statuses: Vec<_> = required.iter().map(|reader| self.status_of(reader)).collect();
        let status = self.reporter.status();
        let first = Report {
            name: self.watch.to_string(),
            resource: self.watch.resource.clone(),
            synced: required.iter().all(|reader| reader.is_synced()),
            // `None`, which means no contact, is the smallest.
            last_contact: statuses.iter().map(AttachmentStatus::last_contact).min()?,
            failure: statuses.iter().find_map(AttachmentStatus::failure),
            conversion: status.conversion,
            undecodable: Vec::new(),
            objects: 0,
            reconnects: status.reconnects,
            resource_version: status.resource_version,
            processing: self.reporter.processing(),
        };
        let models = required.iter().filter_map(|reader| reader.state());
        let mut report = models.fold(first, |mut report, state| {
            report.failure = report.failure.or(state.failure);
            report.undecodable.extend(state.undecodable);
            report.objects = report.objects.max(state.objects);
            report
        });
        report.undecodable.sort();
        report.undecodable.dedup_by(|(key, _), (before, _)| key == before);
        Some(report)
    }
}

/// A reader's attachment to a watch. The reader receives events until this is dropped.
#[must_use = "the reader receives nothing after this is dropped"]
pub struct Attachment {
    shared: Arc<SharedWatch>,
    reader: Arc<Reader>,
}

/// The status of a reader. Cheap to clone.
#[derive(Clone)]
pub struct AttachmentStatus {
    reporter: StatusReporter,
    reader: Arc<Reader>,
}

impl AttachmentStatus {
    /// Returns when the apiserver last responded to the watch or sent data on it, or when the
    /// reader's sink panicked, if that was earlier.
    pub fn last_contact(&self) -> Option<Instant> {
        let contact = self.reporter.last_contact()?;
        Some(self.reader.failing_since().map_or(contact, |since| since.min(contact)))
    }

    /// Returns the current failure, or `None` while the watch makes progress.
    pub fn failure(&self) -> Option<WatchFailure> {
        let panicked = || WatchFailure {
            kind: ApiErrorKind::Transient,
            message: "the sink panicked (see the log); it receives nothing until the next list".to_owned(),
        };
        self.reporter
            .failure()
            .or_else(|| self.reader.failing_since().map(|_| panicked()))
    }
}

impl Attachment {
    /// Attaches a reader to the watch.
    pub(crate) fn new(shared: Arc<SharedWatch>, reader: Arc<Reader>) -> Self {
        if reader.is_required() {
            shared.reporter.measure_processing();
        }
        shared.readers.attach(Arc::clone(&reader));
        let attachment = Self { shared, reader };
        // The resource may be served by now.
        attachment.wake();
        attachment
    }

    /// Returns the status of the reader.
    pub fn status(&self) -> AttachmentStatus {
        self.shared.status_of(&self.reader)
    }

    /// Retries at once if the loop waits for its resource to be served. Call it when discovery
    /// shows new resources.
    pub fn wake(&self) {
        self.shared.crd_signal.wake.notify_waiters();
    }

    /// Makes the watch list again, for all its readers. Call it when the reader's model may lack
    /// changes.
    pub fn relist(&self) {
        self.shared.readers.request_list(&self.reader);
    }

    /// Detaches the reader. When this returns, the sink is dropped and receives no further event.
    /// Must not be called from the sink, which would deadlock; the sink may drop the reader.
    pub fn detach(&self) {
        self.leave();
        self.reader.wait_until_idle();
    }

    fn leave(&self) {
        self.shared.readers.remove(&self.reader);
        self.reader.detach();
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Attachment").field(&self.shared.watch).finish()
    }
}
