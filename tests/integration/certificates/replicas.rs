//! Rotations of the certificates while three replicas serve the webhooks of a stream of writes, and
//! one replica after the other is replaced. The webhooks fail closed, so each call that fails
//! rejects a write.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use http::StatusCode;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use parking_lot::Mutex;
use portreeve_api::CRONTABS;
use portreeve_testing::{ControlPlane, Signal, eventually, free_port};
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use crate::fixtures::{
    LIMIT,
    admin::Admin,
    balancer::Balancer,
    daemon::Daemon,
    webhooks::{CONTROLLERS, apply, configurations, create, crontab, fail_closed, install_definitions, patch},
};

/// The number of CAs that follow each other. `make chaos` sets the variable.
const ROTATIONS: &str = "ROTATIONS";
const DEFAULT_ROTATIONS: usize = 20;
/// A CA is replaced after two thirds of this time. The last third has to suffice for changes of the
/// leader, also when a Lease has to expire, and for the replacement to reach every replica and the
/// apiserver, on a busy machine.
const LIFETIME: &str = "48s";
/// How long all rotations may take, for each of them.
const PER_ROTATION: Duration = Duration::from_secs(75);
/// The time between two writes.
const WRITE_EVERY: Duration = Duration::from_millis(20);
/// The time between the ends of two replicas.
const REPLACE_EVERY: Duration = Duration::from_secs(10);
const REPLICAS: usize = 3;
/// The number of CronTabs that are written to.
const WRITERS: u32 = 16;

/// A replica and the port of its webhooks.
struct Replica {
    daemon: Daemon,
    port: u16,
}

/// Three replicas behind a balancer, with certificates that live for seconds.
struct Replicas {
    plane: Arc<ControlPlane>,
    balancer: Balancer,
    /// The oldest first.
    running: VecDeque<Replica>,
    started: usize,
}

impl Replicas {
    async fn start(plane: Arc<ControlPlane>) -> Result<Self> {
        let client = plane.client()?;
        install_definitions(&client).await?;
        let namespace: k8s_openapi::api::core::v1::Namespace =
            serde_json::from_value(json!({"metadata": {"name": "portreeve-system"}}))?;
        Api::all(client.clone())
            .create(&kube::api::PostParams::default(), &namespace)
            .await?;
        let secret: Secret = serde_json::from_value(json!({"metadata": {"name": "portreeve-serving"}}))?;
        let secrets: Api<Secret> = Api::namespaced(client.clone(), "portreeve-system");
        secrets.create(&kube::api::PostParams::default(), &secret).await?;
        let balancer = Balancer::start().await?;
        // The leader sets the bundles.
        apply(&client, &fail_closed(configurations(balancer.port, None)?)).await?;
        let mut replicas = Self {
            plane,
            balancer,
            running: VecDeque::new(),
            started: 0,
        };
        for _ in 0..REPLICAS {
            replicas.add().await?;
        }
        Ok(replicas)
    }

    /// Starts a replica, and adds it to the endpoints once it is ready.
    async fn add(&mut self) -> Result<()> {
        let port = free_port()?;
        let name = format!("replica-{}", self.started);
        self.started += 1;
        let daemon = start_replica(&self.plane, &name, port).await?;
        let webhooks = Admin { port };
        let ready = || webhooks.ensure_passing("/readyz");
        eventually(LIMIT, "the webhooks of a replica to be ready", ready).await?;
        self.balancer.add(port);
        self.running.push_back(Replica { daemon, port });
        Ok(())
    }

    /// Takes the oldest replica out of the endpoints, ends it with SIGTERM, and replaces it.
    async fn replace_oldest(&mut self) -> Result<()> {
        self.add().await?;
        let oldest = self.running.pop_front().context("no replica")?;
        self.balancer.remove(oldest.port);
        oldest.daemon.process.signal(Signal::TERM)?;
        let status = oldest.daemon.process.wait(LIMIT).await?;
        ensure!(status.success(), "{status}: {}", oldest.daemon.process.log_tail());
        Ok(())
    }

    /// Kills the oldest replica, which leaves the endpoints at the same time, and replaces it.
    async fn kill_oldest(&mut self) -> Result<()> {
        let oldest = self.running.pop_front().context("no replica")?;
        self.balancer.remove(oldest.port);
        oldest.daemon.process.signal(Signal::KILL)?;
        oldest.daemon.process.wait(LIMIT).await?;
        self.add().await
    }
}

async fn start_replica(plane: &ControlPlane, name: &str, port: u16) -> Result<Daemon> {
    let own = format!("--webhook-port={port}");
    let lifetimes = [
        format!("--tls-ca-lifetime={LIFETIME}"),
        format!("--tls-certificate-lifetime={LIFETIME}"),
    ];
    let bundles = "--tls-ca-bundles=mutatingwebhookconfigurations/portreeve-webhooks.portreeve-system.portreeve,\
                   validatingwebhookconfigurations/portreeve-webhooks.portreeve-system.portreeve";
    let flags = [
        CONTROLLERS,
        &own,
        &lifetimes[0],
        &lifetimes[1],
        bundles,
        "--tls-ca-grace-period=3s",
        "--tls-secret=portreeve-system/portreeve-serving",
        "--tls-issue-names=localhost",
        "--leader-elect",
        "--leader-elect-lease-duration=6s",
        "--leader-elect-renew-deadline=5s",
        "--leader-elect-retry-period=500ms",
    ];
    Daemon::start(plane, name, &flags).await
}

