//! `--feature-gates`: features that can be turned on or off, with Kubernetes' names.
//!
//! Architecture Invariant: pure.

use std::str::FromStr;

/// A feature that has a gate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Feature {
    /// `/flagz`.
    ComponentFlagz,
    /// `/statusz`.
    ComponentStatusz,
}

/// The features by name. All are beta, and on by default.
const FEATURES: [(&str, Feature); 2] = [
    ("ComponentFlagz", Feature::ComponentFlagz),
    ("ComponentStatusz", Feature::ComponentStatusz),
];

/// One item of the flag.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct FeatureGate {
    feature: Feature,
    is_enabled: bool,
}

/// The mistake in an item of the flag.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidFeatureGate {
    #[error("expected NAME=true or NAME=false, with a name of {}", names())]
    NoValue,
    #[error("unknown feature {name:?}; known are {}", names())]
    UnknownFeature { name: String },
    #[error("the value of {name} must be true or false, not {value:?}")]
    Value { name: &'static str, value: String },
}

fn names() -> String {
    FEATURES.map(|(name, _)| name).join(", ")
}

impl FromStr for FeatureGate {
    type Err = InvalidFeatureGate;

    /// Parses `NAME=true` or `NAME=false`. The name may have Kubernetes' prefix `kube:`.
    fn from_str(text: &str) -> Result<Self, InvalidFeatureGate> {
        let (name, value) = text.split_once('=').ok_or(InvalidFeatureGate::NoValue)?;
        let name = name.strip_prefix("kube:").unwrap_or(name);
        let found = FEATURES.into_iter().find(|(known, _)| *known == name);
        let (name, feature) = found.ok_or_else(|| InvalidFeatureGate::UnknownFeature { name: name.to_owned() })?;
        let is_enabled = value.parse().map_err(|_| InvalidFeatureGate::Value {
            name,
            value: value.to_owned(),
        })?;
        Ok(Self { feature, is_enabled })
    }
}

/// Returns the name and the stage of each feature, and whether it is on.
pub(crate) fn all(gates: &[FeatureGate]) -> impl Iterator<Item = (&'static str, &'static str, bool)> {
    let features = FEATURES.into_iter();
    features.map(|(name, feature)| (name, "BETA", is_enabled(gates, feature)))
}

/// Returns whether a feature is on. The last item about it counts.
pub(crate) fn is_enabled(gates: &[FeatureGate], feature: Feature) -> bool {
    let last = gates.iter().rfind(|gate| gate.feature == feature);
    last.is_none_or(|gate| gate.is_enabled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gates(texts: &[&str]) -> Vec<FeatureGate> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn features_are_on_unless_the_last_item_turns_them_off() {
        let table = [
            (&[][..], true),
            (&["ComponentFlagz=false"], false),
            (&["kube:ComponentFlagz=false"], false),
            (&["ComponentFlagz=false", "ComponentFlagz=true"], true),
            (&["ComponentStatusz=false"], true),
        ];
        for (texts, expected) in table {
            assert_eq!(
                is_enabled(&gates(texts), Feature::ComponentFlagz),
                expected,
                "{texts:?}"
            );
        }
    }

    #[test]
    fn an_invalid_item_is_rejected_with_the_known_names() {
        for (text, words) in [
            ("ComponentFlagz", "expected NAME=true"),
            (
                "Fooz=true",
                "unknown feature \"Fooz\"; known are ComponentFlagz, ComponentStatusz",
            ),
            ("ComponentFlagz=yes", "must be true or false, not \"yes\""),
        ] {
            let error = text.parse::<FeatureGate>().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
