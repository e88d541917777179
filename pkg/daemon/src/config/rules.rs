//! Converts the settings of a config file to values for flags, or to a list of all mistakes.
//!
//! Architecture Invariant: pure. Every value goes through its flag's own parser, so that the file
//! and the command line accept the same values.

use std::{collections::BTreeMap, error::Error as _, ffi::OsString, path::Path};

use clap::{
    Command,
    error::{ContextKind, ContextValue},
};
use portreeve_manager::selection::nearest;

use super::{
    API_VERSION, FileSetting, KIND, Problem,
    document::{self, Entry, Value},
    keys::{Key, ValueType, command_line_only, keys},
};

/// The mistake in a value, with what to write instead.
#[derive(Debug, thiserror::Error)]
enum InvalidValue {
    #[error("expected {expected}, found a mapping; write all keys at the top level")]
    Mapping { expected: String },
    #[error("no value; use {expected}, or remove the key")]
    Missing { expected: String },
    #[error("{found} has no unit; use a duration such as 30s, 1m30s or 12h")]
    NoUnit { found: String },
    #[error("{found} is not an integer; write it without a fraction, exponent or leading zeros")]
    NotInteger { found: String },
    #[error("{found}: expected {expected}")]
    NotOneOf { found: String, expected: String },
    #[error("{found} is not a string; put it in quotes")]
    NotString { found: String },
    #[error("expected {expected}, found {found}")]
    OtherType { found: String, expected: String },
    #[error("{found} is a string; use {expected} without quotes")]
    Quoted { found: String, expected: String },
    /// The parser of the flag rejects the value, in a text that does not need the value.
    #[error("{reason}")]
    Rejected { reason: String },
    /// The parser of the flag rejects the value.
    #[error("{found}: {reason}")]
    RejectedValue { found: String, reason: String },
}

/// Returns the settings of a file for the flags of `command`. Relative paths are resolved against
/// `folder`.
///
/// # Errors
///
/// Returns all mistakes, in the order of their lines.
pub(super) fn settings(bytes: &[u8], command: &Command, folder: &Path) -> Result<Vec<FileSetting>, Vec<Problem>> {
    let entries = document::parse(bytes).map_err(|problem| vec![problem])?;
    let mut problems = header(&entries);
    // Do not check the keys of a file for another program.
    if !problems.is_empty() {
        return Err(problems);
    }
    let keys = keys(command);
    let mut lines = BTreeMap::new();
    let mut settings = Vec::new();
    for Entry { key: name, line, value } in entries {
        let problem = |text| Problem { line, text };
        if let Some(before) = lines.insert(name.clone(), line) {
            problems.push(problem(format!(
                "{name}: duplicate key, first set on line {before}; remove one of them"
            )));
        } else if matches!(&*name, "apiVersion" | "kind") {
        } else if let Some(key) = keys.iter().find(|key| key.name == name) {
            match values(key, line, value, command, folder) {
                Ok(values) => settings.push(FileSetting {
                    flag: key.arg.get_id().clone(),
                    key: name,
                    line,
                    values,
                }),
                Err(problem) => problems.push(Problem {
                    text: format!("{name}: {}", problem.text),
                    ..problem
                }),
            }
        } else {
            problems.push(problem(format!("{name}: {}", unknown(&name, &keys, command))));
        }
    }
    if problems.is_empty() {
        Ok(settings)
    } else {
        Err(problems)
    }
}

/// Returns the command with a setting of the file as the default of its flag.
pub(super) fn with_default(command: Command, setting: &FileSetting) -> Command {
    command.mut_arg(&setting.flag, |flag| flag.default_values(setting.values.clone()))
}

/// Checks `apiVersion` and `kind`.
fn header(entries: &[Entry]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (key, known) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        match entries.iter().find(|entry| entry.key == key) {
            None => problems.push(Problem {
                line: 1,
                text: format!("{key} is missing; start the file with {key}: {known}"),
            }),
            Some(entry) if matches!(&entry.value, Value::Text(text) if text == known) => {}
            Some(entry) => problems.push(Problem {
                line: entry.line,
                text: match &entry.value {
                    Value::Text(text) => format!("{key}: unknown value {text:?}; use {known}"),
                    _ => format!("{key}: expected {known}"),
                },
            }),
        }
    }
    problems
}

