use super::*;

const TIMES: ElectionTimings = ElectionTimings {
    lease_duration: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry_period: Duration::from_secs(2),
};
const ME: &str = "me";

fn at(seconds: f64) -> BootTime {
    Duration::from_secs_f64(1000.0 + seconds)
}

fn held_by(holder: &str, since: f64) -> ObservedRecord {
    let record = LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        lease_duration_seconds: Some(15),
        ..LeaseSpec::default()
    };
    ObservedRecord::observe(None, record, at(since))
}

/// A candidate and its observation of the Lease.
struct Case {
    elector: Elector,
    observed: Option<ObservedRecord>,
    acquire_delay: Duration,
}

impl Case {
    fn new() -> Self {
        Self {
            elector: Elector::new(TIMES),
            observed: None,
            acquire_delay: Duration::ZERO,
        }
    }

    /// Returns a leader. Its successful attempt started at 0 s and ended 0.1 s later.
    fn leader() -> Self {
        let mut case = Self::new();
        case.observed = Some(held_by(ME, 0.1));
        assert_eq!(case.attempted(0.0, AttemptResult::Held, 0.1), ElectorAction::Won);
        case
    }

    fn step(&mut self, input: ElectorEvent, now: f64) -> ElectorAction {
        let context = StepContext {
            now: at(now),
            observed: self.observed.as_ref(),
            acquire_delay: self.acquire_delay,
            jitter: 0.5,
        };
        self.elector.step(input, ME, &context)
    }

    fn tick(&mut self, now: f64) -> ElectorAction {
        self.step(ElectorEvent::Tick, now)
    }

    fn attempted(&mut self, began: f64, result: AttemptResult, now: f64) -> ElectorAction {
        let began = at(began);
        self.step(ElectorEvent::Attempted { began, result }, now)
    }
}

fn attempt(live: bool) -> ElectorAction {
    ElectorAction::Attempt { live }
}

#[test]
fn a_candidate_tries_at_once_and_then_every_period_with_jitter() {
    let mut case = Case::new();
    assert_eq!(case.tick(0.0), attempt(true));
    case.observed = Some(held_by("other", 0.0));
    // The jitter is 0.5, so the wait is 2 s × 1.6.
    assert_eq!(
        case.attempted(0.0, AttemptResult::HeldByAnother, 0.1),
        ElectorAction::Wait(at(3.3))
    );
    assert_eq!(case.tick(3.3), attempt(true));
}

#[test]
fn a_released_lease_triggers_one_immediate_attempt() {
    let mut case = Case::new();
    case.observed = Some(held_by("other", 0.0));
    case.attempted(0.0, AttemptResult::HeldByAnother, 0.1);
    case.observed = Some(held_by("", 1.0));
    assert_eq!(case.tick(1.0), attempt(true));
    // After the failure, the regular schedule applies, which spares a busy apiserver.
    assert_eq!(
        case.attempted(1.0, AttemptResult::Failed, 1.1),
        ElectorAction::Wait(at(4.3))
    );
}

#[test]
fn a_lease_is_free_once_it_was_unchanged_for_its_duration() {
    let mut case = Case::new();
    case.observed = Some(held_by("other", 0.0));
    case.attempted(13.0, AttemptResult::HeldByAnother, 13.1);
    assert_eq!(case.tick(14.9), ElectorAction::Wait(at(15.0)));
    assert_eq!(case.tick(15.0), attempt(true));
    // A renewal that is observed in time restarts the wait.
    case.attempted(15.0, AttemptResult::HeldByAnother, 15.1);
    case.observed = Some(held_by("other", 15.1));
    assert_eq!(case.tick(18.0), ElectorAction::Wait(at(18.3)));
}

