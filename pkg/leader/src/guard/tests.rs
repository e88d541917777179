//! Tests that the guarded lock has none of the plain lock's defects, on a real apiserver.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use kube_leader_election::{LeaseLock, LeaseLockParams, LeaseLockResult};
use portreeve_testing::{ControlPlane, FaultProxy, Namespace};

use super::*;

const DURATION: Duration = Duration::from_secs(3);

/// One candidate for the Lease `lease`.
struct Candidate {
    lock: LeaseLock,
    cache: LeaseCache,
}

impl Candidate {
    fn new(namespace: &Namespace, name: &str) -> Self {
        Self::with_client(namespace, name, namespace.client().clone(), Arc::new(Timestamp::now))
    }

    fn with_client(namespace: &Namespace, name: &str, inner: Client, wall: WallClock) -> Self {
        let cache = LeaseCache::new(name.to_owned(), DURATION);
        let guard = Guard {
            inner,
            cache: cache.clone(),
            fence: LeaseFence::new(DURATION),
            wall,
            manager: "a-test",
        };
        let parameters = LeaseLockParams {
            lease_name: "lease".to_owned(),
            holder_id: ME.to_owned(),
            lease_ttl: DURATION,
        };
        let client = Client::new(guard, namespace.name());
        Self {
            lock: LeaseLock::new(client, namespace.name(), parameters),
            cache,
        }
    }

    fn prepare(&self, live: bool, leading: bool) {
        let acquire_delay = Duration::ZERO;
        self.cache.prepare(Attempt {
            live,
            leading,
            may_acquire: true,
            acquire_delay,
        });
    }

    /// Tries to acquire with a read, and returns whether the candidate holds the Lease.
    async fn acquires(&self) -> Result<bool, kube_leader_election::Error> {
        self.prepare(true, false);
        let result = self.lock.try_acquire_or_renew().await?;
        Ok(matches!(result, LeaseLockResult::Acquired(_)))
    }

    /// Ensures that a renewal without a read conflicts with a change of the Lease.
    async fn ensure_conflict(&self) -> Result<()> {
        self.prepare(false, true);
        let renewed = self.lock.try_acquire_or_renew().await;
        let error = renewed.err().context("the renewal succeeded")?;
        ensure!(error.to_string().contains("Conflict"), "{error}");
        Ok(())
    }

    /// Waits until the last observed Lease is free.
    async fn wait_until_free(&self) -> Result<()> {
        let observed = self.cache.observed().context("no Lease was observed")?;
        tokio::time::sleep_until(boot_clock::instant(observed.free_from(DURATION))).await;
        Ok(())
    }
}

async fn fixtures() -> Result<(Namespace, Api<Lease>)> {
    let namespace = ControlPlane::shared().await.namespace("guard").await?;
    let leases = namespace.api();
    Ok((namespace, leases))
}

fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref()
}

#[tokio::test]
async fn a_lease_is_created_renewed_and_released_as_by_client_go() -> Result<()> {
    let (namespace, leases) = fixtures().await?;
    let one = Candidate::new(&namespace, "one");
    ensure!(one.acquires().await?);
    let created = leases.get("lease").await?.spec.context("the Lease has no spec")?;
    ensure!(created.holder_identity.as_deref() == Some("one") && created.lease_transitions == Some(0));
    ensure!(created.lease_duration_seconds == Some(3) && created.acquire_time == created.renew_time);
    one.prepare(false, true);
    one.lock.try_acquire_or_renew().await?;
    let renewed = leases.get("lease").await?;
    let spec = renewed.spec.clone().context("the Lease has no spec")?;
    ensure!(spec.renew_time > created.renew_time && spec.acquire_time == created.acquire_time);
    ensure!(spec.lease_transitions == Some(0));
    let managers: Vec<_> = renewed.metadata.managed_fields.iter().flatten().collect();
    ensure!(
        managers.len() == 1 && managers[0].manager.as_deref() == Some("a-test"),
        "{managers:?}"
    );
    one.prepare(true, true);
    one.lock.step_down().await?;
    let released = leases.get("lease").await?.spec.context("the Lease has no spec")?;
    ensure!(released.holder_identity.as_deref() == Some("") && released.lease_duration_seconds == Some(1));
    let two = Candidate::new(&namespace, "two");
    ensure!(two.acquires().await?, "a released Lease is free at once");
    let taken = leases.get("lease").await?.spec.context("the Lease has no spec")?;
    ensure!(taken.lease_transitions == Some(1) && taken.lease_duration_seconds == Some(3));
    Ok(())
}

