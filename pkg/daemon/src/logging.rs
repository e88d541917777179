//! Logs to stderr, one event per line, as text for people or as JSON with the keys of Kubernetes'
//! components.
//!
//! This module contains the format, the levels of each `-v`, which can change at run time, the JSON
//! layer, and the queue before stderr. It does not rotate logs or write files.
//!
//! Architecture Invariant: libraries cannot log secrets. Only `filter` decides how much other
//! crates may log, and no verbosity lifts its caps.
//! Architecture Invariant: an event is always one line. Fields may quote foreign data, and a line
//! break or terminal escape sequence in it must not look like another line of the log.

mod json;
mod panics;
mod queue;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::{self, Debug, Write as _};
use std::io::IsTerminal;
use std::sync::OnceLock;
use std::time::SystemTime;

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

use self::json::Json;
pub(crate) use self::{
    panics::log_panics,
    queue::{finish, register},
};

/// The levels of the log, which is one for the whole process.
static LEVELS: OnceLock<Levels> = OnceLock::new();

/// The crates that may log too much, with the highest level at every verbosity.
const CAPS: [(&str, LevelFilter); 2] = [("kube_client", LevelFilter::ERROR), ("h2", LevelFilter::WARN)];

struct Levels {
    handle: reload::Handle<Targets, Registry>,
    controllers: Vec<&'static str>,
}

/// The format of log lines: `--logging-format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Lines for people: time, level, target, message, fields.
    #[default]
    Text,
    /// One JSON object per line, with Kubernetes' keys.
    Json,
}

/// The flags of the log.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Logs")]
pub(crate) struct Logging {
    /// The log format
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) logging_format: Format,
    /// The log level verbosity: 4 shows debug, 6 traces
    #[arg(short, long, value_name = "LEVEL", default_value_t = 0)]
    pub(crate) v: u8,
}

/// Sends the logs of the whole process to stderr.
///
/// `-v` applies to the targets of the `controllers` as to Portreeve's own.
///
/// Only the first call has an effect: a process that has already set up its logs, such as a test,
/// keeps them. Pass the result to [`finish`] at the end of the process.
pub(crate) fn init(format: Format, verbosity: u8, controllers: Vec<&'static str>) -> WorkerGuard {
    let (queue, guard) = queue::start();
    let (levels, handle) = reload::Layer::new(filter(verbosity, &controllers));
    let registry = tracing_subscriber::registry().with(levels);
    let result = match format {
        Format::Text => {
            let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
            let colours = std::io::stderr().is_terminal() && !plain;
            let text = tracing_subscriber::fmt::layer()
                .fmt_fields(OneLine)
                .with_writer(queue)
                .with_ansi(colours);
            registry.with(text).try_init()
        }
        Format::Json => registry
            .with(Json {
                writer: queue,
                now: SystemTime::now,
            })
            .try_init(),
    };
    if result.is_err() {
        tracing::debug!("keeping the existing log setup");
    } else {
        // Only the first call gets here.
        LEVELS.set(Levels { handle, controllers }).ok();
    }
    guard
}

/// Changes the verbosity of the process's log.
///
/// # Errors
///
/// Returns an error if another component has set up the log.
pub(crate) fn set_verbosity(verbosity: u8) -> Result<(), SetVerbosityError> {
    let levels = LEVELS.get().ok_or(SetVerbosityError)?;
    let filter = filter(verbosity, &levels.controllers);
    levels.handle.reload(filter).map_err(|_| SetVerbosityError)
}

/// The verbosity cannot be changed.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("failed to change the log level: another component of this process has set up the log")]
pub(crate) struct SetVerbosityError;