#[test]
fn observing_an_unchanged_record_keeps_its_age() {
    let record = held_by("other", 0.0).record;
    let observed = ObservedRecord::observe(None, record.clone(), at(0.0));
    let again = ObservedRecord::observe(Some(observed), record, at(7.0));
    assert_eq!(again.since, at(0.0));
    let mut renewed = again.record.clone();
    renewed.lease_transitions = Some(1);
    assert_eq!(ObservedRecord::observe(Some(again), renewed, at(8.0)).since, at(8.0));
}

#[test]
fn a_deleted_lease_stays_reserved_for_its_holder_for_the_lease_duration() {
    let others = ObservedRecord::observe_missing(Some(held_by("other", 0.0)), ME, at(5.0));
    assert_eq!(others.free_from(TIMES.lease_duration), at(20.0));
    let still = ObservedRecord::observe_missing(Some(others.clone()), ME, at(6.0));
    assert_eq!(still, others);
    let back = ObservedRecord::observe(Some(still), others.record.clone(), at(7.0));
    assert_eq!(back.free_from(TIMES.lease_duration), at(22.0));
    let own = ObservedRecord::observe_missing(Some(held_by(ME, 0.0)), ME, at(5.0));
    assert_eq!((own.holder(), own.free_from(TIMES.lease_duration)), (None, at(5.0)));
    let never_there = ObservedRecord::observe_missing(None, ME, at(5.0));
    assert_eq!(never_there.free_from(TIMES.lease_duration), at(5.0));
}

#[test]
fn a_record_without_a_valid_duration_has_the_configured_lease_duration() {
    let mut observed = held_by("other", 0.0);
    observed.record.lease_duration_seconds = None;
    assert_eq!(observed.free_from(TIMES.lease_duration), at(15.0));
    observed.record.lease_duration_seconds = Some(-3);
    assert_eq!(observed.free_from(TIMES.lease_duration), at(15.0));
    observed.record.lease_duration_seconds = Some(60);
    assert_eq!(observed.free_from(TIMES.lease_duration), at(60.0));
}

#[test]
fn the_acquire_delay_postpones_the_attempt_at_a_free_lease() {
    let mut case = Case::new();
    case.acquire_delay = TIMES.retry_period;
    case.observed = Some(held_by("", 1.0));
    case.attempted(1.0, AttemptResult::HeldByAnother, 1.1);
    assert_eq!(case.tick(1.2), ElectorAction::Wait(at(3.0)));
    assert_eq!(case.tick(3.0), attempt(true));
}

#[test]
fn only_the_first_of_two_stale_attempts_is_retried_at_once() {
    let mut case = Case::new();
    case.observed = Some(held_by("", 0.0));
    assert_eq!(case.attempted(0.0, AttemptResult::Stale, 0.1), attempt(true));
    assert_eq!(
        case.attempted(0.1, AttemptResult::Stale, 0.2),
        ElectorAction::Wait(at(3.4))
    );
}

#[test]
fn a_late_response_does_not_make_a_candidate_lead() {
    let mut case = Case::new();
    assert_ne!(case.attempted(0.0, AttemptResult::Held, 10.0), ElectorAction::Won);
    assert_eq!(case.elector.deadline(), None);
}

#[test]
fn the_deadline_counts_from_the_start_of_the_last_successful_renewal() {
    let mut case = Case::leader();
    assert_eq!(case.elector.deadline(), Some(at(10.0)));
    assert_eq!(case.tick(0.2), ElectorAction::Wait(at(2.0)));
    assert_eq!(case.tick(2.0), attempt(false));
    assert_eq!(case.attempted(2.0, AttemptResult::Held, 4.0), attempt(false));
    assert_eq!(case.elector.deadline(), Some(at(12.0)));
    case.attempted(4.0, AttemptResult::Failed, 9.0);
    assert_eq!(case.elector.deadline(), Some(at(12.0)));
    assert_eq!(case.tick(9.75), attempt(false));
    // The pause shrinks with the remaining time.
    assert_eq!(
        case.attempted(9.75, AttemptResult::Failed, 10.0),
        ElectorAction::Wait(at(10.5))
    );
    assert_eq!(case.tick(10.5), attempt(false));
    assert_eq!(
        case.attempted(10.5, AttemptResult::Failed, 11.5),
        ElectorAction::Wait(at(11.75))
    );
    assert_eq!(case.tick(11.75), attempt(false));
    assert_eq!(
        case.attempted(11.75, AttemptResult::Failed, 12.0),
        ElectorAction::Lost(LossReason::NotRenewed)
    );
    assert_eq!(case.elector.deadline(), None);
    assert_eq!(
        case.attempted(9.0, AttemptResult::Held, 12.0),
        ElectorAction::Lost(LossReason::NotRenewed),
        "a candidate that lost must never lead again"
    );
}

