//! Describes JSON decoding errors without the values in the JSON. The values may be secret, and the
//! descriptions appear in logs and reports.
//!
//! Architecture Invariant: pure.

use serde::de::{self, DeserializeOwned};
use serde_json::{error::Category, value::RawValue};
use serde_path_to_error::{Path, Segment};

use crate::WatchedObject;

/// The start of the messages of [`decode_part`]. No value can begin like this by accident.
const PART: &str = "\u{1}";
const UNKNOWN_FIELD: &str = "unknown field";
/// The prefixes of serde's messages that contain a value and end with what was expected instead.
const VALUE_PREFIXES: [&str; 5] = [
    "invalid type",
    "invalid value",
    "invalid length",
    "unknown variant",
    UNKNOWN_FIELD,
];

/// A decoding error without the offending value.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct JsonError(String);

impl JsonError {
    pub(crate) fn new(error: &serde_json::Error) -> Self {
        Self(without_value(error))
    }
}

/// Decodes a part of an object that the type of the whole keeps as raw JSON.
///
/// # Errors
///
/// Returns an error with which the decoding of the whole object can fail. Reports then name the
/// field below the path `field`, and no value.
pub fn decode_part<T: DeserializeOwned, E: de::Error>(field: &str, json: &str) -> Result<T, E> {
    let explain = |error| E::custom(format_args!("{PART}{field}{}", locate::<T>(json, &error, ".")));
    serde_json::from_str(json).map_err(explain)
}

/// Describes an error by the path of the field and what was expected there.
///
/// This decodes the object a second time to locate the field, which is too slow to do for every
/// object.
#[cold]
pub(crate) fn explain<T: WatchedObject>(raw: &RawValue, error: &serde_json::Error) -> String {
    let text = error.to_string();
    if let Some(part) = text.strip_prefix(PART) {
        let place = format!(" at line {} column {}", error.line(), error.column());
        return part.strip_suffix(&place).unwrap_or(part).to_owned();
    }
    let located = locate::<T>(raw.get(), error, "");
    located.strip_prefix(": ").unwrap_or(&located).to_owned()
}

/// Returns the path of the field, after `separator` if it is not empty, and what was expected
/// there.
fn locate<T: DeserializeOwned>(json: &str, error: &serde_json::Error, separator: &str) -> String {
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let located = serde_path_to_error::deserialize::<_, T>(&mut deserializer).err();
    let text = without_value(error);
    let path = located.map(|error| place(error.path(), text.starts_with(UNKNOWN_FIELD)));
    match path {
        Some(path) if !path.is_empty() => format!("{separator}{path}: {text}"),
        _ => format!(": {text}"),
    }
}

