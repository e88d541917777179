//! The flags of delegated authentication and authorization, with Kubernetes' names and defaults.
//!
//! Architecture Invariant: values only. Nothing is read here.

use std::{path::PathBuf, time::Duration};

use clap::ArgAction;
use portreeve_client::parse_duration;

/// How requests to the listener are authenticated and authorized. Flatten it into the daemon's
/// arguments.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Authentication and authorization")]
#[group(skip)]
pub struct Args {
    /// Kubeconfig of the apiserver that reviews bearer tokens and publishes the CAs of client
    /// certificates. Without it, the daemon's own connection is used. Its account needs the right
    /// to create tokenreviews.
    #[arg(long, value_name = "FILE")]
    pub authentication_kubeconfig: Option<PathBuf>,

    /// Do not look up the CAs of client certificates in the cluster. --client-ca-file and
    /// --requestheader-client-ca-file then name the only ones.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub authentication_skip_lookup: bool,

    /// Continue if the account may not look up the CAs of client certificates. Without
    /// --authentication-kubeconfig, the daemon always continues. Client certificates are then
    /// ignored.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub authentication_tolerate_lookup_failure: bool,

    /// The duration to cache the reviews of bearer tokens.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub authentication_token_webhook_cache_ttl: Duration,

    /// Kubeconfig of the apiserver that authorizes requests. Without it, the daemon's own
    /// connection is used. Its account needs the right to create subjectaccessreviews.
    #[arg(long, value_name = "FILE")]
    pub authorization_kubeconfig: Option<PathBuf>,

    /// The duration to cache that a request is authorized.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub authorization_webhook_cache_authorized_ttl: Duration,

    /// The duration to cache that a request is not authorized.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub authorization_webhook_cache_unauthorized_ttl: Duration,

    /// File with the CAs of client certificates. A request with a certificate that one of them has
    /// issued is the user of its common name.
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,

    /// File with the CAs of front proxies, whose headers name the user of a request.
    #[arg(long, value_name = "FILE")]
    pub requestheader_client_ca_file: Option<PathBuf>,

    /// The common names of front proxies. If empty, every certificate that
    /// --requestheader-client-ca-file has issued is a proxy's.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub requestheader_allowed_names: Vec<String>,

    /// The headers with the user's name. The first one with a value counts.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = header, default_value = "x-remote-user")]
    pub requestheader_username_headers: Vec<String>,

    /// The headers with the user's UID. The first one with a value counts.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = header)]
    pub requestheader_uid_headers: Vec<String>,

    /// The headers with the user's groups.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = header, default_value = "x-remote-group")]
    pub requestheader_group_headers: Vec<String>,

    /// The prefixes of headers with extra fields of the user.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = header, default_value = "x-remote-extra-")]
    pub requestheader_extra_headers_prefix: Vec<String>,
}

/// A header without a name.
#[derive(Debug, thiserror::Error)]
#[error("expected the name of a header, such as x-remote-user")]
struct InvalidHeader;

/// Parses the name of a header, or a prefix of names. An empty one would match every header.
fn header(text: &str) -> Result<String, InvalidHeader> {
    let name = text.trim();
    if name.is_empty() {
        return Err(InvalidHeader);
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        auth: Args,
    }

    #[test]
    fn names_of_headers_are_trimmed_and_not_empty() {
        let parse = |list: &str| Command::try_parse_from(["portreeve", "--requestheader-extra-headers-prefix", list]);
        assert_eq!(
            parse(" a , b").unwrap().auth.requestheader_extra_headers_prefix,
            ["a", "b"]
        );
        assert!(parse("a,,b").is_err() && parse("").is_err());
    }
}
