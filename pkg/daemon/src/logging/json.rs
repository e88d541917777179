//! The JSON format with the keys of Kubernetes' components.
//!
//! Architecture Invariant: the clock and the writer are passed to the layer.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::{LookupSpan, Scope};

use super::Fields;

/// Writes events as JSON: `ts` (milliseconds since 1970), `logger`, `caller`, `msg`, `v`, then the
/// fields.
///
/// The keys have the meaning of `k8s.io/component-base/logs/json`: `v` is the verbosity of the
/// event, and an error has `err` and no `v`. Kubernetes logs no warnings. Ours have `v` 0 and
/// `"severity":"warning"`. The fields of the enclosing spans come before the event's own, and the
/// innermost value wins.
pub(super) struct Json<W> {
    pub(super) writer: W,
    pub(super) now: fn() -> SystemTime,
}

/// The keys that fields must not use.
const RESERVED: [&str; 6] = ["ts", "logger", "caller", "msg", "v", "severity"];

impl<S, W> Layer<S> for Json<W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, ctx: Context<'_, S>) {
        if let Some(span) = ctx.span(id) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, record: &Record<'_>, ctx: Context<'_, S>) {
        if let Some(span) = ctx.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            record.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, ctx: Context<'_, S>) {
        let mut fields = Fields::default();
        for span in ctx.event_scope(event).into_iter().flat_map(Scope::from_root) {
            if let Some(outer) = span.extensions().get::<Fields>() {
                fields.0.extend(outer.0.clone());
            }
        }
        // The `message` of a span does not describe this event.
        fields.0.remove("message");
        event.record(&mut fields);
        let line = line(event.metadata(), (self.now)(), fields);
        // A failure to write the log cannot be reported anywhere.
        _ = self.writer.make_writer_for(event.metadata()).write_all(line.as_bytes());
    }
}

/// Formats one event as one line.
fn line(metadata: &Metadata<'_>, now: SystemTime, mut fields: Fields) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut line = format!("{{\"ts\":{}.{:03}", since.as_millis(), since.subsec_micros() % 1000);
    // Writing to a string cannot fail.
    let mut push = |key: &str, value: &Value| _ = write!(line, ",{}:{value}", Value::from(key));
    push("logger", &metadata.target().into());
    if let (Some(file), Some(number)) = (metadata.file(), metadata.line()) {
        push("caller", &format!("{}:{number}", caller(file)).into());
    }
    push("msg", &fields.0.remove("message").unwrap_or_else(|| "".into()));
    match *metadata.level() {
        Level::ERROR => {}
        Level::WARN => {
            push("v", &0.into());
            push("severity", &"warning".into());
        }
        Level::INFO => push("v", &0.into()),
        Level::DEBUG => push("v", &4.into()),
        Level::TRACE => push("v", &6.into()),
    }
    for (name, value) in &fields.0 {
        match name.as_str() {
            "error" => push("err", value),
            name if RESERVED.contains(&name) => push(&format!("{name}_"), value),
            name => push(name, value),
        }
    }
    line.push_str("}\n");
    line
}

