//! Rotations of the certificates while three replicas serve the webhooks of a stream of writes, and
//! one replica after the other is replaced. The webhooks fail closed, so each call that fails
//! rejects a write.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use futures::future::join_all;
use http::{Request, StatusCode};
use kube::{Client, client::Body};
use parking_lot::Mutex;
use portreeve_crontab::api::CRONTABS;
use portreeve_testing::{ControlPlane, PooledPlane, Signal, eventually, free_port};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::timeout};

use super::{Objects, webhooks::Bundles};
use crate::fixtures::{
    LIMIT,
    admin::{self, Admin},
    balancer::Balancer,
    daemon::Daemon,
    webhooks::{
        CONTROLLERS, apply, configurations, create, crontab, fail_closed, install_definitions, patch, webhooks_of,
    },
};

/// The number of CAs that follow each other. `make chaos` sets the variable.
const ROTATIONS: &str = "ROTATIONS";
const DEFAULT_ROTATIONS: usize = 2;
/// With the value `time`, the CAs are replaced by their age. `make chaos` sets the variable.
const ROTATE_BY: &str = "ROTATE_BY";
/// The lifetime of certificates that are replaced by their age, which is after two thirds of it.
/// The last third has to suffice for a change of the leader, and for the replacement to reach every
/// replica and the apiserver, on a busy machine.
const LIFETIME: &str = "48s";
/// How long a CA may take to appear: [`LIFETIME`] twice, and the limit of other waits.
const NEXT_AUTHORITY: Duration = Duration::from_secs(156);
/// The longest time that the apiserver grants to a call of a webhook, in seconds.
const CALL_LIMIT: u64 = 30;
const REPLICAS: usize = 3;
/// The number of CronTabs that are written to.
const WRITERS: usize = 16;
const CONFIGURATIONS: [&str; 2] = [
    "mutatingwebhookconfigurations/portreeve-webhooks.portreeve-system.portreeve",
    "validatingwebhookconfigurations/portreeve-webhooks.portreeve-system.portreeve",
];

/// What makes the leader replace the CA.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Trigger {
    /// Its key is missing.
    MissingKey,
    /// Its age.
    Age,
}

/// A replica and the port of its webhooks.
struct Replica {
    daemon: Daemon,
    port: u16,
}

/// Three replicas behind a balancer.
struct Replicas {
    plane: Arc<PooledPlane>,
    trigger: Trigger,
    balancer: Arc<Balancer>,
    /// The oldest first.
    running: VecDeque<Replica>,
    started: usize,
}