#[tokio::test]
async fn only_one_of_two_candidates_acquires_an_expired_lease() -> Result<()> {
    let (namespace, leases) = fixtures().await?;
    ensure!(Candidate::new(&namespace, "dead").acquires().await?);
    let (one, two) = (Candidate::new(&namespace, "one"), Candidate::new(&namespace, "two"));
    ensure!(
        !one.acquires().await? && !two.acquires().await?,
        "a held Lease is not free when first observed"
    );
    two.wait_until_free().await?;
    let (first, second) = tokio::join!(one.acquires(), two.acquires());
    let winners = [("one", first), ("two", second)].map(|(name, won)| (name, won.unwrap_or(false)));
    let winners: Vec<_> = winners
        .into_iter()
        .filter(|(_, won)| *won)
        .map(|(name, _)| name)
        .collect();
    let lease = leases.get("lease").await?;
    ensure!(
        winners.len() == 1 && holder(&lease) == Some(winners[0]),
        "{winners:?} {lease:?}"
    );
    ensure!(lease.spec.and_then(|spec| spec.lease_transitions) == Some(1));
    Ok(())
}

#[tokio::test]
async fn a_renewal_does_not_overwrite_a_takeover() -> Result<()> {
    let (namespace, leases) = fixtures().await?;
    let one = Candidate::new(&namespace, "one");
    ensure!(one.acquires().await?);
    let taken = json!({"spec": {"holderIdentity": "two"}});
    leases
        .patch("lease", &PatchParams::default(), &Patch::Merge(taken))
        .await?;
    one.ensure_conflict().await?;
    one.prepare(true, true);
    let result = one.lock.try_acquire_or_renew().await?;
    ensure!(matches!(result, LeaseLockResult::NotAcquired(_)), "{result:?}");
    // A former leader does not take the Lease back even after the new holder's lease expires.
    one.wait_until_free().await?;
    let result = one.lock.try_acquire_or_renew().await?;
    ensure!(matches!(result, LeaseLockResult::NotAcquired(_)), "{result:?}");
    Ok(())
}

