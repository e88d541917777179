//! Renders every effective setting, including defaults: for `/configz` in the form of a config
//! file, and for `/flagz` by flag.
//!
//! Architecture Invariant: pure. No secret is shown: files with secrets are named but not read. For
//! URLs, the parsed value is shown, because the flag's parser drops the password.

use std::collections::BTreeMap;
use std::path::Path;

use axum::http::Uri;
use clap::{ArgMatches, Command};
use serde_json::{Map, Value, json};

use super::{
    API_VERSION, KIND,
    keys::{Key, ValueType, keys},
};

/// Returns the effective settings in the format of `/configz`:
/// `{"controllermanager.portreeve.dev": {…}}`. A flag without a value has no key. Relative paths of
/// the command line are resolved against `folder`.
pub(crate) fn render_effective(command: &Command, matches: &ArgMatches, folder: &Path) -> Value {
    let mut settings = Map::new();
    settings.insert("apiVersion".to_owned(), API_VERSION.into());
    settings.insert("kind".to_owned(), KIND.into());
    for key in keys(command) {
        let texts = texts(&key, matches, folder);
        if let Some(value) = file_value(&key, texts.iter().map(String::as_str)) {
            settings.insert(key.name, value);
        }
    }
    json!({ "controllermanager.portreeve.dev": settings })
}

/// Returns the effective value of every flag that is a setting, by its name, as on the command
/// line. A flag without a value has an empty text.
pub(crate) fn flag_values(command: &Command, matches: &ArgMatches, folder: &Path) -> BTreeMap<String, String> {
    let keys = keys(command).into_iter();
    keys.map(|key| (key.flag.to_owned(), texts(&key, matches, folder).join(",")))
        .collect()
}

/// Returns the effective values of a flag as texts. Relative paths are resolved against `folder`,
/// and the password of a URL is dropped.
fn texts(key: &Key<'_>, matches: &ArgMatches, folder: &Path) -> Vec<String> {
    let flag = key.arg.get_id().as_str();
    let raw = || matches.get_raw(flag).into_iter().flatten();
    match key.value_type {
        ValueType::Url => {
            let urls = matches.get_many::<Uri>(flag).into_iter().flatten();
            urls.map(Uri::to_string).collect()
        }
        ValueType::Path => raw()
            .map(|path| folder.join(path).to_string_lossy().into_owned())
            .collect(),
        _ => raw().map(|text| text.to_string_lossy().into_owned()).collect(),
    }
}

/// Returns the value for a config file that is equivalent to these texts of the command line.
pub(super) fn file_value<'a>(key: &Key<'_>, texts: impl Iterator<Item = &'a str>) -> Option<Value> {
    // On the command line, an empty text means an empty list.
    let mut values = texts
        .filter(|text| !text.is_empty())
        .map(|text| value(key.value_type, text));
    if key.is_list {
        Some(values.collect())
    } else {
        values.next()
    }
}

fn value(value_type: ValueType, text: &str) -> Value {
    let plain = match value_type {
        ValueType::Boolean => text.parse::<bool>().ok().map(Value::from),
        ValueType::Integer => text.parse::<i64>().ok().map(Value::from),
        ValueType::Number => text.parse::<f64>().ok().map(Value::from),
        ValueType::Duration | ValueType::Path | ValueType::Url | ValueType::Text => None,
    };
    plain.unwrap_or_else(|| text.into())
}
