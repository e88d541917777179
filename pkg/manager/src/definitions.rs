//! `--install-crds`: server-side apply of a controller's CRDs, and the wait until they are served.
//!
//! All controllers start once their CRDs are installed. A CRD that cannot be installed, such as one
//! that is being deleted, delays only the controllers that need it.
//!
//! All writes go through the applier, so the fence, the preconditions and the dry run apply here as
//! well.

mod decide;
mod definition;
mod obstacle;
mod progress;

use std::{sync::Arc, time::Duration};

use http::Request;
use kube::Client;
use portreeve_api::{CRDS, ObjectKey};
use portreeve_client::{ApiErrorKind, error_chain};
use portreeve_reconcile::{Applied, Applier, Effect, EventContent, Plan, Shutdown, Target};
use tokio::time::Instant;

pub(crate) use self::progress::InstallProgress;
use self::{
    decide::{Step, decide},
    definition::Definition,
    obstacle::Obstacle,
    progress::Waiting,
};

/// How long a CRD may be neither installed nor refused before this counts as an obstacle.
const LIMIT: Duration = Duration::from_secs(30);
/// How long requests may fail before this counts as an obstacle.
const FAILURE_LIMIT: Duration = Duration::from_secs(5);
/// The first and the longest pause between two checks. The pause doubles each time.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// The longest pause while there is an obstacle.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Installs the CRDs of one controller.
pub(crate) struct Installer {
    pub(crate) applier: Arc<Applier>,
    pub(crate) controller: &'static str,
    /// The CRDs as YAML.
    pub(crate) crds: &'static [&'static str],
    pub(crate) progress: InstallProgress,
}

