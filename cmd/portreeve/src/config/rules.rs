//! From what a config file says to values for flags, or to every mistake in it.
//!
//! Architecture Invariant: pure. A value goes through its flag's own parser, so that nothing is right in the one place and wrong in the
//! other.

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

/// What a file gives for the flags of `command`. `folder` is where its relative paths begin.
///
/// # Errors
///
/// Every mistake, in the order of the lines.
pub(super) fn settings(bytes: &[u8], command: &Command, folder: &Path) -> Result<Vec<FileSetting>, Vec<Problem>> {
    let entries = document::parse(bytes).map_err(|problem| vec![problem])?;
    let mut problems = header(&entries);
    // What is meant for another program is not judged by our keys.
    if !problems.is_empty() {
        return Err(problems);
    }
    let keys = keys(command);
    let mut lines = BTreeMap::new();
    let mut given = Vec::new();
    for Entry { key: name, line, value } in entries {
        let problem = |text| Problem { line, text };
        if let Some(before) = lines.insert(name.clone(), line) {
            problems.push(problem(format!(
                "{name}: it is given in line {before} already; keep one of the two"
            )));
        } else if matches!(&*name, "apiVersion" | "kind") {
        } else if let Some(key) = keys.iter().find(|key| key.name == name) {
            match values(key, line, value, command, folder) {
                Ok(values) => given.push(FileSetting {
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
    if problems.is_empty() { Ok(given) } else { Err(problems) }
}

/// The command with what a file gives for one flag as the flag's default.
pub(super) fn with(command: Command, given: &FileSetting) -> Command {
    command.mut_arg(&given.flag, |flag| flag.default_values(given.values.clone()))
}

/// The two keys that say what the file is.
fn header(entries: &[Entry]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (key, known) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        match entries.iter().find(|entry| entry.key == key) {
            None => problems.push(Problem {
                line: 1,
                text: format!("{key} is missing; begin the file with {key}: {known}"),
            }),
            Some(entry) if matches!(&entry.value, Value::Text(text) if text == known) => {}
            Some(entry) => problems.push(Problem {
                line: entry.line,
                text: match &entry.value {
                    Value::Text(text) => format!("{key}: {text:?} is not known; give {known}"),
                    _ => format!("{key}: give {known}"),
                },
            }),
        }
    }
    problems
}

fn unknown(name: &str, keys: &[Key<'_>], command: &Command) -> String {
    if let Some(flag) = command_line_only(command, name) {
        return format!("it is no setting; give --{flag} on the command line");
    }
    let header = ["apiVersion", "kind"].into_iter();
    match nearest(name, header.chain(keys.iter().map(|key| &*key.name))) {
        Some(nearest) => format!("there is no such key, did you mean {nearest}?"),
        None => "there is no such key; `portreeve config-reference` prints all".to_owned(),
    }
}

/// The values for one flag, each as on the command line.
fn values(key: &Key<'_>, line: u64, value: Value, command: &Command, folder: &Path) -> Result<Vec<OsString>, Problem> {
    let items = match (key.is_list, value) {
        (true, Value::List(items)) => items,
        (true, value) => {
            let text = format!("{} is no list; give one, such as [a, b]", describe(&value));
            return Err(Problem { line, text });
        }
        (false, value) => vec![(line, value)],
    };
    let one = |(line, value): (u64, Value)| {
        let text = scalar(key, value).map_err(|text| Problem { line, text })?;
        let given = FileSetting {
            flag: key.arg.get_id().clone(),
            key: key.name.clone(),
            line,
            values: vec![text.clone().into()],
        };
        check(key.form, &text, with(command.clone(), &given)).map_err(|text| Problem { line, text })?;
        Ok(match key.form {
            ValueType::Path => folder.join(text).into_os_string(),
            _ => text.into(),
        })
    };
    items.into_iter().map(one).collect()
}

/// Whether the parser of the flag takes the value, which is its default in this command.
fn check(form: ValueType, text: &str, command: Command) -> Result<(), String> {
    let Err(error) = command.try_get_matches_from(["portreeve"]) else {
        return Ok(());
    };
    let reason = match (error.source(), error.get(ContextKind::ValidValue)) {
        (Some(source), _) => source.to_string(),
        (None, Some(ContextValue::Strings(valid))) if !valid.is_empty() => format!("give one of {}", valid.join(", ")),
        (None, _) => format!("give {}", form.wanted()),
    };
    Err(match form {
        // What is no URL for us may still have a password in it.
        ValueType::Url => reason,
        _ if reason.starts_with(text) => reason,
        ValueType::Boolean | ValueType::Integer | ValueType::Number => format!("{text}: {reason}"),
        ValueType::Duration | ValueType::Path | ValueType::Text => format!("{text:?}: {reason}"),
    })
}

/// The text that stands for a value on the command line, if the value has the form.
fn scalar(key: &Key<'_>, value: Value) -> Result<String, String> {
    let form = key.form;
    let is_of_text = matches!(
        form,
        ValueType::Duration | ValueType::Path | ValueType::Url | ValueType::Text
    );
    let one_of = key.one_of();
    let wanted = one_of.as_deref().unwrap_or(form.wanted());
    let said = describe(&value);
    match (form, value) {
        (ValueType::Boolean, Value::Boolean(value)) => Ok(value.to_string()),
        (ValueType::Integer | ValueType::Number, Value::Integer(digits)) => Ok(digits),
        (ValueType::Number, Value::Number(value)) => Ok(value.to_string()),
        (_, Value::Text(text)) if is_of_text => Ok(text),
        (_, Value::Null) => Err(format!("there is no value; give {wanted}, or leave the key out")),
        (ValueType::Integer, Value::Number(_)) => Err(format!(
            "{said} is no whole number; give one without a fraction, exponent or leading zeros"
        )),
        (ValueType::Duration, Value::Integer(_) | Value::Number(_)) => Err(format!(
            "{said} is a number; give a duration with its unit, such as 30s, 1m30s or 12h"
        )),
        (_, Value::Integer(_) | Value::Number(_) | Value::Boolean(_)) if is_of_text && one_of.is_none() => {
            Err(format!("{said} is no text; put it in quotes"))
        }
        (_, Value::Text(text)) if is_plainly(form, &text) => {
            Err(format!("{said} is text; give {wanted}, without the quotes"))
        }
        (_, Value::Mapping(_)) => Err(format!(
            "there are keys below it; give {wanted}, and every key on its own line"
        )),
        _ if one_of.is_some() => Err(format!("{said}: give {wanted}")),
        _ => Err(format!("{said} is not {wanted}; give {wanted}")),
    }
}

/// Whether a text would be what is wanted if it had no quotes.
fn is_plainly(form: ValueType, text: &str) -> bool {
    match form {
        ValueType::Boolean => matches!(text, "true" | "false"),
        ValueType::Integer => text.parse::<i64>().is_ok(),
        ValueType::Number => text.parse::<f64>().is_ok_and(f64::is_finite),
        ValueType::Duration | ValueType::Path | ValueType::Url | ValueType::Text => false,
    }
}

/// A value of the wrong form, for a sentence.
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