/// Returns the file's path within this repository or, for another crate, without the directory on
/// the build machine.
fn caller(file: &str) -> &str {
    if !file.starts_with('/') {
        return file;
    }
    let third = file.rmatch_indices('/').nth(2);
    third.map_or(file, |(slash, _)| &file[slash + 1..])
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::io;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the logged lines without the caller, whose line number changes with this file.
    fn logged(events: impl FnOnce()) -> Vec<String> {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let layer = Json {
            writer: move || writer.clone(),
            now: || UNIX_EPOCH + Duration::from_micros(1_580_306_777_047_028),
        };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), events);
        let bytes = buffer.0.lock().unwrap().clone();
        let lines = String::from_utf8(bytes).unwrap();
        assert!(lines.is_empty() || lines.ends_with('\n'));
        lines
            .lines()
            .map(|line| {
                let value: Value = serde_json::from_str(line).unwrap();
                let caller = value["caller"].as_str().unwrap();
                let (file, number) = caller.rsplit_once(':').unwrap();
                assert!(
                    file.ends_with("src/logging/json.rs") && number.parse::<u32>().is_ok(),
                    "{caller}"
                );
                let head = "{\"ts\":1580306777047.028,\"logger\":\"portreeve_x\",";
                let rest = line.strip_prefix(head).unwrap_or_else(|| panic!("{line}"));
                let (_, rest) = rest.split_once("\",").unwrap();
                rest.to_owned()
            })
            .collect()
    }

    fn check(events: impl FnOnce(), expected: &[&str]) {
        assert_eq!(logged(events), expected);
    }

    #[test]
    fn levels_become_verbosities() {
        check(
            || {
                tracing::trace!(target: "portreeve_x", "t");
                tracing::debug!(target: "portreeve_x", "d");
                tracing::info!(target: "portreeve_x", "i");
                tracing::warn!(target: "portreeve_x", "w");
                tracing::error!(target: "portreeve_x", "e");
            },
            &[
                r#""msg":"t","v":6}"#,
                r#""msg":"d","v":4}"#,
                r#""msg":"i","v":0}"#,
                r#""msg":"w","v":0,"severity":"warning"}"#,
                r#""msg":"e"}"#,
            ],
        );
    }

    #[test]
    fn fields_keep_their_types() {
        let object = "default/foo";
        check(
            || tracing::info!(target: "portreeve_x", object, n = -1, big = u64::MAX, ok = true, f = 0.5, nan = f64::NAN, some = ?Some(1), shown = %object, "planned {}", 2),
            &[
                r#""msg":"planned 2","v":0,"big":18446744073709551615,"f":0.5,"n":-1,"nan":null,"object":"default/foo","ok":true,"shown":"default/foo","some":"Some(1)"}"#,
            ],
        );
    }

    #[test]
    fn error_is_written_with_its_chain_as_err() {
        #[derive(Debug)]
        struct Outer(io::Error);
        impl std::fmt::Display for Outer {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("failed to read")
            }
        }
        impl Error for Outer {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.0)
            }
        }
        let error = Outer(io::Error::other("gone"));
        check(
            || {
                tracing::error!(target: "portreeve_x", error = &error as &dyn Error, "it failed");
                tracing::error!(target: "portreeve_x", err = %error, "it failed");
                tracing::info!(target: "portreeve_x", %error, "never mind");
            },
            &[
                r#""msg":"it failed","err":"failed to read: gone"}"#,
                r#""msg":"it failed","err":"failed to read"}"#,
                r#""msg":"never mind","v":0,"err":"failed to read"}"#,
            ],
        );
    }

    #[test]
    fn innermost_field_wins_and_no_key_appears_twice() {
        check(
            || {
                let outer = tracing::info_span!(target: "portreeve_x", "reconcile", controller = "foo", n = 1, late = tracing::field::Empty);
                let _outer = outer.enter();
                outer.record("late", 2);
                let _inner = tracing::info_span!(target: "portreeve_x", "apply", message = "not this", n = 2).entered();
                tracing::info!(target: "portreeve_x", n = 3, msg = "x", v = 9, ts = 1, "done");
            },
            &[r#""msg":"done","v":0,"controller":"foo","late":2,"msg_":"x","n":3,"ts_":1,"v_":9}"#],
        );
    }

    #[test]
    fn line_break_is_escaped() {
        check(
            || tracing::info!(target: "portreeve_x", name = "a\n{\"ts\":1}", "two\nlines \u{1b}[31m"),
            &[r#""msg":"two\nlines \u001b[31m","v":0,"name":"a\n{\"ts\":1}"}"#],
        );
    }

    #[test]
    fn caller_omits_the_path_on_the_build_machine() {
        assert_eq!(caller("controllers/foo/src/lib.rs"), "controllers/foo/src/lib.rs");
        assert_eq!(
            caller("/srv/registry/src/index/hyper-1.0.0/src/trace.rs"),
            "hyper-1.0.0/src/trace.rs"
        );
        assert_eq!(caller("/a/b.rs"), "/a/b.rs");
    }
}
