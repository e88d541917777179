//! Tests of keys that are delayed, by request or by backoff.

use super::check;

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
fn a_past_time_makes_the_key_ready_now() {
    check(
        "20 add a urgent 5 -> One
         21 take -> a Urgent failures=0 waited=1
         22 done a at=3 -> ran=1 One
         22 tally -> added=2 retried=0",
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
