//! Generates docs/configuration.md: every key of the config file, from the definitions of the
//! flags.
//!
//! Architecture Invariant: pure. `make update` writes the returned text.

use clap::Command;
use serde_json::Value;

use super::{
    API_VERSION, KIND,
    effective::file_value,
    keys::{Key, ValueType, keys},
};

/// Returns the text of the page for the flags of a command.
pub(crate) fn reference(command: &Command) -> String {
    let mut page = include_str!("reference.md")
        .replace("API_VERSION", API_VERSION)
        .replace("KIND", KIND);
    let mut heading = None;
    for key in keys(command) {
        let section = key.arg.get_help_heading();
        if section != heading {
            heading = section;
            let title = section.unwrap_or("Options");
            let table_head = "| key | type | default | meaning |\n|---|---|---|---|";
            page.push_str(&["\n## ", title, "\n\n", table_head, "\n"].concat());
        }
        page.push_str(&row(&key));
    }
    page
}

fn row(key: &Key<'_>) -> String {
    let Key {
        name,
        value_type,
        is_list,
        ..
    } = key;
    let possible = key.arg.get_possible_values();
    let names: Vec<_> = possible.iter().map(|value| format!("`{}`", value.get_name())).collect();
    let kind = match (value_type, &names[..]) {
        (ValueType::Text, [_, ..]) => names.join(" or "),
        _ if *is_list => format!("list of {}s", value_type.name()),
        _ => value_type.name().to_owned(),
    };
    let delimiter = key.arg.get_value_delimiter();
    let defaults = key.arg.get_default_values().iter().filter_map(|value| value.to_str());
    let defaults = defaults.flat_map(|value| value.split(|letter| Some(letter) == delimiter));
    let default = match file_value(key, defaults) {
        None => "none".to_owned(),
        Some(Value::String(text)) => format!("`{text}`"),
        Some(value) => format!("`{value}`"),
    };
    let meaning = key.arg.get_help().map(ToString::to_string).unwrap_or_default();
    let meaning = meaning.replace('|', "\\|").replace('*', "\\*").replace('\n', " ");
    let meaning = meaning.trim_end_matches('.');
    format!("| `{name}` | {kind} | {default} | {meaning} |\n")
}
