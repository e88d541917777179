//! `/flagz` and `/statusz`: Kubernetes' pages about a running component.
//!
//! Both answer with text for people by default, and with an object of the group `config.k8s.io` as
//! JSON, YAML or CBOR for a client that asks for it.

mod negotiation;

use std::collections::BTreeMap;
use std::time::SystemTime;

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::{ACCEPT, CONTENT_TYPE, WARNING};
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use self::negotiation::{Format, NOT_ACCEPTABLE, Representation, Version, negotiate};
use crate::access::status;

/// The tag with which Kubernetes' CBOR begins, so that it can be recognized.
const CBOR_TAG: [u8; 3] = [0xd9, 0xd9, 0xf7];

/// The content of the pages.
#[derive(Clone, Debug)]
pub struct ZPages {
    /// The name of the component.
    pub component: &'static str,
    /// The version of its binary.
    pub version: &'static str,
    /// The version of the compiler of its binary.
    pub rust_version: &'static str,
    /// The values of all flags, without secrets. `None` turns `/flagz` off.
    pub flags: Option<BTreeMap<String, String>>,
    /// Other paths that are worth a look. `None` turns `/statusz` off.
    pub paths: Option<Vec<&'static str>>,
    /// When the process started.
    pub started: SystemTime,
}

impl ZPages {
    /// Returns the routes of the pages that are turned on.
    pub fn routes(self) -> Router {
        let Self {
            component,
            version,
            rust_version,
            flags,
            paths,
            started,
        } = self;
        let mut routes = Router::new();
        if let Some(flags) = flags {
            let page = async move |headers: HeaderMap| {
                respond(
                    &headers,
                    "Flagz",
                    component,
                    || flag_lines(&flags),
                    || json!({ "flags": flags }),
                )
            };
            routes = routes.route("/flagz", get(page));
        }
        if let Some(paths) = paths {
            let page = async move |headers: HeaderMap| {
                let status = Status::of(started, version, rust_version, &paths);
                respond(&headers, "Statusz", component, || status.lines(), || status.fields())
            };
            routes = routes.route("/statusz", get(page));
        }
        routes
    }
}

/// Responds in the form that the client asks for.
fn respond(
    headers: &HeaderMap,
    kind: &'static str,
    component: &str,
    lines: impl FnOnce() -> String,
    fields: impl FnOnce() -> Value,
) -> Response {
    let page = kind.to_ascii_lowercase();
    let accept = headers.get_all(ACCEPT).iter();
    let accept: Vec<_> = accept.filter_map(|value| value.to_str().ok()).collect();
    let (format, version) = match negotiate(&accept.join(","), kind) {
        None => return status(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", NOT_ACCEPTABLE, ""),
        Some(Representation::Text) => {
            let text = format!(
                "\n{component} {page}\nWarning: This endpoint is not meant to be machine parseable, has no formatting \
                 compatibility guarantees and is for debugging purposes only.\n{}",
                lines()
            );
            return ([(CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response();
        }
        Some(Representation::Object(format, version)) => (format, version),
    };
    let mut object = json!({
        "kind": kind,
        "apiVersion": format!("config.k8s.io/{}", version.name()),
        "metadata": { "name": component },
    });
    if let (Some(object), Value::Object(mut fields)) = (object.as_object_mut(), fields()) {
        object.append(&mut fields);
    }
    let Some(body) = encode(&object, format) else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let mut response = ([(CONTENT_TYPE, format.media_type())], body).into_response();
    if version == Version::V1Alpha1
        && let Ok(warning) =
            format!("299 - \"This version of the {page} endpoint is deprecated. Please use a newer version.\"").parse()
    {
        response.headers_mut().insert(WARNING, warning);
    }
    response
}

fn encode(object: &Value, format: Format) -> Option<Vec<u8>> {
    match format {
        Format::Json => serde_json::to_vec(object).ok(),
        Format::Yaml => serde_saphyr::to_string(object).ok().map(String::into_bytes),
        Format::Cbor => {
            let mut body = CBOR_TAG.to_vec();
            ciborium::into_writer(object, &mut body).ok().map(|()| body)
        }
    }
}

fn flag_lines(flags: &BTreeMap<String, String>) -> String {
    let lines: Vec<_> = flags.iter().map(|(name, value)| format!("{name}={value}")).collect();
    lines.join("\n") + "\n"
}

/// The content of `/statusz`.
struct Status<'a> {
    started: Timestamp,
    uptime_seconds: u64,
    version: &'static str,
    rust_version: &'static str,
    paths: &'a [&'static str],
}

impl<'a> Status<'a> {
    fn of(started: SystemTime, version: &'static str, rust_version: &'static str, paths: &'a [&'static str]) -> Self {
        Self {
            started: Timestamp::try_from(started).unwrap_or_default(),
            uptime_seconds: started.elapsed().unwrap_or_default().as_secs(),
            version,
            rust_version,
            paths,
        }
    }

    fn lines(&self) -> String {
        let seconds = self.uptime_seconds;
        format!(
            "\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nRust version: {}\nBinary version: {}\n\nPaths: {}\n",
            self.started.strftime("%a %b %e %H:%M:%S UTC %Y"),
            seconds / 3600,
            seconds / 60 % 60,
            seconds % 60,
            self.rust_version,
            self.version,
            self.paths.join(" ")
        )
    }

    fn fields(&self) -> Value {
        json!({
            "startTime": self.started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "uptimeSeconds": self.uptime_seconds,
            // The field is required, and no part of this program is written in Go.
            "goVersion": "",
            "binaryVersion": self.version,
            "paths": self.paths,
        })
    }
}
