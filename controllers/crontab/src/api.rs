//! The API types of crontab-controller: CronTab in both versions, and CronTabPolicy. `crds.yaml` is
//! generated from them.
//!
//! Architecture Invariant: pure.

mod crontab;
mod crontab_policy;
mod structural;

pub use crontab::{
    CRONTABS, CRONTABS_V2, ConcurrencyPolicy, CronTab, CronTabSpec, CronTabStatus, CronTabV2Spec, CronTabV2Status,
    DEFAULT_SCHEDULE, DstPolicyName, JOB_SCHEDULE, JobNameFormat, JobReference, MAX_SCHEDULE_NAME, MAX_SCHEDULES,
    NamedSchedule, REPLACED_RUNS, RUN_NOW, RunPolicy, RunsStatus, ScheduleStatus, Timing, V2_FIELDS,
};
pub use crontab_policy::{CRONTAB_POLICIES, CronTabDefaults, CronTabLimits, CronTabPolicy, CronTabPolicySpec};

#[cfg(test)]
mod tests {
    use expect_test::expect_file;
    use kube::CustomResourceExt;
    use serde_json::json;

    use super::*;

    /// `make update` runs this test to write the file.
    #[test]
    fn crds_are_generated_from_the_types() {
        let definitions = [CronTab::crd(), CronTabPolicy::crd()].map(|definition| {
            // Do not fold long strings.
            let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
            serde_saphyr::to_string_with_options(&json!(definition), options).unwrap()
        });
        expect_file!["../crds.yaml"].assert_eq(&definitions.join("---\n"));
    }
}