#[tokio::test]
async fn wrong_clocks_do_not_cause_takeovers() -> Result<()> {
    let (namespace, leases) = fixtures().await?;
    for seconds in [-20, 20] {
        let wall = move || Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
        let client = namespace.client().clone();
        let wrong = Candidate::with_client(&namespace, "wrong", client, Arc::new(wall));
        ensure!(wrong.acquires().await?);
        let right = Candidate::new(&namespace, "right");
        ensure!(
            !right.acquires().await?,
            "a clock that is {seconds} s off lost the Lease"
        );
        let lease = leases.get("lease").await?;
        let renewed = lease
            .spec
            .and_then(|spec| spec.renew_time)
            .context("no renewal time")?
            .0;
        let off = renewed.duration_since(Timestamp::now()).as_secs();
        ensure!(
            (off - seconds).abs() <= 1,
            "the Lease has the time of another clock: {off}"
        );
        right.wait_until_free().await?;
        ensure!(right.acquires().await?);
        ensure!(
            !wrong.acquires().await?,
            "a clock that is {seconds} s off took the Lease"
        );
        leases.delete("lease", &DeleteParams::default()).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_lease_with_empty_fields_is_free() -> Result<()> {
    let (namespace, leases) = fixtures().await?;
    for spec in [json!(null), json!({}), json!({"holderIdentity": ""})] {
        let lease = json!({"metadata": {"name": "lease"}, "spec": spec});
        leases
            .create(&PostParams::default(), &serde_json::from_value(lease)?)
            .await?;
        ensure!(Candidate::new(&namespace, "one").acquires().await?, "{spec}");
        leases.delete("lease", &DeleteParams::default()).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_holder_name_may_be_longer_than_a_field_manager() -> Result<()> {
    let (namespace, leases) = fixtures().await?;
    let name = "x".repeat(200);
    let one = Candidate::new(&namespace, &name);
    ensure!(one.acquires().await? && one.acquires().await?);
    ensure!(holder(&leases.get("lease").await?) == Some(&*name));
    Ok(())
}

#[tokio::test]
async fn a_deleted_lease_stays_reserved_for_its_holder() -> Result<()> {
    let (namespace, leases) = fixtures().await?;
    let (one, two) = (Candidate::new(&namespace, "one"), Candidate::new(&namespace, "two"));
    ensure!(one.acquires().await? && !two.acquires().await?);
    leases.delete("lease", &DeleteParams::default()).await?;
    ensure!(!two.acquires().await?, "the standby took the deleted Lease at once");
    one.prepare(true, true);
    ensure!(matches!(
        one.lock.try_acquire_or_renew().await?,
        LeaseLockResult::Acquired(_)
    ));
    ensure!(!two.acquires().await?);
    leases.delete("lease", &DeleteParams::default()).await?;
    ensure!(!two.acquires().await?);
    two.wait_until_free().await?;
    ensure!(two.acquires().await?, "nobody recreated the Lease");
    Ok(())
}

#[tokio::test]
async fn the_acquire_delay_leaves_a_free_lease_to_others() -> Result<()> {
    let (namespace, _) = fixtures().await?;
    let one = Candidate::new(&namespace, "one");
    one.cache.prepare(Attempt {
        live: true,
        leading: false,
        may_acquire: true,
        acquire_delay: Duration::from_secs(1),
    });
    let result = one.lock.try_acquire_or_renew().await?;
    ensure!(matches!(result, LeaseLockResult::NotAcquired(_)), "{result:?}");
    one.wait_until_free().await?;
    tokio::time::sleep_until(boot_clock::instant(boot_clock::now() + Duration::from_secs(1))).await;
    let result = one.lock.try_acquire_or_renew().await?;
    ensure!(matches!(result, LeaseLockResult::Acquired(_)), "{result:?}");
    Ok(())
}

#[tokio::test]
async fn a_candidate_recovers_from_a_lost_renewal_response() -> Result<()> {
    let (namespace, leases) = fixtures().await?;
    let proxy = FaultProxy::start(ControlPlane::shared().await).await?;
    let mut config = proxy.config(ControlPlane::shared().await.config()?);
    config.default_retry = false;
    let client = Client::try_from(config)?;
    let one = Candidate::with_client(&namespace, "one", client, Arc::new(Timestamp::now));
    ensure!(one.acquires().await?);
    let before = leases.get("lease").await?.metadata.resource_version;
    proxy.hold_responses();
    one.prepare(false, true);
    let lost = tokio::time::timeout(Duration::from_secs(1), one.lock.try_acquire_or_renew()).await;
    ensure!(lost.is_err(), "the renewal got an answer");
    ensure!(
        leases.get("lease").await?.metadata.resource_version != before,
        "the Lease was not written"
    );
    proxy.heal();
    // The cached version is stale now: a write with that version is rejected, and a read corrects
    // it.
    let error = one
        .lock
        .try_acquire_or_renew()
        .await
        .err()
        .context("the renewal succeeded")?;
    ensure!(
        error.to_string().contains("Conflict") || error.to_string().contains("not read"),
        "{error}"
    );
    one.prepare(true, true);
    ensure!(matches!(
        one.lock.try_acquire_or_renew().await?,
        LeaseLockResult::Acquired(_)
    ));
    Ok(())
}

#[test]
fn response_older_than_the_known_version_counts_as_a_decrease() -> Result<()> {
    let cache = LeaseCache::new("me".to_owned(), Duration::from_secs(15));
    let decreases = cache.decreases();
    let table = [
        ("10", None, 0),
        ("9", Some(8), 0),
        ("9", Some(10), 1),
        ("11", Some(9), 1),
    ];
    for (version, known_at_request, expected) in table {
        let lease = json!({"metadata": {"name": "lease", "uid": "u", "resourceVersion": version}, "spec": {}});
        let recorded = cache.record_response(&lease, known_at_request);
        recorded.map_err(|error| anyhow::anyhow!(error))?;
        ensure!(*decreases.borrow() == expected, "{version} after {known_at_request:?}");
    }
    Ok(())
}

/// Annotates the Lease like any other client, and returns the response.
async fn annotate(leases: &Api<Lease>, name: &str, value: &str) -> Result<Lease> {
    let patch = Patch::Merge(json!({"metadata": {"annotations": {name: value}}}));
    Ok(leases.patch("lease", &PatchParams::default(), &patch).await?)
}

/// Checks that the candidate knows the current state of the Lease, and returns its annotations.
async fn annotations(candidate: &Candidate, leases: &Api<Lease>) -> Result<String> {
    let known = candidate.cache.lease_snapshots().borrow().clone();
    let lease = leases.get("lease").await?;
    ensure!(known == lease, "{known:?} is not {lease:?}");
    let annotations = known.metadata.annotations.unwrap_or_default();
    let pairs = annotations.iter().map(|(name, value)| format!("{name}={value}"));
    Ok(pairs.collect::<Vec<_>>().join(" "))
}

#[tokio::test]
async fn annotations_survive_renewals_a_release_and_a_takeover() -> Result<()> {
    let (namespace, leases) = fixtures().await?;
    let (one, two) = (Candidate::new(&namespace, "one"), Candidate::new(&namespace, "two"));
    ensure!(one.acquires().await? && annotations(&one, &leases).await?.is_empty());
    annotate(&leases, "a", "1").await?;
    one.prepare(true, true);
    one.lock.try_acquire_or_renew().await?;
    ensure!(annotations(&one, &leases).await? == "a=1");
    one.prepare(false, true);
    one.lock.try_acquire_or_renew().await?;
    ensure!(annotations(&one, &leases).await? == "a=1");
    ensure!(
        !two.acquires().await? && annotations(&two, &leases).await? == "a=1",
        "a standby must know the annotations"
    );
    one.prepare(true, true);
    one.lock.step_down().await?;
    ensure!(annotations(&one, &leases).await? == "a=1");
    ensure!(two.acquires().await? && annotations(&two, &leases).await? == "a=1");
    two.wait_until_free().await?;
    ensure!(!one.acquires().await?, "an unobserved Lease was taken over");
    one.wait_until_free().await?;
    ensure!(
        one.acquires().await? && annotations(&one, &leases).await? == "a=1",
        "the takeover lost the annotations"
    );
    Ok(())
}

#[tokio::test]
async fn known_annotation_changes_do_not_make_a_renewal_stale() -> Result<()> {
    let (namespace, leases) = fixtures().await?;
    let one = Candidate::new(&namespace, "one");
    ensure!(one.acquires().await?);
    for value in ["1", "2", "3"] {
        one.cache.record_write(annotate(&leases, "a", value).await?);
        one.prepare(false, true);
        let renewed = one.lock.try_acquire_or_renew().await?;
        ensure!(matches!(renewed, LeaseLockResult::Acquired(_)), "{renewed:?}");
        ensure!(annotations(&one, &leases).await? == format!("a={value}"));
    }
    // An unknown change makes the write conflict, and the renewal with a read succeeds.
    annotate(&leases, "a", "4").await?;
    one.ensure_conflict().await?;
    one.prepare(true, true);
    one.lock.try_acquire_or_renew().await?;
    ensure!(annotations(&one, &leases).await? == "a=4");
    Ok(())
}

#[tokio::test]
async fn a_known_takeover_makes_a_renewal_stale() -> Result<()> {
    let (namespace, leases) = fixtures().await?;
    let one = Candidate::new(&namespace, "one");
    ensure!(one.acquires().await?);
    let taken = Patch::Merge(json!({"spec": {"holderIdentity": "two"}}));
    let taken = leases.patch("lease", &PatchParams::default(), &taken).await?;
    // The version of the takeover must not be used for a renewal, because the record has changed.
    one.cache.record_write(taken);
    one.ensure_conflict().await?;
    ensure!(holder(&leases.get("lease").await?) == Some("two"));
    Ok(())
}

#[tokio::test]
async fn a_recreated_lease_has_no_former_annotations() -> Result<()> {
    let (namespace, leases) = fixtures().await?;
    let one = Candidate::new(&namespace, "one");
    ensure!(one.acquires().await?);
    one.cache.record_write(annotate(&leases, "a", "1").await?);
    leases.delete("lease", &DeleteParams::default()).await?;
    one.prepare(true, true);
    one.lock.try_acquire_or_renew().await?;
    ensure!(
        annotations(&one, &leases).await?.is_empty(),
        "the recreated Lease kept the annotations"
    );
    Ok(())
}
