//! `portreeve conversion enable`.
//!
//! While the version is not served and no object is stored in it, the apiserver never calls the
//! webhook. So the webhook is set first, and may still lack its CA or its endpoints.

use std::{fs, path::Path, time::Duration};

use serde_json::Value;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep, sleep_until},
};

use super::{
    super::{Error, cluster::Cluster, definition::Definition, migrate::print, progress::report},
    EnableArgs,
    probe::Probe,
    webhook::{conversion, has_ca},
};

/// The time between two checks.
const INTERVAL: Duration = Duration::from_millis(500);

/// Runs `portreeve conversion enable`.
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
    let version = before.newest().to_owned();
    let address = (args.address.service.as_ref(), args.address.url.as_ref());
    let wanted = |present: &Value| conversion(&cluster.name, address, ca.as_deref(), present);

    let changed = cluster.change(|definition| {
        let wanted = wanted(&definition.conversion);
        let mut operations = definition.convert(&wanted);
        // Withdrawn, unless objects are stored in it, which could then not be read by anybody.
        if !operations.is_empty() && !definition.may_store(&version) {
            operations.extend(definition.serve(&version, false));
        }
        Ok(operations)
    });
    let changed = changed.await?;
    if changed != before {
        report(&format!("set the conversion webhook of {}", cluster.name));
    }
    // A webhook that converts nothing is of no use to anybody.
    let was_used = before.has_webhook() && (is_served(&before, &version) || before.may_store(&version));
    let replaced = (was_used && changed.conversion != before.conversion).then_some(&before);
    let enabled = async {
        wait_for_ca(cluster, &version, args.timeout).await?;
        serve(cluster, &version, args.timeout, (sample, replaced)).await
    };
    if let Err(error) = enabled.await {
        if let Some(before) = replaced {
            restore(cluster, &version, before).await?;
        }
        return Err(error);
    }
    print(&format!(
        "{version} of {} is served, and its conversion works",
        cluster.name
    ))
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

fn is_served(definition: &Definition, version: &str) -> bool {
    definition.version(version).is_some_and(|version| version.is_served)
}

/// Restores the webhook that converted the objects before this command, and whether the version was
/// served.
async fn restore(cluster: &Cluster, version: &str, before: &Definition) -> Result<(), Error> {
    let restored = cluster.change(|definition| {
        let mut operations = definition.convert(&before.conversion);
        operations.extend(definition.serve(version, is_served(before, version)));
        Ok(operations)
    });
    restored.await?;
    report(&format!("restored the former conversion webhook of {}", cluster.name));
    Ok(())
}

/// Waits until somebody has set the CA of the webhook.
async fn wait_for_ca(cluster: &Cluster, version: &str, limit: Duration) -> Result<(), Error> {
    let deadline = Instant::now() + limit;
    let mut is_reported = false;
    while !has_ca(&cluster.read().await?.conversion) {
        if Instant::now() >= deadline {
            return Err(Error::NoBundle {
                name: cluster.name.clone(),
                version: version.to_owned(),
                limit,
            });
        }
        if !std::mem::replace(&mut is_reported, true) {
            report("waiting for the CA of the conversion webhook");
        }
        sleep(INTERVAL).await;
    }
    Ok(())
}

/// Serves the version and checks it. Withdraws it if it does not become usable, unless the caller
/// restores the definition that was `replaced`.
async fn serve(
    cluster: &Cluster,
    version: &str,
    limit: Duration,
    (sample, replaced): (Option<Value>, Option<&Definition>),
) -> Result<(), Error> {
    let before = cluster.read().await?;
    let was_served = is_served(&before, version);
    let served = cluster.change(|definition| Ok(definition.serve(version, true)));
    let definition = served.await?;
    report(&format!("checking {version} of {}", cluster.name));
    let probe = Probe::new(cluster, &definition, version, sample);
    let Err(reason) = check(&probe, limit).await else {
        return Ok(());
    };
    let unusable = |state| Error::Unusable {
        name: cluster.name.clone(),
        version: version.to_owned(),
        state,
        reason: reason.clone(),
    };
    if replaced.is_some() {
        return Err(unusable("the former conversion webhook is used again"));
    }
    if was_served && before.may_store(version) {
        return Err(unusable(
            "objects that are stored in it cannot be read in other versions until its conversion works",
        ));
    }
    let withdrawn = cluster.change(|definition| Ok(definition.serve(version, false)));
    match withdrawn.await {
        Ok(_) => Err(unusable("it is not served")),
        Err(source) => Err(Error::StillServed {
            name: cluster.name.clone(),
            version: version.to_owned(),
            reason: reason.clone(),
            source: Box::new(source),
        }),
    }
}

/// Waits until the version is usable. Returns the last reason why it is not.
async fn check(probe: &Probe<'_>, limit: Duration) -> Result<(), String> {
    let deadline = Instant::now() + limit;
    let mut last = "no response".to_owned();
    let mut interrupted = std::pin::pin!(interrupted());
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
                Err(reason) => last = reason,
            },
            () = &mut interrupted => return Err("the check was interrupted".to_owned()),
            () = sleep_until(deadline) => return Err(last),
        }
    }
}

/// Waits for SIGINT or SIGTERM, which must not leave a version that does not work.
async fn interrupted() {
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