/// Returns the levels that a verbosity shows.
///
/// | `-v` | our crates and the controllers | other crates |
/// |------|--------------------------------|--------------|
/// | 0–3  | info                           | warn         |
/// | 4–5  | debug                          | warn         |
/// | 6–7  | trace                          | warn         |
/// | 8–   | trace                          | debug        |
///
/// Other crates are never shown at trace, where HTTP and TLS stacks print headers and bytes,
/// including bearer tokens. Two crates log too much at lower levels and are capped at every
/// verbosity:
///
/// - `kube_client` logs whole response bodies at warn when it cannot decode them, and status bodies
///   at debug. A body may be a Secret. The cap is error: those events contain only a status or an
///   error, and the caller gets every failure anyway.
/// - `h2` prints decoded header frames at debug. No code here uses HTTP/2 today, so this cap is a
///   precaution.
fn filter(verbosity: u8, controllers: &[&'static str]) -> Targets {
    let ours = match verbosity {
        0..=3 => LevelFilter::INFO,
        4..=5 => LevelFilter::DEBUG,
        6.. => LevelFilter::TRACE,
    };
    let others = if verbosity < 8 {
        LevelFilter::WARN
    } else {
        LevelFilter::DEBUG
    };
    // A target names everything that begins with it.
    let is_capped = |target: &str| {
        CAPS.iter()
            .any(|(capped, _)| target.starts_with(capped) || capped.starts_with(target))
    };
    let controllers = controllers.iter().filter(|target| !is_capped(target));
    let ours = controllers.chain([&"portreeve"]).map(|target| (*target, ours));
    Targets::new()
        .with_default(others)
        .with_targets(ours)
        .with_targets(CAPS)
}

/// Formats fields for people: the message, then `name=value`, with texts quoted and their control
/// characters escaped.
struct OneLine;

impl<'writer> FormatFields<'writer> for OneLine {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut found = Fields::default();
        fields.record(&mut found);
        let mut gap = "";
        if let Some(Value::String(message)) = found.0.remove("message") {
            writer.write_str(&message.replace(char::is_control, " "))?;
            gap = " ";
        }
        for (name, value) in &found.0 {
            match value {
                Value::String(text) => write!(writer, "{gap}{name}={text:?}")?,
                value => write!(writer, "{gap}{name}={value}")?,
            }
            gap = " ";
        }
        Ok(())
    }
}

/// Structured fields by name, so that each key appears only once in a line.
#[derive(Default)]
struct Fields(BTreeMap<String, Value>);

impl Fields {
    fn set(&mut self, field: &Field, value: impl Into<Value>) {
        let name = field.name();
        let name = name.strip_prefix("r#").unwrap_or(name);
        let name = if name == "err" { "error" } else { name };
        self.0.insert(name.to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value);
    }

    /// Records the whole chain, because the text of an error does not include its source.
    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        let mut chain = value.to_string();
        let mut source = value.source();
        while let Some(error) = source {
            // Writing to a string cannot fail.
            _ = write!(chain, ": {error}");
            source = error.source();
        }
        self.set(field, chain);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.set(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    fn text(fields: impl RecordFields) -> String {
        let mut line = String::new();
        OneLine.format_fields(Writer::new(&mut line), fields).unwrap();
        line
    }

    /// Collects the text of every event.
    struct Texts(std::sync::mpsc::Sender<String>);

    impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Texts {
        fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
            self.0.send(text(event)).unwrap();
        }
    }

    #[test]
    fn text_event_is_one_line() {
        let (tx, rx) = std::sync::mpsc::channel();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(Texts(tx)), || {
            let error = std::io::Error::other("gone\u{9b}2J");
            tracing::info!(n = 1, object = %"a\nb\u{1b}[31m", name = "c d", "two\nlines {}", 1);
            tracing::info!(error = &error as &dyn Error, ok = true);
        });
        let expected = [
            r#"two lines 1 n=1 name="c d" object="a\nb\u{1b}[31m""#,
            r#"error="gone\u{9b}2J" ok=true"#,
        ];
        assert_eq!(rx.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn each_verbosity_shows_its_levels() {
        let most_verbose = |verbosity, target| {
            let levels = [Level::TRACE, Level::DEBUG, Level::INFO, Level::WARN, Level::ERROR];
            let filter = filter(verbosity, &["copies", "kube_client::mine", "", "h"]);
            levels
                .into_iter()
                .find(|level| filter.would_enable(target, level))
                .unwrap()
        };
        let rows = [
            (0, Level::INFO, Level::WARN),
            (1, Level::INFO, Level::WARN),
            (3, Level::INFO, Level::WARN),
            (4, Level::DEBUG, Level::WARN),
            (5, Level::DEBUG, Level::WARN),
            (6, Level::TRACE, Level::WARN),
            (7, Level::TRACE, Level::WARN),
            (8, Level::TRACE, Level::DEBUG),
            (255, Level::TRACE, Level::DEBUG),
        ];
        for (verbosity, ours, others) in rows {
            assert_eq!(most_verbose(verbosity, "portreeve_foo::decide"), ours, "-v {verbosity}");
            assert_eq!(most_verbose(verbosity, "portreeve"), ours, "-v {verbosity}");
            assert_eq!(most_verbose(verbosity, "copies::reconciler"), ours, "-v {verbosity}");
            assert_eq!(most_verbose(verbosity, "hyper::proto::h1"), others, "-v {verbosity}");
            assert_eq!(most_verbose(verbosity, "rustls::server::hs"), others, "-v {verbosity}");
            assert_eq!(most_verbose(verbosity, "h2::codec"), Level::WARN, "-v {verbosity}");
            for target in ["kube_client::client", "kube_client::mine"] {
                assert_eq!(most_verbose(verbosity, target), Level::ERROR, "-v {verbosity}");
            }
        }
    }
}