/// Writes that need the consent of the webhook, at a constant rate.
#[derive(Default)]
struct Writes {
    admitted: AtomicU64,
    in_flight: AtomicU64,
    failures: Mutex<Vec<String>>,
    stop: AtomicBool,
}

impl Writes {
    /// Changes one CronTab until [`Self::stop`] is set. Writes to the same object would conflict.
    async fn run(self: Arc<Self>, client: Client, name: String) {
        let mut ticks = interval(WRITE_EVERY * WRITERS);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut number = 0_u64;
        while !self.stop.load(Ordering::SeqCst) {
            ticks.tick().await;
            number += 1;
            let label = json!({"metadata": {"labels": {"write": number.to_string()}}});
            self.in_flight.fetch_add(1, Ordering::SeqCst);
            let result = timeout(LIMIT, patch(&client, &CRONTABS, ("default", &name), &label)).await;
            self.in_flight.fetch_sub(1, Ordering::SeqCst);
            match result {
                Ok(Ok(response)) if response.status == StatusCode::OK => {
                    self.admitted.fetch_add(1, Ordering::SeqCst);
                }
                Ok(Ok(response)) => self.failures.lock().push(response.message().to_owned()),
                Ok(Err(error)) => self.failures.lock().push(format!("{error:#}")),
                Err(_) => self.failures.lock().push("no response".to_owned()),
            }
        }
    }
}

/// Adds the published CAs that no earlier call has seen.
async fn new_authorities(secrets: &Api<Secret>, seen: &mut Vec<String>) -> Result<()> {
    let secret = secrets.get("portreeve-serving").await?;
    let certificates = secret.data.unwrap_or_default().remove("ca.crt");
    let text = String::from_utf8(certificates.map(|bytes| bytes.0).unwrap_or_default())?;
    for certificate in text.split_inclusive("-----END CERTIFICATE-----\n") {
        if !seen.iter().any(|known| known == certificate) && certificate.contains("BEGIN") {
            seen.push(certificate.to_owned());
        }
    }
    Ok(())
}

#[tokio::test]
async fn no_write_is_rejected_while_certificates_rotate_and_replicas_are_replaced() -> Result<()> {
    let rotations = match std::env::var(ROTATIONS) {
        Ok(text) => text.parse().context("ROTATIONS is no number")?,
        Err(_) => DEFAULT_ROTATIONS,
    };
    let plane = Arc::new(ControlPlane::start().await?);
    let client = plane.client()?;
    let mut replicas = Replicas::start(Arc::clone(&plane)).await?;
    let writes = Arc::new(Writes::default());
    let mut writing = JoinSet::new();
    for number in 0..WRITERS {
        let name = format!("a{number}");
        wait_until_admitted(&client, &name).await?;
        writing.spawn(Arc::clone(&writes).run(client.clone(), name));
    }
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "portreeve-system");
    let began = Instant::now();
    let mut seen = Vec::new();
    new_authorities(&secrets, &mut seen).await?;
    let first = seen.len();
    let mut replace = interval(REPLACE_EVERY);
    replace.tick().await;
    while seen.len() < first + rotations {
        replace.tick().await;
        timeout(LIMIT, replicas.replace_oldest()).await??;
        new_authorities(&secrets, &mut seen).await?;
        let failures = writes.failures.lock().clone();
        ensure!(
            failures.is_empty(),
            "after {} rotations: {failures:#?}",
            seen.len() - first
        );
        let limit = PER_ROTATION * u32::try_from(rotations)?;
        ensure!(
            began.elapsed() < limit,
            "only {} rotations in {limit:?}",
            seen.len() - first
        );
    }
    let admitted = writes.admitted.load(Ordering::SeqCst);
    println!(
        "{} rotations in {:?}, {admitted} writes",
        seen.len() - first,
        began.elapsed()
    );
    ensure!(admitted > 0, "nothing was written");

    // A killed replica cannot finish the calls that it is answering, and only those.
    let in_flight = writes.in_flight.load(Ordering::SeqCst);
    replicas.kill_oldest().await?;
    writes.stop.store(true, Ordering::SeqCst);
    while let Some(ended) = writing.join_next().await {
        ended?;
    }
    let failures = writes.failures.lock().clone();
    println!("{} writes failed by a SIGKILL", failures.len());
    if failures.len() as u64 > in_flight.max(REPLICAS as u64) {
        bail!("{in_flight} writes were in flight, but {failures:#?}");
    }
    Ok(())
}

/// Creates a CronTab once a certificate is served and trusted.
async fn wait_until_admitted(client: &Client, name: &str) -> Result<()> {
    let object: Value = crontab(name, json!({"suspend": true}));
    eventually(LIMIT, "a write to be admitted", || async {
        let created = create(client, &CRONTABS, "default", "", &object).await?;
        ensure!(created.status == StatusCode::CREATED, "{created:?}");
        anyhow::Ok(())
    })
    .await
}
