//! The profile of foo-controller.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use futures::{FutureExt, future::BoxFuture};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use portreeve_api::conditions::{self, ConditionStatus};
use portreeve_foo::api::FOOS;
use portreeve_testing::eventually;
use serde_json::json;

use crate::{
    fixtures::{
        LIMIT,
        namespace::{DEPLOYMENTS, NamespaceFixture, replicas},
    },
    profile::{Expected, Profile, Reach, Reads, Wave, Work},
};

pub(crate) static PROFILE: Profile = Profile {
    descriptor: portreeve_foo::DESCRIPTOR,
    reach: Reach::OwnKinds,
    reads: Reads::InEachWave,
    objects: &[FOOS, DEPLOYMENTS],
    metadata: None,
    queues: &["foo"],
    families: &[],
    kubernetes_role: None,
    use_permissions: |fixture, _| async move { use_permissions(&fixture).await }.boxed(),
    work: |wave| async move { Ok(Box::new(Foos::of(&wave.fixture)) as Box<dyn Work>) }.boxed(),
    pending: |fixture| async move { pending(&fixture).await }.boxed(),
};

/// Makes the controller create, repair, recreate and delete a Deployment, and send the same event
/// twice.
async fn use_permissions(fixture: &NamespaceFixture) -> Result<()> {
    fixture.ready_foo("web", 1).await?;
    fixture
        .merge_deployment("web", json!({"spec": {"replicas": 3}}))
        .await?;
    fixture
        .wait_for_deployment("web", "one replica", |found| replicas(found) == Some(1))
        .await?;
    fixture.delete_deployment("web").await?;
    fixture
        .wait_for_deployment("web", "a recreated Deployment", |found| replicas(found) == Some(1))
        .await?;
    let renamed = |name: &str| fixture.merge_foo("web", json!({"spec": {"deploymentName": name}}));
    renamed("shop").await?;
    fixture.wait_for_deployment("shop", "created", |_| true).await?;
    fixture.set_available("shop", 1).await?;
    fixture.wait_for_no_deployment("web").await?;
    fixture.create_foreign("taken").await?;
    for (name, type_) in [("taken", "Conflict"), ("shop", "Ready"), ("taken", "Conflict")] {
        renamed(name).await?;
        fixture.wait_for_condition("web", type_, ConditionStatus::True).await?;
    }
    eventually(LIMIT, "a second event about the conflict", || async {
        let events = fixture.events_on("web").await?;
        ensure!(events.iter().any(|event| event.series.is_some()), "{events:?}");
        Ok(())
    })
    .await
}

async fn pending(fixture: &NamespaceFixture) -> Result<Box<dyn Expected>> {
    let mut foos = Foos::of(fixture);
    foos.create("new", 1).await?;
    Ok(Box::new(foos))
}

/// Foos, each of which has a Deployment of its name.
struct Foos {
    fixture: NamespaceFixture,
    /// The replicas of each Foo, by name.
    replicas: BTreeMap<String, i32>,
}

impl Foos {
    fn of(fixture: &NamespaceFixture) -> Self {
        Self {
            fixture: fixture.clone(),
            replicas: BTreeMap::new(),
        }
    }

    async fn create(&mut self, name: &str, replicas: i32) -> Result<()> {
        self.fixture.create_foo(name, name, replicas).await?;
        self.replicas.insert(name.to_owned(), replicas);
        Ok(())
    }

    /// Returns the names of the Foos that exist, or `None` if the apiserver serves none.
    async fn existing(&self) -> Result<Option<Vec<String>>> {
        match self.fixture.foos().list_metadata(&ListParams::default()).await {
            Ok(found) => Ok(Some(found.items.iter().map(ResourceExt::name_any).collect())),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates three Foos. Changes the first Foo of the last wave, modifies the Deployment of the
    /// second, and deletes the Deployment of the third. Deletes the Foos of the wave before the
    /// last.
    async fn change(&mut self, wave: usize) -> Result<()> {
        // A test may have deleted the definition with all Foos.
        let existing = self.existing().await?.context("Foos are not served")?;
        self.replicas.retain(|name, _| existing.contains(name));
        let of = |wave: usize| [0, 1, 2].map(|number| format!("foo-{wave}-{number}"));
        for name in of(wave) {
            self.create(&name, 2).await?;
        }
        let earlier = |back: usize| {
            let names = of(wave.checked_sub(back)?);
            names.iter().all(|name| existing.contains(name)).then_some(names)
        };
        if let Some([changed, drifted, recreated]) = earlier(1) {
            self.fixture
                .merge_foo(&changed, json!({"spec": {"replicas": 5}}))
                .await?;
            self.replicas.insert(changed, 5);
            self.fixture
                .merge_deployment(&drifted, json!({"spec": {"replicas": 9}}))
                .await?;
            let deployments = self.fixture.deployments();
            deployments.delete(&recreated, &DeleteParams::default()).await?;
        }
        for name in earlier(2).into_iter().flatten() {
            self.fixture.foos().delete(&name, &DeleteParams::default()).await?;
            self.replicas.remove(&name);
        }
        Ok(())
    }

    async fn check(&self) -> Result<()> {
        let is_served = self.existing().await?.is_some();
        let expected = if is_served {
            self.replicas.clone()
        } else {
            BTreeMap::new()
        };
        let deployments = self.fixture.deployments().list(&ListParams::default()).await?.items;
        let found: BTreeMap<_, _> = deployments
            .iter()
            .map(|deployment| (deployment.name_any(), replicas(deployment).unwrap_or_default()))
            .collect();
        ensure!(found == expected, "found Deployments {found:?}, expected {expected:?}");
        if !is_served {
            return Ok(());
        }
        for foo in self.fixture.foos().list(&ListParams::default()).await?.items {
            let status = foo.status.as_ref().context("the Foo has no status")?;
            let ready = conditions::find_status_condition(&status.conditions, "Ready");
            let is_ready = ready.is_some_and(|ready| ready.status == ConditionStatus::True);
            let is_current = Some(status.observed_generation) == foo.metadata.generation;
            ensure!(is_ready && is_current, "{} has {}", foo.name_any(), json!(status));
        }
        Ok(())
    }
}

impl Expected for Foos {
    fn check(&self) -> BoxFuture<'_, Result<()>> {
        self.check().boxed()
    }
}

impl Work for Foos {
    fn wave<'a>(&'a mut self, wave: &'a Wave) -> BoxFuture<'a, Result<()>> {
        self.change(wave.number).boxed()
    }
}
