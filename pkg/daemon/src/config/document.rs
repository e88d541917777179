//! Parses the YAML of a config file: its keys in order, each with its line and its value.
//!
//! Aliases, merge keys and further documents are rejected. A flat list of settings needs none of
//! them, and without them a small file cannot expand to a large one.
//!
//! Architecture Invariant: pure. The errors of this module contain no keys or values of the file,
//! because it may be the wrong file and contain a secret.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{
    Error, Spanned,
    options::{DuplicateKeyPolicy, MergeKeyPolicy},
};

use super::Problem;

/// The limit for the nesting of values. Settings need only a list within the mapping, and each
/// level takes stack space.
const MAX_DEPTH: usize = 8;

/// A key, its line, and its value.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: u64,
    pub(super) value: Value,
}

/// A value in YAML.
#[derive(Debug)]
pub(super) enum Value {
    /// `null`, or no value
    Null,
    Boolean(bool),
    /// An integer in decimal digits
    Integer(String),
    /// A number with a fraction or an exponent, or one that does not fit into 64 bits
    Number(f64),
    Text(String),
    /// The items with their lines
    List(Vec<(u64, Self)>),
    Mapping(Vec<Entry>),
}

/// Parses the mapping of a file. An empty file has no entries.
pub(super) fn parse(bytes: &[u8]) -> Result<Vec<Entry>, Problem> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = bytes[..error.valid_up_to()].split(|byte| *byte == b'\n');
        Problem {
            line: before.count() as u64,
            text: "invalid UTF-8; save the file as UTF-8".to_owned(),
        }
    })?;
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH },
        // `rules` reports duplicates with both lines.
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        merge_keys: MergeKeyPolicy::Error,
        strict_booleans: true,
        with_snippet: false,
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 0 },
    };
    let root: Spanned<Value> =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| problem(&error, text))?;
    match root.value {
        Value::Mapping(entries) => Ok(entries),
        Value::Null => Ok(Vec::new()),
        _ => Err(Problem {
            line: root.referenced.line(),
            text: "the file is not a mapping; write one key and value per line, such as leaderElect: true".to_owned(),
        }),
    }
}

fn problem(error: &Error, file: &str) -> Problem {
    // The parser may report a tab on the line before it.
    let tab = file
        .lines()
        .position(|line| line.trim_start_matches(' ').starts_with('\t'));
    if let (Error::ExternalMessage { msg, .. }, Some(before)) = (error, tab)
        && msg.contains("tab")
    {
        return Problem {
            line: before as u64 + 1,
            text: "invalid YAML: a tab in the indentation; use spaces".to_owned(),
        };
    }
    let text = match error {
        Error::MultipleDocuments { .. } => "a second document starts here; only one is allowed".to_owned(),
        Error::AliasReplayLimitExceeded { .. } => {
            "aliases are not supported; replace the alias of this anchor with the value".to_owned()
        }
        Error::Budget { .. } => "the file is too complex; write a flat mapping".to_owned(),
        Error::MergeKeyNotAllowed { .. } => "merge keys are not supported; write the keys out".to_owned(),
        Error::TaggedScalarCannotDeserializeIntoString { .. } => "this tag is not supported; remove it".to_owned(),
        Error::NullIntoString { .. } | Error::Unexpected { .. } => {
            "a key must be a string, such as leaderElect".to_owned()
        }
        Error::ExternalMessage { msg, .. } if msg.contains("anchor or alias") => {
            "invalid YAML: an asterisk starts an alias; put it in quotes, such as \"*\"".to_owned()
        }
        Error::ExternalMessage { msg, .. } => format!("invalid YAML: {msg}"),
        _ => "invalid YAML".to_owned(),
    };
    let line = error.location().map_or(1, |location| location.line().max(1));
    Problem { line, text }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Boolean(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Integer(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Integer(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element::<Spanned<Value>>()? {
            list.push((item.referenced.line(), item.value));
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, value)) = pairs.next_entry::<Spanned<String>, Value>()? {
            entries.push(Entry {
                line: key.referenced.line(),
                key: key.value,
                value,
            });
        }
        Ok(Value::Mapping(entries))
    }
}