#[test]
fn a_slow_renewal_is_followed_by_the_next_at_once() {
    let mut case = Case::leader();
    assert_eq!(case.attempted(2.0, AttemptResult::Held, 6.5), attempt(false));
    assert_eq!(case.attempted(6.5, AttemptResult::Held, 11.0), attempt(false));
    assert_eq!(case.elector.deadline(), Some(at(16.5)));
}

#[test]
fn a_needed_renewal_is_sent_at_once() {
    let mut case = Case::leader();
    assert_eq!(case.step(ElectorEvent::RenewalNeeded, 0.2), attempt(false));
    let mut standby = Case::new();
    standby.observed = Some(held_by("other", 0.0));
    let next = standby.attempted(0.0, AttemptResult::HeldByAnother, 0.1);
    assert_eq!(standby.step(ElectorEvent::RenewalNeeded, 0.2), next);
}

#[test]
fn a_request_may_take_half_of_the_renew_deadline_but_at_least_a_second() {
    assert_eq!(TIMES.request_timeout(), Duration::from_secs(5));
    let short = ElectionTimings {
        renew_deadline: Duration::from_millis(1500),
        ..TIMES
    };
    assert_eq!(short.request_timeout(), Duration::from_secs(1));
}

#[test]
fn a_leader_that_slept_past_its_deadline_does_not_try_to_renew() {
    let mut case = Case::leader();
    assert_eq!(case.tick(10.0), ElectorAction::Lost(LossReason::NotRenewed));
}

#[test]
fn a_stale_renewal_is_retried_at_once_with_a_read() {
    let mut case = Case::leader();
    assert_eq!(case.attempted(2.0, AttemptResult::Stale, 2.1), attempt(true));
    assert_eq!(
        case.attempted(2.1, AttemptResult::Stale, 2.2),
        ElectorAction::Wait(at(4.15))
    );
    assert_eq!(case.tick(4.15), attempt(true));
    assert_eq!(
        case.attempted(4.15, AttemptResult::Held, 4.2),
        ElectorAction::Wait(at(6.15))
    );
    assert_eq!(case.tick(6.15), attempt(false));
}

#[test]
fn a_leader_loses_when_it_reads_another_holder() {
    let mut case = Case::leader();
    assert_eq!(
        case.attempted(2.0, AttemptResult::HeldByAnother, 2.1),
        ElectorAction::Lost(LossReason::Taken)
    );
}

#[test]
fn a_leader_that_observes_another_holder_or_none_reads_the_lease_once() {
    for seen in ["other", ""] {
        let mut case = Case::leader();
        case.observed = Some(held_by(seen, 1.0));
        assert_eq!(case.tick(1.0), attempt(true), "{seen}");
        assert_eq!(
            case.attempted(1.0, AttemptResult::Failed, 2.0),
            ElectorAction::Wait(at(4.0)),
            "{seen}"
        );
    }
    // An observation that is older than the last attempt is ignored.
    let mut case = Case::leader();
    case.observed = Some(held_by("other", -1.0));
    assert_eq!(case.tick(0.2), ElectorAction::Wait(at(2.0)));
}
