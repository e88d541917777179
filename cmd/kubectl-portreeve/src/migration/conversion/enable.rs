//! `kubectl portreeve conversion enable`.
//!
//! While the version is not served and no object is stored in it, the apiserver never calls the
//! webhook. So the webhook is set first, and may still lack its CA or its endpoints.

use std::{fs, path::Path, time::Duration};

use portreeve_client::error_chain;
use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    super::{Error, cluster::Cluster, definition::Definition, migrate::print, progress::report},
    EnableArgs,
    probe::{Probe, ProbeError},
    signals::Signals,
    webhook::{conversion, has_ca},
};

/// The time between two checks.
const INTERVAL: Duration = Duration::from_millis(500);

/// Runs `kubectl portreeve conversion enable`.
pub(super) async fn enable(args: &EnableArgs, cluster: &Cluster) -> Result<(), Error> {
    let ca = args.ca_file.as_deref().map(read_ca).transpose()?;
    let sample = args.sample.as_deref().map(read_manifest).transpose()?;
    let before = cluster.first_read().await?;
    if before.versions.len() < 2 {
        return Err(Error::OneVersion {
            name: cluster.name.clone(),
            version: before.newest().to_owned(),
        });
    }
    let version = before.newest();
    let stopped = || Error::Stopped {
        name: cluster.name.clone(),
        version: version.to_owned(),
        former: address_of(&before.conversion).to_string(),
    };
    // A signal must not leave a version that does not work.
    let mut signals = Signals::new();
    let changed = cluster.change(|definition| {
        let (service, url) = (args.address.service.as_ref(), args.address.url.as_ref());
        let wanted = conversion(&cluster.name, service, url, ca.as_deref(), &definition.conversion);
        let mut operations = definition.convert(&wanted);
        // Withdrawn, unless objects are stored in it, which could then not be read by anybody.
        if !operations.is_empty() && !definition.may_store(version) {
            operations.extend(definition.serve(version, false));
        }
        Ok(operations)
    });
    let changed = signals.until_second(changed).await.ok_or_else(stopped)??;
    if changed != before {
        report(&format!("set the conversion webhook of {}", cluster.name));
    }
    let attempt = Attempt {
        cluster,
        version,
        limit: args.timeout,
        before: &before,
        is_another_webhook: changed.conversion != before.conversion,
    };
    match attempt.run(sample, &mut signals).await {
        Ok(()) => print(&format!(
            "{version} of {} is served, and its conversion works",
            cluster.name
        )),
        Err(failure) => {
            let undone = signals.until_second(attempt.undo(failure)).await;
            Err(undone.unwrap_or_else(stopped))
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|source| Error::ReadFile {
        path: path.to_owned(),
        source,
    })
}

fn read_ca(path: &Path) -> Result<Vec<u8>, Error> {
    let ca = read(path)?;
    let has_certificate = String::from_utf8_lossy(&ca).contains("-----BEGIN CERTIFICATE-----");
    let missing = || Error::NoCertificate { path: path.to_owned() };
    has_certificate.then_some(ca).ok_or_else(missing)
}

fn read_manifest(path: &Path) -> Result<Value, Error> {
    let text = read(path)?;
    serde_saphyr::from_slice(&text).map_err(|source| Error::ParseSample {
        path: path.to_owned(),
        source: Box::new(source),
    })
}

/// Returns a conversion without the CA of its webhook.
fn address_of(conversion: &Value) -> Value {
    let mut address = conversion.clone();
    if let Some(config) = address
        .pointer_mut("/webhook/clientConfig")
        .and_then(Value::as_object_mut)
    {
        config.remove("caBundle");
    }
    address
}

fn is_served(definition: &Definition, version: &str) -> bool {
    definition.version(version).is_some_and(|version| version.is_served)
}

/// Why the version is not usable.
enum Failure {
    /// The last failure of a step.
    Failed(String),
    /// The command got SIGINT or SIGTERM.
    Interrupted,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Failed(error_chain(&error))
    }
}

