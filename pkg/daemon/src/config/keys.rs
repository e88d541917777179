//! The keys of the config file: the names of all flags that are settings, in camelCase.
//!
//! Architecture Invariant: pure. Everything here derives from the definitions of the flags.

use std::{any::TypeId, path::PathBuf, time::Duration};

use axum::http::Uri;
use clap::{Arg, ArgAction, Command, builder::PossibleValue};

/// The flags that select an action or the config file, and are not settings.
const COMMAND_LINE_ONLY: &[&str] = &["config", "list-controllers", "output"];

/// One key of the file.
pub(super) struct Key<'a> {
    /// `leaderElect`
    pub(super) name: String,
    /// `leader-elect`
    pub(super) flag: &'a str,
    /// The type of the value, or of each item of a list.
    pub(super) value_type: ValueType,
    pub(super) is_list: bool,
    pub(super) arg: &'a Arg,
}

/// The types of values in the file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ValueType {
    Boolean,
    Integer,
    Number,
    Duration,
    Path,
    /// A URL, which may contain a password until the flag's parser has read it.
    Url,
    Text,
}

/// Returns the keys for the flags of a command, in the order of `--help`. A flag that the help does
/// not show is for tests and has none.
pub(super) fn keys(command: &Command) -> Vec<Key<'_>> {
    let is_setting = |key: &Key<'_>| !COMMAND_LINE_ONLY.contains(&key.flag) && !key.arg.is_hide_set();
    flags(command).filter(is_setting).collect()
}

/// Returns the flag that is not a setting and has this name in camelCase.
pub(super) fn command_line_only<'a>(command: &'a Command, name: &str) -> Option<&'a str> {
    let key = flags(command).find(|key| key.name == name)?;
    COMMAND_LINE_ONLY.contains(&key.flag).then_some(key.flag)
}

fn flags(command: &Command) -> impl Iterator<Item = Key<'_>> {
    command.get_arguments().filter_map(|arg| {
        let flag = arg.get_long()?;
        Some(Key {
            name: camel_case(flag),
            flag,
            value_type: ValueType::of(arg),
            is_list: matches!(arg.get_action(), ArgAction::Append) || arg.get_value_delimiter().is_some(),
            arg,
        })
    })
}

impl Key<'_> {
    /// Returns the allowed values as part of a sentence, if the flag lists them.
    pub(super) fn one_of(&self) -> Option<String> {
        let values: Vec<_> = self.arg.get_possible_values();
        let names: Vec<_> = values.iter().map(PossibleValue::get_name).collect();
        (self.value_type == ValueType::Text && !names.is_empty()).then(|| format!("one of {}", names.join(", ")))
    }
}

impl ValueType {
    fn of(arg: &Arg) -> Self {
        let kind = arg.get_value_parser().type_id();
        let is_one_of = |kinds: &[TypeId]| kinds.iter().any(|candidate| kind == *candidate);
        let whole = [
            TypeId::of::<u8>(),
            TypeId::of::<u16>(),
            TypeId::of::<u32>(),
            TypeId::of::<u64>(),
            TypeId::of::<usize>(),
            TypeId::of::<i32>(),
            TypeId::of::<i64>(),
        ];
        if kind == TypeId::of::<bool>() {
            Self::Boolean
        } else if is_one_of(&whole) {
            Self::Integer
        } else if is_one_of(&[TypeId::of::<f32>(), TypeId::of::<f64>()]) {
            Self::Number
        } else if kind == TypeId::of::<Duration>() {
            Self::Duration
        } else if kind == TypeId::of::<PathBuf>() {
            Self::Path
        } else if kind == TypeId::of::<Uri>() {
            Self::Url
        } else {
            Self::Text
        }
    }

    /// Returns the name of the type for the config reference.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Boolean => "boolean",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Duration => "duration",
            Self::Path => "path",
            Self::Url => "URL",
            Self::Text => "string",
        }
    }

    /// Returns the expected value as part of a sentence.
    pub(super) fn expected(self) -> &'static str {
        match self {
            Self::Boolean => "true or false",
            Self::Integer => "an integer",
            Self::Number => "a number",
            Self::Duration => "a duration",
            Self::Path => "a path",
            Self::Url => "a URL",
            Self::Text => "a string",
        }
    }
}

/// Converts `leader-elect` to `leaderElect`.
fn camel_case(flag: &str) -> String {
    let mut words = flag.split('-');
    let mut name = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        name.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        name.push_str(letters.as_str());
    }
    name
}
