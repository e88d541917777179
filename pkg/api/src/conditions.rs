//! Conditions, as the API conventions want them: one a type, with the time of the last change of its status.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One observation of an object's state. The same fields as `metav1.Condition`.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition, in CamelCase.
    #[serde(rename = "type")]
    pub type_: String,
    /// Status of the condition: True, False or Unknown.
    pub status: ConditionStatus,
    /// The `.metadata.generation` that this condition was computed from.
    #[serde(default)]
    pub observed_generation: i64,
    /// The last time that the status of the condition changed.
    #[schemars(with = "Time")]
    pub last_transition_time: Timestamp,
    /// A programmatic identifier of the reason of the last transition, in CamelCase.
    pub reason: String,
    /// The same for people; may be empty.
    #[serde(default)]
    pub message: String,
}

/// The three values that a condition's status takes.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// It could not be found out.
    Unknown,
}

/// What a decision says about one condition; the rest follows from the object and the time.
#[derive(Clone, Copy, Debug)]
pub struct ConditionUpdate<'a> {
    /// Type of the condition.
    pub type_: &'a str,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// Why, in CamelCase.
    pub reason: &'a str,
    /// Why, for people.
    pub message: &'a str,
}

/// The conditions that follow `before` once `condition_updates` were made about the given generation.
///
/// Conditions of other types are kept. A condition's transition time moves only with its status; seconds are its unit, as
/// `metav1.Time` has no finer one, so that what is written equals what is read back.
pub fn set_status_conditions(
    before: &[Condition],
    condition_updates: &[ConditionUpdate<'_>],
    generation: i64,
    now: Timestamp,
) -> Vec<Condition> {
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let mut conditions = before.to_vec();
    for condition_update in condition_updates {
        let known = conditions
            .iter_mut()
            .find(|condition| condition.type_ == condition_update.type_);
        match known {
            Some(condition) => {
                if condition.status != condition_update.status {
                    condition.last_transition_time = now;
                }
                condition.status = condition_update.status;
                condition.observed_generation = generation;
                condition_update.reason.clone_into(&mut condition.reason);
                condition_update.message.clone_into(&mut condition.message);
            }
            None => conditions.push(Condition {
                type_: condition_update.type_.to_owned(),
                status: condition_update.status,
                observed_generation: generation,
                last_transition_time: now,
                reason: condition_update.reason.to_owned(),
                message: condition_update.message.to_owned(),
            }),
        }
    }
    conditions
}

/// The condition of that type, if there is one.
pub fn find_status_condition<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// How a time stands in an OpenAPI schema.
#[derive(JsonSchema)]
#[schemars(transparent)]
pub(crate) struct Time(
    #[schemars(extend("format" = "date-time"))]
    #[expect(dead_code, reason = "only its schema is used")]
    String,
);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn ready(status: ConditionStatus, reason: &str) -> ConditionUpdate<'_> {
        ConditionUpdate {
            type_: "Ready",
            status,
            reason,
            message: "",
        }
    }

    #[test]
    fn transition_time_moves_with_the_status_alone() {
        let first = set_status_conditions(&[], &[ready(ConditionStatus::False, "New")], 1, at(10));
        let same = set_status_conditions(&first, &[ready(ConditionStatus::False, "Waiting")], 2, at(20));
        let other = set_status_conditions(&same, &[ready(ConditionStatus::True, "Done")], 2, at(30));
        assert_eq!(same[0].last_transition_time, at(10));
        assert_eq!((same[0].reason.as_str(), same[0].observed_generation), ("Waiting", 2));
        assert_eq!(other[0].last_transition_time, at(30));
        assert_eq!(other.len(), 1);
    }

    #[test]
    fn conditions_of_others_are_kept() {
        let theirs = set_status_conditions(
            &[],
            &[ConditionUpdate {
                type_: "Audited",
                ..ready(ConditionStatus::True, "Yes")
            }],
            1,
            at(1),
        );
        let both = set_status_conditions(&theirs, &[ready(ConditionStatus::True, "Done")], 1, at(2));
        assert_eq!(both[0], theirs[0]);
        assert!(find_status_condition(&both, "Ready").is_some());
    }
}
