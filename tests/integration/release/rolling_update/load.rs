//! Writes of users to CronTabs, in every version that is served, while the daemon is replaced.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use http::Method;
use parking_lot::Mutex;
use portreeve_api::Resource;
use portreeve_crontab::api::{CRONTABS, CRONTABS_V2};
use portreeve_testing::eventually;
use serde_json::{Value, json};
use tokio::{sync::RwLock, task::JoinSet, time::interval};

use crate::fixtures::{
    LIMIT,
    conversion::{CronTabs, small},
};

/// The time between two CronTabs that are created.
const CREATE_EVERY: Duration = Duration::from_millis(200);
/// The annotation that requests a run.
const RUN_NOW: &str = "stable.example.com/run-now";

/// What the tasks share.
struct Shared {
    crontabs: CronTabs,
    /// The versions that are served. Every request holds the lock, so that none is on its way when
    /// a version is withdrawn.
    served: RwLock<Vec<Resource>>,
    stop: AtomicBool,
    failures: Mutex<Vec<String>>,
}

/// Tasks that write until they are stopped.
pub(super) struct Load {
    shared: Arc<Shared>,
    running: JoinSet<Result<()>>,
    requests: Arc<Mutex<Vec<(String, usize)>>>,
}

/// What a load has done.
pub(super) struct Summary {
    /// The CronTabs whose runs were requested, and how many were.
    pub(super) requests: Vec<(String, usize)>,
    /// The writes that failed.
    pub(super) failures: Vec<String>,
}

impl Load {
    /// Starts to request runs of these CronTabs, and to create, change and delete others, in v1.
    pub(super) fn start(crontabs: &CronTabs, requested: Vec<String>) -> Self {
        let shared = Arc::new(Shared {
            crontabs: crontabs.clone(),
            served: RwLock::new(vec![CRONTABS]),
            stop: AtomicBool::new(false),
            failures: Mutex::default(),
        });
        let mut running = JoinSet::new();
        let requests: Arc<Mutex<Vec<_>>> = Arc::default();
        for name in requested {
            let (shared, requests) = (Arc::clone(&shared), Arc::clone(&requests));
            running.spawn(async move {
                let count = shared.request_runs(&name).await?;
                requests.lock().push((name, count));
                Ok(())
            });
        }
        running.spawn(Arc::clone(&shared).create());
        Self {
            shared,
            running,
            requests,
        }
    }

    /// Uses v2 as well, or no longer. Returns when no request is on its way in a version that is
    /// not used any more.
    pub(super) async fn use_v2(&self, is_used: bool) {
        let mut versions = vec![CRONTABS];
        if is_used {
            versions.push(CRONTABS_V2);
        }
        *self.shared.served.write().await = versions;
    }

    /// Stops when all requested runs have started.
    pub(super) async fn finish(mut self) -> Result<Summary> {
        self.shared.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = self.running.join_next().await {
            ended??;
        }
        let requests = std::mem::take(&mut *self.requests.lock());
        let failures = std::mem::take(&mut *self.shared.failures.lock());
        Ok(Summary { requests, failures })
    }
}

impl Shared {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Requests one run after the other, and returns how many.
    async fn request_runs(&self, name: &str) -> Result<usize> {
        for number in 1.. {
            if self.is_stopped() {
                return Ok(number - 1);
            }
            let annotation = json!({"metadata": {"annotations": {RUN_NOW: number.to_string()}}});
            self.write(number, Method::PATCH, name, &annotation).await?;
            let value = number.to_string();
            eventually(LIMIT, &format!("run {number} of {name}"), || async {
                let served = self.served.read().await;
                let status = self.crontabs.get(of(&served, number), name).await?["status"].take();
                ensure!(status["lastRunNow"] == *value, "{status}");
                anyhow::Ok(())
            })
            .await?;
        }
        Ok(0)
    }

    /// Creates, changes and deletes CronTabs that never run.
    async fn create(self: Arc<Self>) -> Result<()> {
        let mut ticks = interval(CREATE_EVERY);
        for number in 1.. {
            ticks.tick().await;
            if self.is_stopped() {
                break;
            }
            let name = format!("created-{number}");
            self.write(number, Method::POST, &name, &Value::Null).await?;
            let label = json!({"metadata": {"labels": {"changed": "true"}}});
            self.write(number + 1, Method::PATCH, &name, &label).await?;
            self.write(number, Method::DELETE, &name, &Value::Null).await?;
        }
        Ok(())
    }

    /// Sends a write in one of the served versions, and records its failure.
    async fn write(&self, number: usize, method: Method, name: &str, body: &Value) -> Result<()> {
        let served = self.served.read().await;
        let version = of(&served, number);
        let response = match method {
            Method::POST => {
                let created = self.crontabs.create(version, &small(version, name)).await;
                created.map(drop)
            }
            Method::DELETE => self.crontabs.delete(version, name).await,
            _ => self.crontabs.merge(version, name, body).await.map(drop),
        };
        if let Err(error) = response {
            let version = &version.version;
            self.failures
                .lock()
                .push(format!("{method} {name} in {version}: {error:#}"));
        }
        Ok(())
    }
}

/// Returns the version of a request.
fn of(served: &[Resource], number: usize) -> &Resource {
    &served[number % served.len()]
}
