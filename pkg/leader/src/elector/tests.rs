use super::*;

const TIMES: Times = Times {
    lease_duration: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry_period: Duration::from_secs(2),
};
const ME: &str = "me";

fn at(seconds: f64) -> Moment {
    Duration::from_secs_f64(1000.0 + seconds)
}

fn held_by(holder: &str, since: f64) -> Sight {
    let record = LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        lease_duration_seconds: Some(15),
        ..LeaseSpec::default()
    };
    Sight::of(None, record, at(since))
}

/// A candidate and what it has seen.
struct Case {
    elector: Elector,
    sight: Option<Sight>,
    patience: Duration,
}

impl Case {
    fn new() -> Self {
        Self {
            elector: Elector::new(TIMES),
            sight: None,
            patience: Duration::ZERO,
        }
    }

    /// Leads, by an attempt that was begun at 0 and ended a tenth of a second later.
    fn leader() -> Self {
        let mut case = Self::new();
        case.sight = Some(held_by(ME, 0.1));
        assert_eq!(case.attempted(0.0, Ending::Held, 0.1), Step::Won);
        case
    }

    fn step(&mut self, input: Input, now: f64) -> Step {
        let view = View {
            now: at(now),
            sight: self.sight.as_ref(),
            patience: self.patience,
            chance: 0.5,
        };
        self.elector.step(input, ME, &view)
    }

    fn tick(&mut self, now: f64) -> Step {
        self.step(Input::Tick, now)
    }

    fn attempted(&mut self, began: f64, ending: Ending, now: f64) -> Step {
        let began = at(began);
        self.step(Input::Attempted { began, ending }, now)
    }
}

fn attempt(live: bool, seconds: f64) -> Step {
    Step::Attempt {
        live,
        limit: Duration::from_secs_f64(seconds),
    }
}

#[test]
fn a_candidate_looks_at_once_and_then_each_period_with_jitter() {
    let mut case = Case::new();
    assert_eq!(case.tick(0.0), attempt(true, 2.0));
    case.sight = Some(held_by("other", 0.0));
    // Half of the jitter: 2 s × 1.6.
    assert_eq!(case.attempted(0.0, Ending::HeldByAnother, 0.1), Step::Wait(at(3.3)));
    assert_eq!(case.tick(3.3), attempt(true, 2.0));
}

#[test]
fn a_lease_that_is_released_is_tried_for_at_once_and_once() {
    let mut case = Case::new();
    case.sight = Some(held_by("other", 0.0));
    case.attempted(0.0, Ending::HeldByAnother, 0.1);
    case.sight = Some(held_by("", 1.0));
    assert_eq!(case.tick(1.0), attempt(true, 2.0));
    // It failed: from here on it is asked like everything else, and a busy apiserver is left alone.
    assert_eq!(case.attempted(1.0, Ending::Failed, 1.1), Step::Wait(at(4.3)));
}

#[test]
fn a_lease_is_free_when_it_was_seen_unchanged_for_its_duration() {
    let mut case = Case::new();
    case.sight = Some(held_by("other", 0.0));
    case.attempted(13.0, Ending::HeldByAnother, 13.1);
    assert_eq!(case.tick(14.9), Step::Wait(at(15.0)));
    assert_eq!(case.tick(15.0), attempt(true, 2.0));
    // A renewal that is seen in time starts it anew.
    case.attempted(15.0, Ending::HeldByAnother, 15.1);
    case.sight = Some(held_by("other", 15.1));
    assert_eq!(case.tick(18.0), Step::Wait(at(18.3)));
}

#[test]
fn a_renewal_that_is_seen_again_is_as_old_as_before() {
    let record = held_by("other", 0.0).record;
    let sight = Sight::of(None, record.clone(), at(0.0));
    let again = Sight::of(Some(sight), record, at(7.0));
    assert_eq!(again.since, at(0.0));
    let mut renewed = again.record.clone();
    renewed.lease_transitions = Some(1);
    assert_eq!(Sight::of(Some(again), renewed, at(8.0)).since, at(8.0));
}

#[test]
fn a_lease_that_is_deleted_is_its_holders_for_as_long_as_a_renewal() {
    let others = Sight::of_nothing(Some(held_by("other", 0.0)), ME, at(5.0));
    assert_eq!(others.free_from(TIMES.lease_duration), at(20.0));
    let still = Sight::of_nothing(Some(others.clone()), ME, at(6.0));
    assert_eq!(still, others);
    let back = Sight::of(Some(still), others.record.clone(), at(7.0));
    assert_eq!(back.free_from(TIMES.lease_duration), at(22.0));
    let own = Sight::of_nothing(Some(held_by(ME, 0.0)), ME, at(5.0));
    assert_eq!((own.holder(), own.free_from(TIMES.lease_duration)), (None, at(5.0)));
    let never_there = Sight::of_nothing(None, ME, at(5.0));
    assert_eq!(never_there.free_from(TIMES.lease_duration), at(5.0));
}

