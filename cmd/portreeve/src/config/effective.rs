//! Renders `/configz`: every effective setting, including defaults, in the form of a config file.
//!
//! Architecture Invariant: pure. No secret is shown: files with secrets are named but not read. For
//! URLs, the parsed value is shown, because the flag's parser drops the password.

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
        let flag = key.arg.get_id().as_str();
        let values: Vec<String> = match key.value_type {
            ValueType::Url => {
                let urls = matches.get_many::<Uri>(flag).into_iter().flatten();
                urls.map(Uri::to_string).collect()
            }
            ValueType::Path => {
                let paths = matches.get_raw(flag).into_iter().flatten();
                paths
                    .map(|path| folder.join(path).to_string_lossy().into_owned())
                    .collect()
            }
            _ => {
                let texts = matches.get_raw(flag).into_iter().flatten();
                texts.map(|text| text.to_string_lossy().into_owned()).collect()
            }
        };
        if let Some(value) = file_value(&key, values.iter().map(String::as_str)) {
            settings.insert(key.name, value);
        }
    }
    json!({ "controllermanager.portreeve.dev": settings })
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
