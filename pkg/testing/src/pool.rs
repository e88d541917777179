//! Control planes that tests of a binary use one after the other.
//!
//! A start takes 3 s of CPU time, and most tests only want a control plane without the objects of
//! others. So a plane is kept when its test has ended. Before the next test gets it, etcd's keys
//! are set back to what they were after the start. This also removes what no request could: objects
//! with finalizers, namespaces, and custom resources whose conversion fails. The apiserver learns
//! of it through its watches of etcd, like of the end of an Event's lifetime.

mod admission;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::future::pending;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use http::Request;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::control_plane::{Builder, ControlPlane};
use crate::definitions::{defined_group, listed_groups};
use crate::etcd::Stored;
use crate::eventually::eventually;
use crate::template::{self, OWN_LEASES, starts_with_any};

/// The number of planes that wait for a test, each with about 450 MiB. There are several kinds, and
/// a start takes longer than anything else that a small test does.
const MOST_IDLE: usize = 16;
/// How long the apiserver may take to notice what was removed.
const RESET_LIMIT: Duration = Duration::from_secs(30);
/// The number of concurrent requests to etcd.
const REQUESTS: usize = 8;

static IDLE: Mutex<Vec<Arc<Entry>>> = Mutex::new(Vec::new());
static DISCARDED: AtomicUsize = AtomicUsize::new(0);

/// A control plane that a test has for itself, and another test after it.
///
/// A test may do anything that [`ControlPlane`] permits, and stop and start its servers too. It
/// must not change etcd's data on disk or start another program on the servers' ports; such tests
/// use [`Builder::start`].
#[derive(Debug)]
pub struct PooledPlane(Arc<Entry>);

/// A control plane, and what it takes to set it back.
#[derive(Debug)]
struct Entry {
    plane: ControlPlane,
    options: Builder,
    /// The state after the start.
    keys: tokio::sync::Mutex<BTreeMap<Vec<u8>, Stored>>,
    groups: BTreeSet<String>,
    files: BTreeSet<OsString>,
}

impl Deref for PooledPlane {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        &self.0.plane
    }
}

impl Drop for PooledPlane {
    /// Returns the plane when the runtime of the test ends, and with it every task and connection
    /// that the test has left.
    fn drop(&mut self) {
        let returned = Returned(Arc::clone(&self.0));
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                let _returned = returned;
                pending::<()>().await;
            });
        }
    }
}

struct Returned(Arc<Entry>);

impl Drop for Returned {
    fn drop(&mut self) {
        // An idle plane needs no CPU time. Pausing fails if the test has stopped the server.
        for server in [self.0.plane.apiserver(), self.0.plane.etcd()] {
            let _ = server.pause();
        }
        let mut idle = IDLE.lock();
        idle.push(Arc::clone(&self.0));
        // The servers stop without the lock.
        let oldest = (idle.len() > MOST_IDLE).then(|| idle.remove(0));
        drop(idle);
        drop(oldest);
    }
}

impl ControlPlane {
    /// Returns a control plane from the pool, where it returns after the test.
    ///
    /// # Errors
    /// See [`ControlPlane::start`].
    pub async fn pooled() -> Result<PooledPlane> {
        Self::builder().pooled().await
    }
}

impl Builder {
    /// Returns a control plane with these options from the pool, where it returns after the test.
    ///
    /// # Errors
    /// See [`Builder::start`].
    pub async fn pooled(self) -> Result<PooledPlane> {
        take(self).await
    }
}

/// Returns an idle plane with these options, in the state after its start, or starts one.
async fn take(options: Builder) -> Result<PooledPlane> {
    while let Some(found) = idle(&options) {
        match found.reset().await {
            Ok(()) => return Ok(PooledPlane(found)),
            Err(error) => {
                let discarded = DISCARDED.fetch_add(1, Ordering::Relaxed) + 1;
                tracing::info!(%discarded, "a used control plane is replaced by a new one: {error:#}");
            }
        }
    }
    Ok(PooledPlane(Arc::new(Entry::start(options).await?)))
}

/// Takes the plane with these options that has been idle for the longest time.
fn idle(options: &Builder) -> Option<Arc<Entry>> {
    let mut idle = IDLE.lock();
    let found = idle.iter().position(|plane| plane.options.is_like(options))?;
    Some(idle.remove(found))
}

impl Entry {
    async fn start(options: Builder) -> Result<Self> {
        let plane = options.clone().start().await?;
        plane.wait_for_authentication_info().await?;
        let stored = plane.etcd_api().entries().await?;
        if options.has_no_definitions() {
            template::remember(&stored);
        }
        Ok(Self {
            groups: listed_groups(&plane.client()?).await?,
            files: files(plane.folder())?,
            keys: stored
                .into_iter()
                .map(|stored| (stored.key.clone(), stored))
                .collect::<BTreeMap<_, _>>()
                .into(),
            plane,
            options,
        })
    }