impl Replicas {
    async fn start(plane: Arc<PooledPlane>, trigger: Trigger) -> Result<Self> {
        let client = plane.client()?;
        install_definitions(&client).await?;
        let objects = Objects::new(&client);
        objects.create_namespace().await?;
        objects.create_secret().await?;
        let balancer = Arc::new(Balancer::start().await?);
        // The leader sets the bundles.
        let mut configurations = fail_closed(configurations(balancer.port, None)?);
        for webhook in configurations.iter_mut().flat_map(webhooks_of) {
            webhook["timeoutSeconds"] = CALL_LIMIT.into();
        }
        apply(&client, &configurations).await?;
        let mut replicas = Self {
            plane,
            trigger,
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
        let daemon = start_replica(&self.plane, &name, port, self.trigger).await?;
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

async fn start_replica(plane: &ControlPlane, name: &str, port: u16, trigger: Trigger) -> Result<Daemon> {
    let own = format!("--webhook-port={port}");
    let bundles = format!("--tls-ca-bundles={}", CONFIGURATIONS.join(","));
    let mut flags = vec![
        CONTROLLERS,
        &own,
        &bundles,
        "--tls-ca-grace-period=3s",
        "--tls-secret=portreeve-system/portreeve-serving",
        "--tls-issue-names=localhost",
        "--leader-elect",
        // No replica waits for the end of a Lease, so it may outlast stalls of the machine.
        "--leader-elect-lease-duration=90s",
        "--leader-elect-renew-deadline=75s",
        "--leader-elect-retry-period=2s",
    ];
    let lifetimes = ["ca", "certificate"].map(|what| format!("--tls-{what}-lifetime={LIFETIME}"));
    if trigger == Trigger::Age {
        flags.extend(lifetimes.iter().map(String::as_str));
    }
    Daemon::start(plane, name, &flags).await
}

/// Writes that need the consent of the webhooks.
#[derive(Default)]
struct Writes {
    admitted: AtomicU64,
    /// The number of completed rounds.
    rounds: AtomicU64,
    /// The failures, each with the number of its round.
    failures: Mutex<Vec<(u64, String)>>,
    stop: AtomicBool,
}

impl Writes {
    /// Changes all CronTabs at once, round by round, until [`Self::stop`] is set. Closes the
    /// connections of the apiserver after each round, so that the next one needs new handshakes.
    async fn run(self: Arc<Self>, client: Client, balancer: Arc<Balancer>) -> Result<()> {
        while !self.stop.load(Ordering::SeqCst) {
            let round = self.rounds.load(Ordering::SeqCst);
            join_all((0..WRITERS).map(|number| self.write(&client, number, round))).await;
            timeout(LIMIT, balancer.close_connections())
                .await
                .context("connections to close")??;
            self.rounds.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    async fn write(&self, client: &Client, number: usize, round: u64) {
        let label = json!({"metadata": {"labels": {"round": round.to_string()}}});
        let failure = match timeout(LIMIT, patch(client, &CRONTABS, ("default", &name(number)), &label)).await {
            Ok(Ok(response)) if response.status == StatusCode::OK => {
                self.admitted.fetch_add(1, Ordering::SeqCst);
                return;
            }
            Ok(Ok(response)) => response.message().to_owned(),
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => "no response".to_owned(),
        };
        self.failures.lock().push((round, failure));
    }

    /// Waits until a whole round has followed those that are under way.
    async fn wait_for_a_round(&self) -> Result<()> {
        let begun = self.rounds.load(Ordering::SeqCst);
        eventually(LIMIT, "a round of writes", || async {
            ensure!(self.rounds.load(Ordering::SeqCst) >= begun + 2);
            anyhow::Ok(())
        })
        .await
    }
}

fn name(number: usize) -> String {
    format!("a{number}")
}

/// The published CAs, and where they must arrive.
struct Authorities {
    objects: Objects,
    bundles: Bundles,
}

impl Authorities {
    /// Returns the CAs in the Secret, each in PEM.
    async fn published(&self) -> Result<BTreeSet<String>> {
        let text = self.objects.wait_for_authority().await?;
        let certificates = text.split_inclusive("-----END CERTIFICATE-----\n");
        Ok(certificates.map(str::to_owned).collect())
    }

    /// Waits until a CA is published that is not among `known`, and is in every bundle.
    async fn wait_for_new(&self, known: &BTreeSet<String>) -> Result<String> {
        let new = eventually(NEXT_AUTHORITY, "a new CA in the Secret", || async {
            let new = self.published().await?.difference(known).next().cloned();
            new.context("there is no new CA")
        })
        .await?;
        for location in CONFIGURATIONS {
            eventually(LIMIT, &format!("the new CA in {location}"), || async {
                let bundles = self.bundles.read(location).await?;
                ensure!(!bundles.is_empty() && bundles.iter().all(|bundle| bundle.contains(&new)));
                anyhow::Ok(())
            })
            .await?;
        }
        Ok(new)
    }

    /// Replaces the CA, and one replica meanwhile. Waits until every replica serves a certificate
    /// of the new CA.
    async fn rotate(&self, replicas: &mut Replicas) -> Result<()> {
        let known = self.published().await?;
        if replicas.trigger == Trigger::MissingKey {
            self.objects.replace_data(json!({"ca.key": null})).await?;
        }
        let (new, ()) = tokio::try_join!(self.wait_for_new(&known), replicas.replace_oldest())?;
        for replica in &replicas.running {
            eventually(LIMIT, "a certificate of the new CA", || {
                ensure_issued_by(&new, replica.port)
            })
            .await?;
        }
        Ok(())
    }
}

/// Fails unless a client that trusts only this CA accepts the certificate of a replica.
async fn ensure_issued_by(authority: &str, port: u16) -> Result<()> {
    let mut config = Admin { port }.config()?;
    config.root_cert = Some(vec![CertificateDer::from_pem_slice(authority.as_bytes())?.to_vec()]);
    config.tls_server_name = Some("localhost".to_owned());
    let response = admin::send(config, Request::get("/readyz").body(Body::empty())?).await?;
    ensure!(response.status().is_success(), "{}", response.status());
    Ok(())
}

#[tokio::test]
async fn no_write_is_rejected_while_certificates_rotate_and_replicas_are_replaced() -> Result<()> {
    let rotations = match std::env::var(ROTATIONS) {
        Ok(text) => text.parse().context("ROTATIONS is no number")?,
        Err(_) => DEFAULT_ROTATIONS,
    };
    let trigger = match std::env::var(ROTATE_BY).as_deref() {
        Err(_) => Trigger::MissingKey,
        Ok("time") => Trigger::Age,
        Ok(other) => bail!("ROTATE_BY={other} is not supported; use time"),
    };
    let plane = Arc::new(ControlPlane::pooled().await?);
    let client = plane.client()?;
    let mut replicas = Replicas::start(Arc::clone(&plane), trigger).await?;
    for number in 0..WRITERS {
        wait_until_admitted(&client, &name(number)).await?;
    }
    let writes = Arc::new(Writes::default());
    let balancer = Arc::clone(&replicas.balancer);
    let mut writing = JoinSet::new();
    writing.spawn(Arc::clone(&writes).run(client.clone(), balancer));
    let authorities = Authorities {
        objects: Objects::new(&client),
        bundles: Bundles::new(client.clone()),
    };
    for rotation in 0..rotations {
        authorities.rotate(&mut replicas).await?;
        writes.wait_for_a_round().await?;
        let failures = writes.failures.lock().clone();
        ensure!(failures.is_empty(), "in rotation {rotation}: {failures:#?}");
    }
    let admitted = writes.admitted.load(Ordering::SeqCst);
    ensure!(admitted > 0, "nothing was written");

    // A killed replica cannot finish the calls that it is answering, and only those.
    replicas.kill_oldest().await?;
    writes.wait_for_a_round().await?;
    writes.stop.store(true, Ordering::SeqCst);
    while let Some(ended) = writing.join_next().await {
        ended??;
    }
    let failures = writes.failures.lock().clone();
    let rounds: BTreeSet<_> = failures.iter().map(|(round, _)| round).collect();
    ensure!(rounds.len() <= 1, "{failures:#?}");
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