fn unknown(name: &str, keys: &[Key<'_>], command: &Command) -> String {
    if let Some(flag) = command_line_only(command, name) {
        return format!("not a setting; use --{flag} on the command line");
    }
    let header = ["apiVersion", "kind"].into_iter();
    match nearest(name, header.chain(keys.iter().map(|key| &*key.name))) {
        Some(nearest) => format!("unknown key; did you mean {nearest}?"),
        None => "unknown key; `portreeve config-reference` lists all keys".to_owned(),
    }
}

/// Returns the values for one flag, each in the form of the command line.
fn values(key: &Key<'_>, line: u64, value: Value, command: &Command, folder: &Path) -> Result<Vec<OsString>, Problem> {
    let items = match (key.is_list, value) {
        (true, Value::List(items)) => items,
        (true, value) => {
            let text = format!("expected a list such as [a, b], found {}", describe(&value));
            return Err(Problem { line, text });
        }
        (false, value) => vec![(line, value)],
    };
    let convert = |(line, value): (u64, Value)| {
        let problem = |error: InvalidValue| Problem {
            line,
            text: error.to_string(),
        };
        let text = scalar(key, value).map_err(problem)?;
        let setting = FileSetting {
            flag: key.arg.get_id().clone(),
            key: key.name.clone(),
            line,
            values: vec![text.clone().into()],
        };
        check(key.value_type, &text, with_default(command.clone(), &setting)).map_err(problem)?;
        Ok(match key.value_type {
            ValueType::Path => folder.join(text).into_os_string(),
            _ => text.into(),
        })
    };
    items.into_iter().map(convert).collect()
}

/// Checks the value with the parser of the flag. The value is the flag's default in `command`.
fn check(value_type: ValueType, text: &str, command: Command) -> Result<(), InvalidValue> {
    let Err(error) = command.try_get_matches_from(["portreeve"]) else {
        return Ok(());
    };
    let reason = match (error.source(), error.get(ContextKind::ValidValue)) {
        (Some(source), _) => source.to_string(),
        (None, Some(ContextValue::Strings(valid))) if !valid.is_empty() => {
            format!("expected one of {}", valid.join(", "))
        }
        (None, _) => format!("expected {}", value_type.expected()),
    };
    let found = match value_type {
        // An invalid URL may still contain a password, so the text is left out.
        ValueType::Url => return Err(InvalidValue::Rejected { reason }),
        _ if reason.starts_with(text) => return Err(InvalidValue::Rejected { reason }),
        ValueType::Boolean | ValueType::Integer | ValueType::Number => text.to_owned(),
        ValueType::Duration | ValueType::Path | ValueType::Text => format!("{text:?}"),
    };
    Err(InvalidValue::RejectedValue { found, reason })
}

/// Returns the command-line text of a value, if the value has the right type.
fn scalar(key: &Key<'_>, value: Value) -> Result<String, InvalidValue> {
    let value_type = key.value_type;
    let is_text = matches!(
        value_type,
        ValueType::Duration | ValueType::Path | ValueType::Url | ValueType::Text
    );
    let one_of = key.one_of();
    let expected = one_of.as_deref().unwrap_or(value_type.expected()).to_owned();
    let found = describe(&value);
    match (value_type, value) {
        (ValueType::Boolean, Value::Boolean(value)) => Ok(value.to_string()),
        (ValueType::Integer | ValueType::Number, Value::Integer(digits)) => Ok(digits),
        (ValueType::Number, Value::Number(value)) => Ok(value.to_string()),
        (_, Value::Text(text)) if is_text => Ok(text),
        (_, Value::Null) => Err(InvalidValue::Missing { expected }),
        (ValueType::Integer, Value::Number(_)) => Err(InvalidValue::NotInteger { found }),
        (ValueType::Duration, Value::Integer(_) | Value::Number(_)) => Err(InvalidValue::NoUnit { found }),
        (_, Value::Integer(_) | Value::Number(_) | Value::Boolean(_)) if is_text && one_of.is_none() => {
            Err(InvalidValue::NotString { found })
        }
        (_, Value::Text(text)) if is_valid_without_quotes(value_type, &text) => {
            Err(InvalidValue::Quoted { found, expected })
        }
        (_, Value::Mapping(_)) => Err(InvalidValue::Mapping { expected }),
        _ if one_of.is_some() => Err(InvalidValue::NotOneOf { found, expected }),
        _ => Err(InvalidValue::OtherType { found, expected }),
    }
}

/// Returns whether a text would have the right type without its quotes.
fn is_valid_without_quotes(value_type: ValueType, text: &str) -> bool {
    match value_type {
        ValueType::Boolean => matches!(text, "true" | "false"),
        ValueType::Integer => text.parse::<i64>().is_ok(),
        ValueType::Number => text.parse::<f64>().is_ok_and(f64::is_finite),
        ValueType::Duration | ValueType::Path | ValueType::Url | ValueType::Text => false,
    }
}

/// Describes a value of the wrong type as part of a sentence.
fn describe(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Boolean(value) => value.to_string(),
        Value::Integer(digits) => digits.clone(),
        Value::Number(value) => value.to_string(),
        Value::Text(text) => format!("{text:?}"),
        Value::List(_) => "a list".to_owned(),
        Value::Mapping(_) => "a mapping".to_owned(),
    }
}
