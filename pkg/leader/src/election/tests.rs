//! Health checks and the end of the thread.

use super::*;

fn election(leadership: LeadershipState) -> Election {
    Election {
        lease: "n/lease".into(),
        times: ElectionTimings {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        },
        shared: Arc::new(Shared {
            fence: LeaseFence::new(Duration::from_secs(10)),
            leadership: watch::Sender::new(leadership),
            commands: watch::Sender::new(CandidateCommand::Run),
            cache: LeaseCache::new("me".to_owned(), Duration::from_secs(15)),
            access: Mutex::default(),
            thread: Heartbeat::default(),
        }),
    }
}

#[test]
fn health_fails_when_a_leader_has_not_renewed_for_the_lease_duration_plus_20_seconds() {
    let election = election(LeadershipState::Leading);
    // The fence closes 10 s after the last renewal, so these are 1 s before and after 35 s.
    for (closed, healthy) in [(24, true), (26, false)] {
        let deadline = boot_clock::now().saturating_sub(Duration::from_secs(closed));
        election.shared.fence.set(Some(deadline));
        let health = election.health();
        assert_eq!(health.is_ok(), healthy, "{health:?}");
    }
    let failure = election.health().unwrap_err().to_string();
    assert!(
        failure.contains("failed election to renew leadership on lease n/lease"),
        "{failure}"
    );
}

#[test]
fn a_standby_is_healthy_and_reports_the_holder() {
    let holder = Some("other_1".to_owned());
    let health = election(LeadershipState::Standby { holder }).health();
    assert_eq!(health.as_deref(), Ok("standby, other_1 holds Lease n/lease"));
}

#[tokio::test]
async fn waiters_are_released_when_the_thread_ends() {
    let election = election(LeadershipState::Leading);
    let (end, _) = oneshot::channel();
    drop(Thread {
        elections: vec![election.clone()],
        _end: end,
    });
    assert_eq!(election.wait_until_lost().await, "leader election ended");
    assert!(portreeve_client::Fence::admit(&election.fence()).is_err());
    election.release().await;
}
