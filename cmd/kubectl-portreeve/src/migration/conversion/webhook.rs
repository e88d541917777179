//! The address of the conversion webhook, and `spec.conversion` of the definition.
//!
//! Architecture Invariant: pure.

use std::str::FromStr;

use k8s_openapi::ByteString;
use serde_json::{Value, json};

/// An invalid address of the webhook, by the flag that has it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum InvalidAddress {
    #[error("expected NAMESPACE/NAME[:PORT], such as portreeve-system/portreeve-webhook")]
    Service,
    #[error("expected a URL such as https://10.0.0.1:9443")]
    Url,
}

/// The value of `--service`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct ServiceAddress {
    namespace: String,
    name: String,
    port: u16,
}

impl FromStr for ServiceAddress {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let parse = || {
            let (namespace, rest) = text.split_once('/')?;
            let (name, port) = match rest.split_once(':') {
                Some((name, port)) => (name, port.parse().ok().filter(|port| *port > 0)?),
                None => (rest, 443),
            };
            let is_name = |name: &str| !name.is_empty() && !name.contains(['/', ':']);
            (is_name(namespace) && is_name(name)).then(|| Self {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                port,
            })
        };
        parse().ok_or(InvalidAddress::Service)
    }
}

/// The value of `--url`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct WebhookUrl(String);

impl FromStr for WebhookUrl {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let url: Option<http::Uri> = text.parse().ok();
        let url = url.filter(|url| url.scheme_str() == Some("https") && url.query().is_none());
        let has_host = url
            .as_ref()
            .and_then(http::Uri::host)
            .is_some_and(|host| !host.is_empty());
        if !has_host || text.contains(['@', '#']) {
            return Err(InvalidAddress::Url);
        }
        Ok(Self(text.to_owned()))
    }
}

impl WebhookUrl {
    /// Returns the URL with `path`, unless it has one of its own.
    fn with_default_path(&self, path: &str) -> String {
        let Self(url) = self;
        let rest = url.strip_prefix("https://").unwrap_or(url);
        match rest.split_once('/') {
            None => format!("{url}{path}"),
            Some((_, "")) => format!("{}{path}", url.trim_end_matches('/')),
            Some(_) => url.clone(),
        }
    }
}

/// Returns `spec.conversion` for a webhook of the definition `name`. Without `ca`, the CA that the
/// definition has stays.
pub(super) fn conversion(
    name: &str,
    service: Option<&ServiceAddress>,
    url: Option<&WebhookUrl>,
    ca: Option<&[u8]>,
    present: &Value,
) -> Value {
    let path = format!("/convert/{name}");
    let mut config = json!({});
    if let Some(ServiceAddress { namespace, name, port }) = service {
        config["service"] = json!({"namespace": namespace, "name": name, "path": path, "port": port});
    }
    if let Some(url) = url {
        config["url"] = url.with_default_path(&path).into();
    }
    let present = &present["webhook"]["clientConfig"]["caBundle"];
    match ca {
        Some(ca) => config["caBundle"] = json!(ByteString(ca.to_vec())),
        None if present.is_string() => config["caBundle"] = present.clone(),
        None => {}
    }
    json!({
        "strategy": "Webhook",
        "webhook": {"clientConfig": config, "conversionReviewVersions": ["v1"]},
    })
}

/// Returns whether the definition has the CA of its webhook. An empty one means the roots of the
/// apiserver's system, which have not signed the daemon's certificate.
pub(super) fn has_ca(conversion: &Value) -> bool {
    let bundle = &conversion["webhook"]["clientConfig"]["caBundle"];
    bundle.as_str().is_some_and(|bundle| !bundle.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_a_namespace_a_name_and_a_port() {
        let service = |namespace: &str, name: &str, port| ServiceAddress {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            port,
        };
        assert_eq!("a/b".parse(), Ok(service("a", "b", 443)));
        assert_eq!("a/b:8443".parse(), Ok(service("a", "b", 8443)));
        for text in ["", "a", "a/", "/b", "a/b/c", "a/b:", "a/b:0", "a/b:99999", "a:1/b"] {
            assert!(text.parse::<ServiceAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_url_gets_the_path_of_the_daemon() {
        let full = |text: &str| {
            text.parse::<WebhookUrl>()
                .map(|url| url.with_default_path("/convert/x"))
        };
        assert_eq!(full("https://a:1").as_deref(), Ok("https://a:1/convert/x"));
        assert_eq!(full("https://a/").as_deref(), Ok("https://a/convert/x"));
        assert_eq!(full("https://a/own").as_deref(), Ok("https://a/own"));
        for text in [
            "",
            "a",
            "http://a",
            "https://",
            "https://u@a",
            "https://a?b",
            "https://a#b",
        ] {
            assert!(text.parse::<WebhookUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_ca_of_others_stays() {
        let service = "a/b".parse().unwrap();
        let convert = |ca: Option<&[u8]>, present: &Value| conversion("x.y", Some(&service), None, ca, present);
        let new = convert(None, &json!({"strategy": "None"}));
        assert_eq!(
            new,
            json!({
                "strategy": "Webhook",
                "webhook": {
                    "clientConfig": {"service": {"namespace": "a", "name": "b", "path": "/convert/x.y", "port": 443}},
                    "conversionReviewVersions": ["v1"],
                },
            })
        );
        assert!(!has_ca(&new));
        let given = convert(Some(b"ca"), &new);
        assert_eq!(given["webhook"]["clientConfig"]["caBundle"], "Y2E=");
        assert!(has_ca(&given));
        assert_eq!(convert(None, &given), given);
    }
}
