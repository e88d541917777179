//! What `/configz` shows: every setting in force, defaults too, as a config file would give it.
//!
//! Architecture Invariant: pure. Nothing secret is shown: files with secrets are named, not read, and the password of a URL is dropped by
//! the flag's parser, whose value is shown rather than what was given.

use std::path::Path;

use axum::http::Uri;
use clap::{ArgMatches, Command};
use serde_json::{Map, Value, json};

use super::{
    API_VERSION, KIND,
    keys::{Key, ValueType, keys},
};

/// The settings in force, as `/configz` answers: `{"controllermanager.portreeve.dev": {…}}`. A flag without a value has no key. `folder` is
/// where relative paths of the command line begin.
pub(crate) fn render_effective(command: &Command, matches: &ArgMatches, folder: &Path) -> Value {
    let mut settings = Map::new();
    settings.insert("apiVersion".to_owned(), API_VERSION.into());
    settings.insert("kind".to_owned(), KIND.into());
    for key in keys(command) {
        let flag = key.arg.get_id().as_str();
        let values: Vec<String> = match key.form {
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
        if let Some(value) = written(&key, values.iter().map(String::as_str)) {
            settings.insert(key.name, value);
        }
    }
    json!({ "controllermanager.portreeve.dev": settings })
}

/// What a file gives where the command line gives these texts.
pub(super) fn written<'a>(key: &Key<'_>, texts: impl Iterator<Item = &'a str>) -> Option<Value> {
    // An empty text is how the command line gives an empty list.
    let mut values = texts.filter(|text| !text.is_empty()).map(|text| value(key.form, text));
    if key.is_list {
        Some(values.collect())
    } else {
        values.next()
    }
}

fn value(form: ValueType, text: &str) -> Value {
    let plain = match form {
        ValueType::Boolean => text.parse::<bool>().ok().map(Value::from),
        ValueType::Integer => text.parse::<i64>().ok().map(Value::from),
        ValueType::Number => text.parse::<f64>().ok().map(Value::from),
        ValueType::Duration | ValueType::Path | ValueType::Url | ValueType::Text => None,
    };
    plain.unwrap_or_else(|| text.into())
}
