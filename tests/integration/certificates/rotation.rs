//! Rotations in which another replica takes over, and whose clocks differ.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use portreeve_cli::CONTROLLERS;
use portreeve_reconcile::Clock;
use portreeve_testing::{ControlPlane, eventually};
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::ring,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use serde_json::json;
use tokio::time::Instant;

use super::{
    FLAGS, NAME, Objects,
    webhooks::{Bundles, CHECKS, CONVERTED, DEFAULTS},
};
use crate::fixtures::{
    LIMIT,
    clock::OffsetClock,
    daemon::{Daemon, EXPIRING_LEASE},
    in_process::InProcess,
};

const ALL: [&str; 3] = [DEFAULTS, CHECKS, CONVERTED];

/// The first leader publishes a new CA and waits for an hour. The second one waits again, for a
/// shorter time, so that the test ends.
#[tokio::test]
async fn a_second_replica_finishes_the_rotation() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let (objects, bundles) = (Objects::new(&plane.client()?), Bundles::new(plane.client()?));
    objects.create_namespace().await?;
    objects.create_config_map().await?;
    bundles.create().await?;
    let listed = format!("--tls-ca-bundles={}", ALL.join(","));
    let start = async |name: &str, grace_period: &str| {
        let grace_period = format!("--tls-ca-grace-period={grace_period}");
        let namespace = "--leader-elect-resource-namespace=portreeve-system";
        let flags = [&FLAGS[..], &EXPIRING_LEASE, &[&*listed, &*grace_period, namespace]].concat();
        Daemon::start(&plane, name, &flags).await
    };
    let first = start("first", "1h").await?;
    first.wait_for_line(&["acquired the lease"]).await?;
    let second = start("second", "3s").await?;
    objects.wait_until_trusted(second.admin).await?;
    let old = objects.data().await?;

    // Without its key, the CA must be replaced.
    objects.replace_data(json!({"ca.key": null})).await?;
    let both = eventually(LIMIT, "a second CA", || async {
        let authorities = objects.wait_for_authority().await?;
        ensure!(authorities.matches("BEGIN").count() == 2, "{authorities}");
        anyhow::Ok(authorities)
    })
    .await?;
    bundles.wait_until_all_are(&ALL, &both).await?;
    ensure!(objects.data().await?["tls.crt"] == old["tls.crt"]);
    let before = Instant::now();
    drop(first);
    second.wait_for_line(&["acquired the lease"]).await?;
    eventually(LIMIT, "a new certificate", || async {
        ensure!(objects.data().await?["tls.crt"] != old["tls.crt"]);
        anyhow::Ok(())
    })
    .await?;
    ensure!(before.elapsed() >= Duration::from_secs(3), "{:?}", before.elapsed());
    objects.wait_until_trusted(second.admin).await?;
    // The old certificate is valid for weeks, so its CA stays.
    bundles.wait_until_all_are(&ALL, &both).await
}

/// Ensures that a client with this bundle and this clock accepts a certificate.
fn ensure_accepted(certificate: &[u8], bundle: &str, now: Timestamp) -> Result<()> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(authority?)?;
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
    let certificate = CertificateDer::from_pem_slice(certificate)?;
    let now = UnixTime::since_unix_epoch(Duration::from_secs(now.as_second().unsigned_abs()));
    verifier.verify_server_cert(&certificate, &[], &ServerName::try_from(NAME)?, &[], now)?;
    Ok(())
}

/// Each daemon leads through one renewal. The clocks of the daemons differ by ten minutes, and
/// those of clients differ from the true time by five.
#[tokio::test]
async fn certificates_of_an_hour_are_accepted_while_clocks_differ_by_minutes() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let (objects, bundles) = (Objects::new(&plane.client()?), Bundles::new(plane.client()?));
    objects.create_namespace().await?;
    bundles.create().await?;
    let listed = format!("--tls-ca-bundles={}", ALL.join(","));
    let lifetimes = [
        "--tls-ca-lifetime=2h",
        "--tls-certificate-lifetime=1h",
        "--tls-ca-grace-period=100ms",
    ];
    let flags = [&FLAGS[..], &lifetimes, &[&*listed]].concat();
    let skew = SignedDuration::from_mins(5);
    let true_time = OffsetClock::new();
    let mut authorities = BTreeSet::new();
    let mut last = None;
    for round in 0..8 {
        let clock = OffsetClock::new();
        // Two thirds of a life by the next leader's clock.
        let (offset, due) = if round % 2 == 0 { (skew, 51) } else { (-skew, 31) };
        clock.set(true_time.now() + offset);
        let daemon = InProcess::start_as(plane.kubeconfig(), Arc::new(clock), CONTROLLERS, &flags).await?;
        let data = eventually(LIMIT, "the next certificate", || async {
            let data = objects.data().await?;
            let certificate = data.get("tls.crt").context("there is none")?.0.clone();
            ensure!(last.as_ref() != Some(&certificate), "it was not renewed");
            anyhow::Ok((certificate, objects.wait_for_authority().await?))
        })
        .await?;
        let (certificate, stored) = data;
        bundles.wait_until_all_are(&ALL, &stored).await?;
        let end = true_time.now() + SignedDuration::from_mins(due);
        for bundle in bundles.read(CHECKS).await? {
            for client in [-skew, skew] {
                ensure_accepted(&certificate, &bundle, true_time.now() + client)?;
                ensure_accepted(&certificate, &bundle, end + client)?;
                // The certificate that it replaces may still be served for a moment.
                if let Some(last) = &last {
                    ensure_accepted(last, &bundle, true_time.now() + client)?;
                }
            }
        }
        authorities.extend(stored.split_inclusive("-----END CERTIFICATE-----\n").map(str::to_owned));
        last = Some(certificate);
        daemon.finish().await?;
        true_time.set(end);
    }
    ensure!(authorities.len() >= 4, "{} CAs", authorities.len());
    Ok(())
}