/// Returns the path of fields to the error. It omits enum variants and unknown fields, because both
/// come from the input.
fn place(path: &Path, ends_in_unknown_field: bool) -> String {
    let known = path.iter().len() - usize::from(ends_in_unknown_field).min(path.iter().len());
    let mut text = String::new();
    for segment in path.iter().take(known) {
        match segment {
            Segment::Seq { index } => text.extend(["[", index.to_string().as_str(), "]"]),
            Segment::Map { key } if text.is_empty() => text.push_str(key),
            Segment::Map { key } => text.extend([".", key]),
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    text
}

/// Returns the parts of the message that come from serde and the types, not from the JSON. A
/// message of an unknown form may contain the value anywhere, so no part of it is kept.
fn without_value(error: &serde_json::Error) -> String {
    let text = error.to_string();
    // The parser's own messages contain no values.
    if error.classify() != Category::Data {
        return text;
    }
    for word in ["missing field", "duplicate field"] {
        let field = text.strip_prefix(word).and_then(|rest| rest.split('`').nth(1));
        if let Some(field) = field {
            return format!("{word} `{field}`");
        }
    }
    let place = format!(" at line {} column {}", error.line(), error.column());
    let text = text.strip_suffix(&place).unwrap_or(&text);
    let Some(mismatch) = VALUE_PREFIXES.iter().find(|mismatch| text.starts_with(**mismatch)) else {
        return "unexpected value".to_owned();
    };
    match text.rsplit_once(", expected ") {
        // Such a message ends with "there are no variants" or "there are no fields" instead of an
        // expectation, so ", expected " is part of the value.
        Some((_, expected)) if !expected.contains(", there are no ") => format!("{mismatch}, expected {expected}"),
        _ => (*mismatch).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use portreeve_api::Metadata;
    use serde::{Deserialize, de::Error as _};

    use super::*;
    use crate::Projection;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "the tests only check that decoding them fails")]
    struct Everything {
        metadata: Metadata,
        kind: Option<Kind>,
        text: Option<String>,
        numbers: Option<Vec<u8>>,
        map: Option<BTreeMap<String, bool>>,
        tagged: Option<Tagged>,
        inner: Option<Inner>,
        custom: Option<Custom>,
        part: Option<Part>,
    }

    /// A field that is decoded in a second step.
    #[derive(Debug)]
    struct Part;

    impl<'de> Deserialize<'de> for Part {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let raw = Box::<RawValue>::deserialize(deserializer)?;
            decode_part::<BTreeMap<String, Inner>, _>("part", raw.get()).map(|_| Self)
        }
    }

    #[derive(Debug, Deserialize)]
    enum Kind {
        A,
        B,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "the tests only check that decoding it fails")]
    enum Tagged {
        Number(u8),
        Other,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "the tests only check that decoding it fails")]
    struct Inner {
        known: u8,
    }

    #[derive(Debug)]
    struct Custom;

    impl<'de> Deserialize<'de> for Custom {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let text = String::deserialize(deserializer)?;
            Err(D::Error::custom(format!("cannot read {text}, expected {text}")))
        }
    }

    impl Projection for Everything {
        fn metadata(&self) -> &Metadata {
            &self.metadata
        }
    }

    fn explained(fields: &str) -> String {
        let text = format!(r#"{{"metadata":{{"name":"a"}},{fields}}}"#);
        let raw: Box<RawValue> = serde_json::from_str(&text).unwrap();
        let error = serde_json::from_str::<Everything>(raw.get()).unwrap_err();
        explain::<Everything>(&raw, &error)
    }

    #[test]
    fn errors_state_the_field_and_the_expectation_but_never_the_value() {
        let table = [
            (r#""kind":"hunter2""#, "kind: unknown variant, expected `A` or `B`"),
            (
                r#""kind":"x`, expected `hunter2""#,
                "kind: unknown variant, expected `A` or `B`",
            ),
            (r#""text":1234"#, "text: invalid type, expected a string"),
            (r#""text":["hunter2"]"#, "text: invalid type, expected a string"),
            (r#""numbers":[1,"hunter2"]"#, "numbers[1]: invalid type, expected u8"),
            (
                r#""numbers":[1,"x\", expected hunter2"]"#,
                "numbers[1]: invalid type, expected u8",
            ),
            (r#""numbers":[1234]"#, "numbers[0]: invalid value, expected u8"),
            (r#""map":{"a":"hunter2"}"#, "map.a: invalid type, expected a boolean"),
            (
                r#""tagged":{"hunter2":1}"#,
                "tagged: unknown variant, expected `Number` or `Other`",
            ),
            (r#""tagged":{"Number":1234}"#, "tagged: invalid value, expected u8"),
            (r#""inner":{"hunter2":1}"#, "inner: unknown field, expected `known`"),
            (r#""inner":{}"#, "inner: missing field `known`"),
            (r#""inner":{"known":1,"known":2}"#, "inner: duplicate field `known`"),
            (r#""custom":"hunter2""#, "custom: unexpected value"),
            (
                r#""part":{"a":{"known":1}},"text":1"#,
                "text: invalid type, expected a string",
            ),
            (r#""part":"hunter2""#, "part: invalid type, expected a map"),
            (
                r#""part":{"a":{"known":"hunter2"}}"#,
                "part.a.known: invalid type, expected u8",
            ),
            (r#""part":{"a":{}}"#, "part.a: missing field `known`"),
        ];
        for (fields, expected) in table {
            assert_eq!(explained(fields), expected, "{fields}");
        }
        let unknown = explained(r#""hunter2":1"#);
        assert!(
            unknown.starts_with("unknown field, expected one of `metadata`, "),
            "{unknown}"
        );
    }

    #[test]
    fn a_message_without_an_expectation_never_uses_the_value_as_one() {
        let error = serde_json::Error::unknown_variant("x, expected hunter2", &[]);
        assert_eq!(without_value(&error), "unknown variant");
    }

    #[test]
    fn syntax_errors_include_the_position() {
        let error = serde_json::from_str::<Everything>(r#"{"text": hunter2}"#).unwrap_err();
        assert_eq!(without_value(&error), "expected value at line 1 column 10");
    }
}
