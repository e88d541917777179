//! Tests of keys that are delayed, by request or by backoff.

use super::check;

#[test]
fn a_delay_while_running_is_kept() {
    check(
        "0 add a urgent
         0 take
         1 add a urgent 50 -> Nobody
         2 done a forget -> ran=2 All
         2 take -> Sleep 50
         50 take -> a Urgent failures=0 waited=0",
    );
}

#[test]
fn the_earliest_of_several_delays_wins() {
    check(
        "0 add a urgent 50 -> All
         0 add a urgent 70 -> Nobody
         0 take -> Sleep 50
         0 add a urgent 30 -> All
         0 take -> Sleep 30
         29 take -> Sleep 30
         35 take -> a Urgent failures=0 waited=5
         35 done a forget
         99 take -> Idle",
    );
}

#[test]
fn only_an_earlier_time_wakes_the_sleepers() {
    check(
        "0 add a urgent 50 -> All
         0 add b urgent 60 -> Nobody
         0 add c urgent 50 -> Nobody
         0 add b urgent 40 -> All",
    );
}

#[test]
fn an_add_of_a_delayed_key_makes_it_ready_now() {
    check(
        "0 add a urgent 50
         10 add a routine -> One
         10 take -> a Urgent failures=0 waited=0
         10 done a forget
         99 take -> Idle",
    );
}

#[test]
fn a_past_time_makes_the_key_ready_now() {
    check(
        "20 add a urgent 5 -> One
         21 take -> a Urgent failures=0 waited=1
         22 done a at=3 -> ran=1 One
         22 tally -> added=2 retried=0",
    );
}

#[test]
fn due_keys_are_ordered_by_time_before_later_adds() {
    check(
        "0 add b urgent 20
         0 add c urgent 20
         0 add a urgent 10
         30 add d urgent
         30 take -> a Urgent failures=0 waited=20
         30 take -> b Urgent failures=0 waited=10
         30 take -> c Urgent failures=0 waited=10
         30 take -> d Urgent failures=0 waited=0",
    );
}

#[test]
fn retries_back_off_until_success() {
    check(
        "0 add a routine
         0 take -> a Routine failures=0 waited=0
         0 done a retry -> ran=0 All
         0 take -> Sleep 5
         5 take -> a Routine failures=1 waited=0
         5 done a retry
         5 take -> Sleep 15
         15 take -> a Routine failures=2 waited=0
         15 done a retry
         35 take -> a Routine failures=3 waited=0
         35 done a forget
         35 keys -> 0
         40 add a urgent
         40 take -> a Urgent failures=0 waited=0
         40 done a retry
         40 take -> Sleep 45",
    );
}

#[test]
fn retry_after_extends_the_backoff_but_does_not_shorten_it() {
    check(
        "0 add a urgent
         0 take
         0 done a after=100
         0 take -> Sleep 100
         100 take -> a Urgent failures=1 waited=0
         100 done a after=3
         100 take -> Sleep 110
         110 take -> a Urgent failures=2 waited=0",
    );
}

#[test]
fn the_longest_delay_is_one_year() {
    check(
        "0 add a urgent
         0 take
         0 done a after=max
         0 take -> Sleep 31536000000",
    );
}

#[test]
fn a_scheduled_run_forgets_failures_and_is_urgent() {
    check(
        "0 add a routine
         0 take
         0 done a retry
         5 take -> a Routine failures=1 waited=0
         6 done a at=60 -> ran=1 All
         6 take -> Sleep 60
         60 take -> a Urgent failures=0 waited=0",
    );
}

#[test]
fn a_timed_key_is_urgent_only_from_its_time_on() {
    check(
        "0 add a urgent
         0 take
         0 done a at=60
         1 add a routine
         2 take -> a Routine failures=0 waited=1
         2 done a at=60
         3 add a routine 80
         60 take -> a Urgent failures=0 waited=0",
    );
}

#[test]
fn reschedule_now_affects_times_but_not_backoff() {
    check(
        "0 add a routine
         0 add b routine
         0 take
         0 take
         0 done a at=90
         0 done b retry
         0 add c routine 50
         1 reschedule_now -> All
         1 take -> c Routine failures=0 waited=0
         1 take -> a Routine failures=0 waited=0
         1 take -> Sleep 5
         1 reschedule_now -> Nobody",
    );
}

#[test]
fn the_end_of_an_outage_ends_only_the_backoffs_that_it_has_caused() {
    check(
        "0 add a routine
         0 add b routine
         0 add c routine
         0 add d routine
         0 take\n0 take\n0 take\n0 take
         0 done a unavailable=30000
         0 done b retry
         0 done c after=1000
         0 done d at=2000
         1 take -> Sleep 5
         5 take -> b Routine failures=1 waited=0
         6 done b retry
         7 end_outage 200 -> All
         7 take -> Sleep 16
         16 take -> b Routine failures=2 waited=0
         17 done b forget
         18 end_outage 200 -> All
         18 take -> Sleep 207
         207 take -> a Routine failures=1 waited=0
         208 done a forget
         209 end_outage 200 -> Nobody
         209 take -> Sleep 1000
         1000 take -> c Routine failures=1 waited=0
         1001 take -> Sleep 2000",
    );
}

#[test]
fn the_end_of_an_outage_never_extends_a_wait_and_keeps_the_failures() {
    check(
        "0 add a urgent
         0 take
         0 done a unavailable=0
         1 end_outage 200 -> All
         5 take -> a Urgent failures=1 waited=0
         6 done a unavailable=30000
         7 end_outage 20 -> All
         27 take -> a Urgent failures=2 waited=0",
    );
}

#[test]
fn the_end_of_an_outage_ends_the_wait_of_a_run_that_fails_only_after_it() {
    let later = |failure: &str, end: u32| {
        check(&format!(
            "0 add a urgent
             0 take
             0 done a retry
             5 take -> a Urgent failures=1 waited=0
             6 end_outage 200 -> Nobody
             7 done a {failure}
             7 take -> Sleep {end}
             {end} take -> a Urgent failures=2 waited=0
             {end} done a {failure}
             {end} take -> Sleep {}",
            end + 20
        ));
    };
    later("unavailable=0", 12);
    // A failure for another reason waits for its own backoff.
    later("retry", 17);
}

#[test]
fn a_failed_key_with_a_requested_time_waits_for_that_time_or_the_end_of_an_outage() {
    let failed = "0 add a urgent
         0 take
         0 add a urgent 90
         1 done a unavailable=30000
         1 take -> Sleep 90
         ";
    check(&format!("{failed}90 take -> a Urgent failures=1 waited=0"));
    check(&format!(
        "{failed}7 end_outage 20 -> All
         27 take -> a Urgent failures=1 waited=0"
    ));
}

#[test]
fn a_key_added_during_a_failing_run_is_ready_at_once_and_the_backoff_continues() {
    check(
        "0 add a urgent
         0 take
         0 done a retry
         5 take -> a Urgent failures=1 waited=0
         6 add a urgent
         7 done a retry -> ran=2 One
         7 take -> a Urgent failures=2 waited=1
         8 done a retry
         8 take -> Sleep 28
         28 take -> a Urgent failures=3 waited=0
         28 done a forget
         99 take -> Idle",
    );
}

#[test]
fn an_add_during_backoff_keeps_the_failures() {
    check(
        "0 add a urgent
         0 take
         0 done a retry
         1 add a urgent -> One
         1 take -> a Urgent failures=1 waited=0
         1 done a retry
         1 take -> Sleep 11",
    );
}