impl From<ProbeError> for Failure {
    fn from(error: ProbeError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// An attempt to serve a version.
struct Attempt<'a> {
    cluster: &'a Cluster,
    version: &'a str,
    /// The time limit of each wait.
    limit: Duration,
    /// The definition before the command changed it.
    before: &'a Definition,
    /// Whether the command has set another webhook than the former one.
    is_another_webhook: bool,
}

impl Attempt<'_> {
    /// Serves the version and checks it.
    async fn run(&self, sample: Option<Value>, signals: &mut Signals) -> Result<(), Failure> {
        let Self { cluster, version, .. } = *self;
        let is_interrupted = || Failure::Interrupted;
        // A webhook that is in use may have a certificate of a public CA.
        if self.is_another_webhook || !self.was_usable() {
            let ca = signals.until_first(self.wait_for_ca()).await;
            ca.ok_or_else(is_interrupted)??;
        }
        let served = cluster.change(|definition| Ok(definition.serve(version, true)));
        let definition = signals.until_second(served).await.ok_or_else(is_interrupted)??;
        report(&format!("checking {version} of {}", cluster.name));
        let probe = Probe::new(cluster, &definition, version, sample);
        let checked = signals.until_first(check(&probe, self.limit)).await;
        Ok(checked.ok_or_else(is_interrupted)??)
    }

    /// Waits until somebody has set the CA of the webhook.
    async fn wait_for_ca(&self) -> Result<(), Failure> {
        let (deadline, name) = (Instant::now() + self.limit, &self.cluster.name);
        let mut is_reported = false;
        while !has_ca(&self.cluster.read().await?.conversion) {
            if Instant::now() >= deadline {
                return Err(Failure::Failed(format!(
                    "conversion.webhook.clientConfig.caBundle was not set within {:?}: start the daemon with \
                     --tls-ca-bundles=customresourcedefinitions/{name}, annotate the definition for cert-manager, or \
                     pass --ca-file",
                    self.limit
                )));
            }
            if !std::mem::replace(&mut is_reported, true) {
                report("waiting for the CA of the conversion webhook");
            }
            sleep(INTERVAL).await;
        }
        Ok(())
    }

    /// Withdraws the version, or restores what worked before. Returns the error that says so.
    async fn undo(&self, failure: Failure) -> Error {
        let undone = match (&failure, self.was_usable()) {
            (_, true) if self.is_another_webhook => self.restore().await,
            (Failure::Interrupted, true) if self.was_served() => Ok("it is served as before, without a check"),
            _ if self.was_served() && self.before.may_store(self.version) => {
                Ok("objects that are stored in it cannot be read in other versions until its conversion works")
            }
            _ => self.withdraw().await,
        };
        let (name, version) = (self.cluster.name.clone(), self.version.to_owned());
        let reason = match failure {
            Failure::Failed(reason) => reason,
            Failure::Interrupted => "the command was interrupted".to_owned(),
        };
        match undone {
            Ok(state) => Error::Unusable {
                name,
                version,
                state,
                reason,
            },
            Err(source) => Error::NotUndone {
                name,
                version,
                reason,
                source: Box::new(source),
            },
        }
    }

    fn was_served(&self) -> bool {
        is_served(self.before, self.version)
    }

    /// Returns whether a webhook has converted objects before. One that converts nothing is of no
    /// use to anybody.
    fn was_usable(&self) -> bool {
        self.before.has_webhook() && (self.was_served() || self.before.may_store(self.version))
    }

    /// Restores the former webhook, and whether the version was served.
    async fn restore(&self) -> Result<&'static str, Error> {
        let restored = self.cluster.change(|definition| {
            let mut operations = definition.convert(&self.before.conversion);
            operations.extend(definition.serve(self.version, self.was_served()));
            Ok(operations)
        });
        restored.await?;
        Ok("the former conversion webhook is used again")
    }

    async fn withdraw(&self) -> Result<&'static str, Error> {
        let withdrawn = self
            .cluster
            .change(|definition| Ok(definition.serve(self.version, false)));
        withdrawn.await?;
        Ok("it is not served")
    }
}

/// Waits until the version is usable. Returns the last reason why it is not.
async fn check(probe: &Probe<'_>, limit: Duration) -> Result<(), ProbeError> {
    let deadline = Instant::now() + limit;
    let mut last = ProbeError::NoResponse;
    loop {
        let attempt = async {
            let result = probe.check().await;
            if result.is_err() {
                sleep(INTERVAL).await;
            }
            result
        };
        tokio::select! {
            result = attempt => match result {
                Ok(()) => return Ok(()),
                Err(error) => last = error,
            },
            () = sleep_until(deadline) => return Err(last),
        }
    }
}
