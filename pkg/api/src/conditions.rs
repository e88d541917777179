//! Conditions according to the API conventions: one per type, with the time of the last status
//! change.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Contains details for one aspect of the current state of this API resource. It has the fields of
/// `metav1.Condition`.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// type of condition in CamelCase.
    #[serde(rename = "type")]
    pub type_: String,
    /// status of the condition, one of True, False, Unknown.
    pub status: ConditionStatus,
    /// observedGeneration represents the .metadata.generation that the condition was set based
    /// upon.
    #[serde(default)]
    pub observed_generation: i64,
    /// lastTransitionTime is the last time the condition transitioned from one status to another.
    #[schemars(with = "TimeSchema")]
    pub last_transition_time: Timestamp,
    /// reason contains a programmatic identifier indicating the reason for the condition's last
    /// transition.
    pub reason: String,
    /// message is a human readable message indicating details about the transition. This may be an
    /// empty string.
    #[serde(default)]
    pub message: String,
}

/// The status of a condition.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// The controller cannot decide whether the condition holds.
    Unknown,
}

/// The parts of a condition that a controller decides. [`set_status_conditions`] adds the
/// generation and the time.
#[derive(Clone, Copy, Debug)]
pub struct ConditionUpdate<'a> {
    /// Type of the condition.
    pub type_: &'a str,
    /// Whether the condition holds.
    pub status: ConditionStatus,
    /// The reason, in CamelCase.
    pub reason: &'a str,
    /// The message for people.
    pub message: &'a str,
}

/// Returns `before` with these updates applied for the given generation.
///
/// Conditions of other types are kept. The transition time changes only with the status. Times are
/// in whole seconds like `metav1.Time`, so that a written condition equals the one that is read
/// back.
pub fn set_status_conditions(
    before: &[Condition],
    updates: &[ConditionUpdate<'_>],
    generation: i64,
    now: Timestamp,
) -> Vec<Condition> {
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let mut conditions = before.to_vec();
    for update in updates {
        let existing = conditions.iter_mut().find(|condition| condition.type_ == update.type_);
        match existing {
            Some(condition) => {
                if condition.status != update.status {
                    condition.last_transition_time = now;
                }
                condition.status = update.status;
                condition.observed_generation = generation;
                update.reason.clone_into(&mut condition.reason);
                update.message.clone_into(&mut condition.message);
            }
            None => conditions.push(Condition {
                type_: update.type_.to_owned(),
                status: update.status,
                observed_generation: generation,
                last_transition_time: now,
                reason: update.reason.to_owned(),
                message: update.message.to_owned(),
            }),
        }
    }
    conditions
}

/// Returns the condition with this type, or `None`.
pub fn find_status_condition<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// The OpenAPI schema of a time, for `#[schemars(with)]`.
#[derive(JsonSchema)]
#[schemars(transparent)]
pub struct TimeSchema(
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
    fn transition_time_changes_only_with_the_status() {
        let first = set_status_conditions(&[], &[ready(ConditionStatus::False, "New")], 1, at(10));
        let same = set_status_conditions(&first, &[ready(ConditionStatus::False, "Waiting")], 2, at(20));
        let other = set_status_conditions(&same, &[ready(ConditionStatus::True, "Done")], 2, at(30));
        assert_eq!(same[0].last_transition_time, at(10));
        assert_eq!((same[0].reason.as_str(), same[0].observed_generation), ("Waiting", 2));
        assert_eq!(other[0].last_transition_time, at(30));
        assert_eq!(other.len(), 1);
    }

    #[test]
    fn conditions_of_other_types_are_kept() {
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