#[test]
fn a_record_without_a_duration_counts_as_ours() {
    let mut sight = held_by("other", 0.0);
    sight.record.lease_duration_seconds = None;
    assert_eq!(sight.free_from(TIMES.lease_duration), at(15.0));
    sight.record.lease_duration_seconds = Some(-3);
    assert_eq!(sight.free_from(TIMES.lease_duration), at(15.0));
    sight.record.lease_duration_seconds = Some(60);
    assert_eq!(sight.free_from(TIMES.lease_duration), at(60.0));
}

#[test]
fn who_holds_leases_already_leaves_a_free_one_to_others_for_a_while() {
    let mut case = Case::new();
    case.patience = TIMES.retry_period;
    case.sight = Some(held_by("", 1.0));
    case.attempted(1.0, Ending::HeldByAnother, 1.1);
    assert_eq!(case.tick(1.2), Step::Wait(at(3.0)));
    assert_eq!(case.tick(3.0), attempt(true, 2.0));
}

#[test]
fn who_was_beaten_looks_again_at_once_but_not_in_a_circle() {
    let mut case = Case::new();
    case.sight = Some(held_by("", 0.0));
    assert_eq!(case.attempted(0.0, Ending::Stale, 0.1), attempt(true, 2.0));
    assert_eq!(case.attempted(0.1, Ending::Stale, 0.2), Step::Wait(at(3.4)));
}

#[test]
fn an_answer_that_comes_after_its_time_is_no_leadership() {
    let mut case = Case::new();
    assert_ne!(case.attempted(0.0, Ending::Held, 10.0), Step::Won);
    assert_eq!(case.elector.deadline(), None);
}

#[test]
fn a_leader_leads_for_the_renew_deadline_from_the_start_of_its_last_good_renewal() {
    let mut case = Case::leader();
    assert_eq!(case.elector.deadline(), Some(at(10.0)));
    assert_eq!(case.tick(0.2), Step::Wait(at(2.0)));
    assert_eq!(case.tick(2.0), attempt(false, 2.0));
    assert_eq!(case.attempted(2.0, Ending::Held, 4.0), attempt(false, 2.0));
    assert_eq!(case.elector.deadline(), Some(at(12.0)));
    case.attempted(4.0, Ending::Failed, 9.0);
    assert_eq!(case.elector.deadline(), Some(at(12.0)));
    assert_eq!(case.tick(9.75), attempt(true, 2.0));
    // The less time is left the shorter the pause. No renewal may end after the deadline.
    assert_eq!(case.attempted(9.75, Ending::Failed, 10.0), Step::Wait(at(10.5)));
    assert_eq!(case.tick(10.5), attempt(true, 1.5));
    assert_eq!(case.attempted(10.5, Ending::Failed, 11.5), Step::Wait(at(11.75)));
    assert_eq!(case.tick(11.75), attempt(true, 0.25));
    assert_eq!(
        case.attempted(11.75, Ending::Failed, 12.0),
        Step::Lost(Loss::NotRenewed)
    );
    assert_eq!(case.elector.deadline(), None);
    assert_eq!(
        case.attempted(9.0, Ending::Held, 12.0),
        Step::Lost(Loss::NotRenewed),
        "for good"
    );
}

#[test]
fn a_leader_that_slept_over_its_deadline_does_not_even_try() {
    let mut case = Case::leader();
    assert_eq!(case.tick(10.0), Step::Lost(Loss::NotRenewed));
}

#[test]
fn a_renewal_on_a_stale_version_reads_and_tries_again_at_once() {
    let mut case = Case::leader();
    assert_eq!(case.attempted(2.0, Ending::Stale, 2.1), attempt(true, 2.0));
    assert_eq!(case.attempted(2.1, Ending::Stale, 2.2), Step::Wait(at(4.15)));
    assert_eq!(case.tick(4.15), attempt(true, 2.0));
    assert_eq!(case.attempted(4.15, Ending::Held, 4.2), Step::Wait(at(6.15)));
    assert_eq!(case.tick(6.15), attempt(false, 2.0));
}

#[test]
fn a_leader_that_reads_of_another_has_lost() {
    let mut case = Case::leader();
    assert_eq!(case.attempted(2.0, Ending::HeldByAnother, 2.1), Step::Lost(Loss::Taken));
}

#[test]
fn a_leader_that_hears_of_another_or_of_no_lease_reads_at_once_and_once() {
    for seen in ["other", ""] {
        let mut case = Case::leader();
        case.sight = Some(held_by(seen, 1.0));
        assert_eq!(case.tick(1.0), attempt(true, 2.0), "{seen}");
        assert_eq!(case.attempted(1.0, Ending::Failed, 2.0), Step::Wait(at(4.0)), "{seen}");
    }
    // What is older than the last attempt is no news.
    let mut case = Case::leader();
    case.sight = Some(held_by("other", -1.0));
    assert_eq!(case.tick(0.2), Step::Wait(at(2.0)));
}