impl Installer {
    /// Applies each CRD and waits until it is established, however long that takes. Returns whether
    /// all are installed: a stop request takes effect between two writes and never interrupts one.
    ///
    /// # Errors
    ///
    /// Returns an error when the YAML is invalid, which is a bug of the controller.
    pub(crate) async fn install(self, stop: &Shutdown) -> Result<bool, serde_saphyr::Error> {
        let waiting = self.progress.wait(self.controller);
        for yaml in self.crds {
            for wanted in Definition::read_all(yaml, &self.applier.manager)? {
                let installation = Installation {
                    applier: &self.applier,
                    waiting: &waiting,
                    name: wanted.name(),
                    written: false,
                    since: Instant::now(),
                    failing_since: None,
                };
                if !installation.run(&wanted, stop).await {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// The installation of one CRD.
struct Installation<'a> {
    applier: &'a Applier,
    waiting: &'a Waiting,
    name: &'a str,
    written: bool,
    /// When the CRD was last written, or first read.
    since: Instant,
    /// When the requests began to fail.
    failing_since: Option<Instant>,
}

impl Installation<'_> {
    async fn run(mut self, wanted: &Definition, stop: &Shutdown) -> bool {
        let (mut pause, longest) = PAUSES;
        loop {
            let after = match self.step(wanted).await {
                Progress::Installed => break,
                Progress::Waiting { after } => after,
            };
            tokio::select! {
                () = tokio::time::sleep(pause.max(after)) => {}
                () = stop.requested() => return false,
            }
            pause = (pause * 2).min(if self.waiting.is_blocked() {
                LONGEST_PAUSE
            } else {
                longest
            });
        }
        self.waiting.set(self.name, None);
        true
    }

    /// Reads the CRD and writes it if necessary.
    async fn step(&mut self, wanted: &Definition) -> Progress {
        let present = match read(&self.applier.client, self.name).await {
            Ok(present) => present,
            Err(error) => {
                return self.failed(
                    &error,
                    Duration::ZERO,
                    ApiErrorKind::of(&error) != ApiErrorKind::Transient,
                );
            }
        };
        let step = decide(wanted, present.as_ref(), self.written);
        match step {
            Step::Done => return Progress::Installed,
            Step::Leave(versions) => {
                tracing::error!(
                    definition = self.name,
                    versions,
                    "skipping CustomResourceDefinition: the cluster's CRD has versions that this program does not know; install a \
                     matching one with `portreeve crds`, or start without --install-crds"
                );
                return Progress::Installed;
            }
            Step::Wait(reason) if self.since.elapsed() > LIMIT => {
                self.blocked(present.as_ref(), Obstacle::NotEstablished(reason)).await;
            }
            Step::Wait(_) => {
                self.waiting.set(self.name, None);
            }
            Step::Blocked(obstacle) => self.blocked(present.as_ref(), obstacle).await,
            Step::Write(plan) => return self.write(&plan).await,
        }
        self.failing_since = None;
        Progress::Waiting { after: Duration::ZERO }
    }

    async fn write(&mut self, plan: &Plan) -> Progress {
        announce(self.applier, plan);
        match self.applier.run(plan).await {
            Applied::Done if self.applier.dry_run => return Progress::Installed,
            Applied::Done => {
                self.written = true;
                self.since = Instant::now();
                self.failing_since = None;
                self.waiting.set(self.name, None);
            }
            Applied::Refused(error) => return self.failed(&error, Duration::ZERO, true),
            Applied::Stale(error) => return self.failed(&error, Duration::ZERO, false),
            Applied::Failed { error, after, .. } => return self.failed(&error, after, false),
        }
        Progress::Waiting { after: Duration::ZERO }
    }

    /// Reports a failed request: at once if it was rejected, and otherwise if requests fail for a
    /// while. A definition that changes with each read, or a webhook that answers with a conflict,
    /// must not stop the installation without a word.
    fn failed(&mut self, error: &(dyn std::error::Error + 'static), after: Duration, is_rejected: bool) -> Progress {
        let since = *self.failing_since.get_or_insert_with(Instant::now);
        if is_rejected || since.elapsed() > FAILURE_LIMIT {
            self.set_obstacle(Obstacle::Failed(error_chain(error)));
        } else {
            tracing::warn!(
                definition = self.name,
                err = error_chain(error),
                "retrying failed installation of CustomResourceDefinition"
            );
        }
        Progress::Waiting { after }
    }

    /// Reports an obstacle in the state of the CRD, also by an event on it.
    async fn blocked(&self, present: Option<&Definition>, obstacle: Obstacle) {
        let message = obstacle.explain(self.name);
        let reason = obstacle.label();
        if !self.set_obstacle(obstacle) {
            return;
        }
        let Some(metadata) = present.map(|present| &present.metadata) else {
            return;
        };
        let target = Target {
            resource: CRDS,
            key: ObjectKey::cluster(self.name),
            uid: metadata.uid.as_deref().unwrap_or_default().into(),
            version: metadata.resource_version.as_deref().unwrap_or_default().into(),
        };
        let content = EventContent::warning("CustomResourceDefinitionNotInstalled", "Install", message);
        let event = Effect::Event(target, content.report_once(reason));
        self.applier.run(&Plan::of(vec![event])).await;
    }

    /// Records an obstacle, and logs it if it is new. Returns whether it is.
    fn set_obstacle(&self, obstacle: Obstacle) -> bool {
        let message = obstacle.explain(self.name);
        let is_new = self.waiting.set(self.name, Some(obstacle));
        if is_new {
            let (definition, controller) = (self.name, self.waiting.controller());
            tracing::error!(
                definition,
                controller,
                reason = message,
                "delaying the start of the controller: its CustomResourceDefinition cannot be installed"
            );
        }
        is_new
    }
}

/// The result of one step.
enum Progress {
    /// The controller can start.
    Installed,
    /// Another step follows, no sooner than this.
    Waiting { after: Duration },
}

/// Reads a CRD. Returns `None` if it does not exist.
async fn read(client: &Client, name: &str) -> kube::Result<Option<Definition>> {
    let path = format!("{}/{name}", CRDS.collection_path(None));
    let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
    match client.request(request).await {
        Ok(definition) => Ok(Some(definition)),
        Err(error) if ApiErrorKind::of(&error) == ApiErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn announce(applier: &Applier, plan: &Plan) {
    if applier.dry_run {
        tracing::info!(%plan, "dry run: would install CustomResourceDefinition");
    } else {
        tracing::info!(%plan, "installing CustomResourceDefinition");
    }
}