    /// Sets everything back, or fails if that cannot be.
    async fn reset(&self) -> Result<()> {
        self.plane.etcd().resume()?;
        self.plane.apiserver().resume()?;
        self.ensure_definitions_unchanged().await?;
        if self.restore_all().await? {
            admission::wait_for_caches(&self.plane.client()?).await?;
            self.restore_all().await?;
        }
        for name in files(self.plane.folder())?.difference(&self.files) {
            let path = self.plane.folder().join(name);
            let removed = if path.is_dir() {
                fs::remove_dir_all(&path)
            } else {
                fs::remove_file(&path)
            };
            removed.with_context(|| format!("failed to remove {}", path.display()))?;
        }
        if let Some(log) = self.plane.audit_log() {
            let emptied = OpenOptions::new().write(true).truncate(true).open(log);
            emptied.with_context(|| format!("failed to empty {}", log.display()))?;
        }
        Ok(())
    }

    /// Fails if a definition of [`Builder::definitions`] was changed, or one in their groups was
    /// added: no request shows when the apiserver has noticed that it was restored.
    async fn ensure_definitions_unchanged(&self) -> Result<()> {
        let initial = self.keys.lock().await;
        let groups: BTreeSet<String> = initial.keys().filter_map(|key| defined_group(key)).collect();
        if groups.is_empty() {
            return Ok(());
        }
        let present = self.plane.etcd_api().revisions().await?;
        for key in present.keys().chain(initial.keys()) {
            let is_kept = defined_group(key).is_some_and(|group| groups.contains(&group));
            let initial = initial.get(key).map(|stored| &stored.revision);
            ensure!(
                !is_kept || present.get(key) == initial,
                "{} was changed",
                String::from_utf8_lossy(key)
            );
        }
        Ok(())
    }

    /// Restores until nothing is left to do, because the apiserver recreates some objects that are
    /// removed before what they derive from, such as the APIService of a CRD. Returns whether
    /// admission may still know some that were removed.
    async fn restore_all(&self) -> Result<bool> {
        let cached = AtomicBool::new(false);
        let definitions = Mutex::new(BTreeSet::new());
        eventually(
            RESET_LIMIT,
            "the control plane to have nothing of the last test",
            || async {
                let changed = self.restore().await?;
                if changed.iter().any(|key| admission::caches(key)) {
                    cached.store(true, Ordering::Relaxed);
                }
                definitions
                    .lock()
                    .extend(changed.iter().filter_map(|key| defined_group(key)));
                ensure!(changed.is_empty(), "{} keys had to be restored", changed.len());
                let groups = listed_groups(&self.plane.client()?).await?;
                ensure!(groups == self.groups, "the API groups are {groups:?}");
                let definitions = definitions.lock().clone();
                self.ensure_undefined(&definitions).await
            },
        )
        .await?;
        Ok(cached.into_inner())
    }

    /// Fails while the apiserver still serves a group whose definitions were removed. The list of
    /// groups does not show it once the APIService is gone.
    async fn ensure_undefined(&self, groups: &BTreeSet<String>) -> Result<()> {
        let client = self.plane.client()?;
        for group in groups {
            let path = format!("/apis/{group}");
            let found = client.request_text(Request::get(&path).body(Vec::new())?).await;
            ensure!(
                matches!(&found, Err(kube::Error::Api(status)) if status.code == 404),
                "{path} still answers {found:?}"
            );
        }
        Ok(())
    }

    /// Removes the keys that were not there after the start, writes those that have changed, and
    /// returns both.
    async fn restore(&self) -> Result<Vec<Vec<u8>>> {
        let etcd = self.plane.etcd_api();
        let mut initial = self.keys.lock().await;
        let present = etcd.revisions().await?;
        let added: Vec<&Vec<u8>> = present
            .keys()
            .filter(|key| !initial.contains_key(*key) && !starts_with_any(key, &OWN_LEASES))
            .collect();
        let changed: Vec<&mut Stored> = initial
            .values_mut()
            .filter(|stored| {
                present.get(&stored.key) != Some(&stored.revision) && !starts_with_any(&stored.key, &OWN_LEASES)
            })
            .collect();
        let all = added
            .iter()
            .copied()
            .chain(changed.iter().map(|stored| &stored.key))
            .cloned()
            .collect();
        stream::iter(added)
            .map(|key| etcd.delete(key))
            .buffer_unordered(REQUESTS)
            .try_collect::<()>()
            .await?;
        for stored in changed {
            stored.revision = etcd.put(&stored.key, &stored.value).await?;
        }
        Ok(all)
    }
}

fn files(folder: &Path) -> Result<BTreeSet<OsString>> {
    let read = || {
        fs::read_dir(folder)?
            .map(|entry| Ok(entry?.file_name()))
            .collect::<std::io::Result<_>>()
    };
    read().with_context(|| format!("failed to read {}", folder.display()))
}
