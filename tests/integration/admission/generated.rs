//! Random objects: valid ones, and valid ones with one broken field.

use anyhow::Result;
use proptest::{
    collection::vec,
    prelude::{Just, Strategy, any, prop_oneof},
    sample::select,
    test_runner::{Config, TestCaseError, TestRunner},
};
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;

use super::{
    environment::environment,
    rows,
    table::{Case, Place, Space, check},
};

/// The number of objects. Each is one request.
const CASES: u32 = 96;

/// A change that breaks an object.
#[derive(Clone, Debug)]
enum Fault {
    /// Sets a field to a value that the CRD rejects.
    Value(&'static str, Value),
    /// Adds a field that the CRD does not have.
    Unknown(String),
    /// Repeats the name of the first container.
    SameName,
    /// Gives the object a name of this length.
    LongName(usize),
    /// Gives one of the containers an image that is not allowed.
    Image(usize),
    TimeZone,
    Every,
    /// Sets a schedule that cannot work.
    Schedule(&'static str),
    /// Sets a schedule that runs more often than the namespace allows.
    TooOften,
}

impl Fault {
    /// Breaks a CronTab, and returns the place that rejects it, and the path of the field.
    fn apply(&self, crontab: &mut Value) -> (Place, String) {
        let spec = &mut crontab["spec"];
        let containers = spec["jobTemplate"]["containers"].as_array().map_or(0, Vec::len);
        match self {
            Self::Value(field, value) => {
                spec[*field] = value.clone();
                (Place::Definition, format!("spec.{field}"))
            }
            Self::Unknown(name) => {
                spec[name] = json!(1);
                (Place::Definition, format!("spec.{name}"))
            }
            Self::SameName => {
                let repeated = spec["jobTemplate"]["containers"][0].clone();
                if let Some(containers) = spec["jobTemplate"]["containers"].as_array_mut() {
                    containers.push(repeated);
                }
                (Place::Definition, format!("spec.jobTemplate.containers[{containers}]"))
            }
            Self::LongName(length) => {
                crontab["metadata"]["name"] = "a".repeat(*length).into();
                (Place::Definition, "metadata.name".to_owned())
            }
            Self::Image(index) => {
                let index = index % containers.max(1);
                spec["jobTemplate"]["containers"][index]["image"] = "evil:1".into();
                (Place::Policy, format!("spec.jobTemplate.containers[{index}].image"))
            }
            Self::TimeZone => {
                spec["timeZone"] = "Europe/Berlin".into();
                (Place::Policy, "spec.timeZone".to_owned())
            }
            Self::Every => {
                spec["schedule"] = "@every 90m".into();
                (Place::Policy, "spec.schedule".to_owned())
            }
            Self::Schedule(schedule) => {
                spec["schedule"] = (*schedule).into();
                (Place::Webhook, "spec.schedule".to_owned())
            }
            Self::TooOften => {
                spec["schedule"] = "* * * * *".into();
                (Place::WebhookLimit, "spec.schedule".to_owned())
            }
        }
    }
}

fn faults() -> impl Strategy<Value = Fault> {
    let below_zero = (
        select(vec![
            "successfulJobsHistoryLimit",
            "failedJobsHistoryLimit",
            "startingDeadlineSeconds",
            "backoffLimit",
            "activeDeadlineSeconds",
            "ttlSecondsAfterFinished",
        ]),
        i64::MIN..0,
    );
    let too_long = (select(vec!["schedule", "timeZone"]), 1025_usize..1100);
    let other = (select(vec!["concurrencyPolicy", "dstPolicy"]), "[a-z]{1,8}");
    let wrong_type = select(vec!["schedule", "timeZone", "suspend", "backoffLimit", "jobTemplate"]);
    prop_oneof![
        below_zero.prop_map(|(field, value)| Fault::Value(field, value.into())),
        too_long.prop_map(|(field, length)| Fault::Value(field, "a".repeat(length).into())),
        other.prop_map(|(field, value)| Fault::Value(field, value.into())),
        wrong_type.prop_map(|field| Fault::Value(field, json!([]))),
        "x[a-z]{1,8}".prop_map(Fault::Unknown),
        Just(Fault::SameName),
        (53_usize..200).prop_map(Fault::LongName),
        any::<usize>().prop_map(Fault::Image),
        Just(Fault::TimeZone),
        Just(Fault::Every),
        select(vec!["not a schedule", "* * * * 8", "0 0 31 11 *"]).prop_map(Fault::Schedule),
        Just(Fault::TooOften),
    ]
}

/// Returns CronTabs that the CRD and the limits of the namespace accept.
fn crontabs() -> impl Strategy<Value = Value> {
    let containers = vec(select(vec!["example.com/a:1", "busybox:1", "alpine:3"]), 1..4);
    let number = |least: i64, greatest: i64| proptest::option::of(least..=greatest);
    let most = i64::from(i32::MAX);
    let numbers = (
        number(0, most),
        number(0, most),
        number(0, i64::MAX),
        number(0, most),
        number(1, i64::MAX),
        number(0, most),
    );
    let words = (
        select(vec!["@daily", "*/5 * * * *", "H H * * *", "0 0 29 2 *"]),
        proptest::option::of(select(vec!["UTC", "Europe/Zurich"])),
        proptest::option::of(any::<bool>()),
        proptest::option::of(select(vec!["Allow", "Forbid", "Replace"])),
        proptest::option::of(select(vec!["Once", "Kubernetes"])),
    );
    ("[a-z]([-a-z0-9]{0,40}[a-z0-9])?", containers, numbers, words).prop_map(|(name, images, numbers, words)| {
        let containers = images.iter().enumerate();
        let containers: Value = containers
            .map(|(index, image)| json!({"name": format!("c{index}"), "image": image}))
            .collect();
        let fields = json!({
            "jobTemplate": {"containers": containers},
            "successfulJobsHistoryLimit": numbers.0,
            "failedJobsHistoryLimit": numbers.1,
            "startingDeadlineSeconds": numbers.2,
            "backoffLimit": numbers.3,
            "activeDeadlineSeconds": numbers.4,
            "ttlSecondsAfterFinished": numbers.5,
            "schedule": words.0,
            "timeZone": words.1,
            "suspend": words.2,
            "concurrencyPolicy": words.3,
            "dstPolicy": words.4,
        });
        let set = fields.as_object().cloned().unwrap_or_default().into_iter();
        rows::crontab(
            &name,
            set.filter(|(_, value)| !value.is_null()).collect::<Map<_, _>>().into(),
        )
    })
}

/// Returns rows of which a third are good.
pub(super) fn cases() -> impl Strategy<Value = Case> {
    (crontabs(), proptest::option::weighted(0.67, faults())).prop_map(|(mut crontab, fault)| {
        let rejection = fault.map(|fault| fault.apply(&mut crontab));
        let case = Case::good(crontab).in_space(Space::Limited);
        match rejection {
            Some((place, path)) => case.rejected_by(place, path, &[]),
            None => case,
        }
    })
}

#[test]
fn random_objects_are_rejected_by_the_place_and_for_the_field_that_is_broken() -> Result<()> {
    let runtime = Runtime::new()?;
    let environment = runtime.block_on(environment())?;
    let client = runtime.block_on(async { environment.client() })?;
    let mut runner = TestRunner::new(Config {
        cases: CASES,
        source_file: Some(file!()),
        ..Config::default()
    });
    let outcome = runner.run(&cases(), |case| {
        let checked = runtime.block_on(check(environment, &client, &case));
        checked.map_err(|error| TestCaseError::fail(format!("{error:#}")))
    });
    outcome.map_err(|error| anyhow::anyhow!("{error}"))
}
