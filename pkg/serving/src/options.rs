//! The flags of the HTTPS listener, with Kubernetes' names. Flatten them into the daemon's
//! arguments.
//!
//! Architecture Invariant: values only. Nothing is read or bound here.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use jiff::SignedDuration;

use crate::AllowedPaths;
use crate::tls::{self, CipherSuite, NamedPair, TlsVersion};

/// The port of kube-controller-manager, so that existing scrape configurations work.
const SECURE_PORT: u16 = 10257;

/// The paths that probes need, as in kube-controller-manager.
const ALWAYS_ALLOWED: &str = "/healthz,/readyz,/livez";

/// The default of `--tls-ca-grace-period`.
const GRACE_PERIOD: &str = "60s";
/// The default of `--tls-ca-lifetime`: a year.
const CA_LIFETIME: &str = "8760h";
/// The default of `--tls-certificate-lifetime`: 30 days.
const CERTIFICATE_LIFETIME: &str = "720h";

/// The resources of `--tls-ca-bundles`.
const BUNDLES: [&str; 3] = [
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
    "customresourcedefinitions",
];

/// A certificate in a Secret, and who maintains it.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct SecretArgs {
    /// The Secret with the certificate (tls.crt) and its key (tls.key) for HTTPS, instead of files.
    /// It is watched. Until it has a certificate, a self-signed one is served.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = parse_secret)]
    pub tls_secret: Option<String>,

    /// A list of DNS names (comma-separated on the command line). If set, the leader maintains the
    /// Secret of --tls-secret: it issues certificates for these names from a CA of its own, and
    /// renews both. The leader creates the Secret if it does not exist.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "tls_secret", value_parser = parse_dns_name)]
    pub tls_issue_names: Vec<String>,

    /// The ConfigMap in which the leader publishes the CA certificates (ca.crt) of
    /// --tls-issue-names for clients. It must exist and may be empty.
    #[arg(long, value_name = "NAMESPACE/NAME", requires = "tls_issue_names", value_parser = parse_config_map)]
    pub tls_ca_config_map: Option<String>,

    /// A list of objects whose caBundle the leader sets to the CA certificates of
    /// --tls-issue-names (comma-separated on the command line). RESOURCE is
    /// mutatingwebhookconfigurations, validatingwebhookconfigurations or
    /// customresourcedefinitions. Every webhook of a configuration is set, and the webhook of a
    /// definition if its conversion strategy is Webhook.
    #[arg(long, value_name = "RESOURCE/NAME", value_delimiter = ',', requires = "tls_issue_names", value_parser = parse_bundle)]
    pub tls_ca_bundles: Vec<String>,

    /// How long a new CA of --tls-issue-names is published before a certificate of it is served.
    /// Clients must read the published CAs again within this time.
    #[arg(long, value_name = "DURATION", default_value = GRACE_PERIOD, value_parser = parse_duration)]
    pub tls_ca_grace_period: Duration,

    /// The lifetime of a CA of --tls-issue-names, for tests.
    #[arg(long, value_name = "DURATION", default_value = CA_LIFETIME, hide = true, value_parser = parse_lifetime)]
    pub tls_ca_lifetime: Duration,

    /// The lifetime of a certificate of --tls-issue-names, for tests.
    #[arg(long, value_name = "DURATION", default_value = CERTIFICATE_LIFETIME, hide = true, value_parser = parse_lifetime)]
    pub tls_certificate_lifetime: Duration,
}

impl Default for SecretArgs {
    fn default() -> Self {
        let duration = |text| parse_duration(text).unwrap_or_default();
        Self {
            tls_secret: None,
            tls_issue_names: Vec::new(),
            tls_ca_config_map: None,
            tls_ca_bundles: Vec::new(),
            tls_ca_grace_period: duration(GRACE_PERIOD),
            tls_ca_lifetime: duration(CA_LIFETIME),
            tls_certificate_lifetime: duration(CERTIFICATE_LIFETIME),
        }
    }
}

/// The address and the certificate for HTTPS. [`Args::default`] equals the parsed flags of an empty
/// command line.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Secure serving")]
#[group(skip)]
pub struct Args {
    /// The port on which to serve HTTPS with authentication and authorization. If 0, don't serve
    /// HTTPS at all.
    #[arg(long, value_name = "PORT", default_value_t = SECURE_PORT)]
    pub secure_port: u16,

    /// The IP address on which to listen for the --secure-port port. 0.0.0.0 means every IPv4
    /// interface; :: means every interface of both IP families.
    #[arg(long, value_name = "IP", value_parser = parse_address, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub bind_address: IpAddr,

    /// File containing the x509 certificate for HTTPS (CA certificates, if any, concatenated after
    /// the server certificate). If --tls-cert-file and --tls-private-key-file are not provided, a
    /// self-signed certificate and key are generated in memory.
    #[arg(long, value_name = "FILE")]
    pub tls_cert_file: Option<PathBuf>,

    /// The folder of a self-signed certificate, portreeve.crt, and its key, portreeve.key. They are
    /// generated unless they exist. Ignored if --tls-cert-file is provided.
    #[arg(long, value_name = "FOLDER")]
    pub cert_dir: Option<PathBuf>,

    /// The certificate in a Secret, instead of files.
    #[command(flatten)]
    pub secret: SecretArgs,

    /// File containing the x509 private key matching --tls-cert-file.
    #[arg(long, value_name = "FILE")]
    pub tls_private_key_file: Option<PathBuf>,

    /// Minimum TLS version supported. TLS 1.2 is the lowest that is served.
    #[arg(long, value_name = "VERSION", value_enum, default_value_t = TlsVersion::Tls12)]
    pub tls_min_version: TlsVersion,

    /// A list of cipher suites for the server (comma-separated on the command line), by their Go
    /// names. Those of TLS 1.3 are always enabled. If omitted, the recommended ones are used.
    #[arg(long, value_name = "SUITES", value_delimiter = ',')]
    pub tls_cipher_suites: Vec<CipherSuite>,

    /// A pair of x509 certificate and private key files, optionally suffixed with a list of names
    /// for which it is served: CERTIFICATE,KEY:NAME,... A name may begin with *. for any first
    /// label. Without names, those in the certificate are used. Can be repeated.
    #[arg(long, value_name = "FILES")]
    pub tls_sni_cert_key: Vec<NamedPair>,

    /// A list of HTTP paths that are served without authorization (comma-separated on the command
    /// line). A path that ends in * allows every path with the prefix before the *. Give an empty
    /// list to allow none. If /metrics is in it, everybody may see the reasons of health checks.
    #[arg(long, value_name = "PATHS", value_delimiter = ',', default_value = ALWAYS_ALLOWED)]
    pub authorization_always_allow_paths: Vec<AllowedPaths>,
}

/// An invalid value of a flag, by what the flag expects.
#[derive(Debug, thiserror::Error)]
enum InvalidFlag {
    #[error("expected an IP address without a port, such as 0.0.0.0 or ::")]
    Address,
    #[error("expected RESOURCE/NAME, where RESOURCE is one of {}", BUNDLES.join(", "))]
    Bundle,
    #[error("expected a DNS name in lower case, such as portreeve.portreeve-system.svc")]
    DnsName,
    #[error("expected a duration such as 30s, 1m30s or 12h")]
    Duration,
    #[error("expected 2s or more")]
    Lifetime,
    #[error("expected NAMESPACE/NAME, such as {example}")]
    Object { example: &'static str },
}

fn parse_address(text: &str) -> Result<IpAddr, InvalidFlag> {
    text.parse().map_err(|_| InvalidFlag::Address)
}

fn is_name(part: &str) -> bool {
    let is_name_char = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    !part.is_empty() && part.chars().all(is_name_char)
}

fn parse_bundle(text: &str) -> Result<String, InvalidFlag> {
    match text.split_once('/') {
        Some((resource, name)) if BUNDLES.contains(&resource) && is_name(name) => Ok(text.to_owned()),
        _ => Err(InvalidFlag::Bundle),
    }
}

/// Parses a duration in Go's format.
fn parse_duration(text: &str) -> Result<Duration, InvalidFlag> {
    let text = if text == "0" { "0s" } else { text };
    let parsed = text.parse::<SignedDuration>().ok();
    parsed
        .and_then(|parsed| Duration::try_from(parsed).ok())
        .ok_or(InvalidFlag::Duration)
}

/// Parses a lifetime. Certificates contain times in whole seconds.
fn parse_lifetime(text: &str) -> Result<Duration, InvalidFlag> {
    let lifetime = parse_duration(text)?;
    if lifetime < Duration::from_secs(2) {
        return Err(InvalidFlag::Lifetime);
    }
    Ok(lifetime)
}

fn parse_secret(text: &str) -> Result<String, InvalidFlag> {
    parse_object(text, "portreeve-system/portreeve-serving")
}

fn parse_config_map(text: &str) -> Result<String, InvalidFlag> {
    parse_object(text, "portreeve-system/portreeve-serving-ca")
}

/// Parses the namespace and the name of an object, of which an error shows an example.
fn parse_object(text: &str, example: &'static str) -> Result<String, InvalidFlag> {
    match text.split_once('/') {
        Some((namespace, name)) if is_name(namespace) && is_name(name) => Ok(text.to_owned()),
        _ => Err(InvalidFlag::Object { example }),
    }
}

fn parse_dns_name(text: &str) -> Result<String, InvalidFlag> {
    let name = text.strip_prefix("*.").unwrap_or(text);
    let is_label_char = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_label = |label: &str| (1..=63).contains(&label.len()) && label.chars().all(is_label_char);
    if name.len() <= 253 && name.split('.').all(is_label) {
        return Ok(text.to_owned());
    }
    Err(InvalidFlag::DnsName)
}

impl Args {
    /// Returns the address to listen on, or `None` when `--secure-port=0` disables serving.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        (self.secure_port != 0).then(|| SocketAddr::new(self.bind_address, self.secure_port))
    }

    /// Returns the flags of TLS.
    pub(crate) fn tls_settings(&self) -> tls::Settings<'_> {
        tls::Settings {
            certificate: self.tls_cert_file.as_deref(),
            key: self.tls_private_key_file.as_deref(),
            folder: self.cert_dir.as_deref(),
            has_secret: self.secret.tls_secret.is_some(),
            named: &self.tls_sni_cert_key,
            lowest_version: self.tls_min_version,
            suites: &self.tls_cipher_suites,
            bind_address: self.bind_address,
        }
    }

    /// Returns all items of `--authorization-always-allow-paths` as one list.
    pub(crate) fn allowed_paths(&self) -> AllowedPaths {
        self.authorization_always_allow_paths.iter().cloned().collect()
    }
}

impl Default for Args {
    fn default() -> Self {
        Self {
            secure_port: SECURE_PORT,
            bind_address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            cert_dir: None,
            tls_cert_file: None,
            tls_private_key_file: None,
            secret: SecretArgs::default(),
            tls_min_version: TlsVersion::Tls12,
            tls_cipher_suites: Vec::new(),
            tls_sni_cert_key: Vec::new(),
            authorization_always_allow_paths: ALWAYS_ALLOWED.split(',').flat_map(str::parse).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use expect_test::{Expect, expect};

    use super::*;

    /// The daemon.
    #[derive(Debug, Parser)]
    #[command(name = "portreeve", term_width = 100)]
    struct Command {
        #[command(flatten)]
        serving: Args,
        /// Not about serving.
        #[arg(long)]
        other: bool,
    }

    fn parse(flags: &[&str]) -> Result<Args, clap::Error> {
        Command::try_parse_from([&["portreeve"], flags].concat()).map(|command| command.serving)
    }

    fn check_error(flags: &[&str], expected: &Expect) {
        expected.assert_eq(&parse(flags).unwrap_err().to_string());
    }

    #[test]
    fn default_equals_an_empty_command_line() {
        assert_eq!(format!("{:?}", parse(&[]).unwrap()), format!("{:?}", Args::default()));
        assert_eq!(Args::default().address(), Some("0.0.0.0:10257".parse().unwrap()));
        assert!(Args::default().allowed_paths().allow("/livez"));
    }

    #[test]
    fn paths_on_the_command_line_replace_the_default_and_repeated_lists_add_up() {
        let flag = "--authorization-always-allow-paths";
        let args = parse(&[flag, "/metrics,/debug/*", flag, "/livez"])
            .unwrap()
            .allowed_paths();
        assert!(args.allow("/metrics") && args.allow("/debug/x") && args.allow("/livez"));
        assert!(!args.allow("/healthz"));
        assert!(!parse(&[&format!("{flag}=")]).unwrap().allowed_paths().allow("/livez"));
    }

    #[test]
    fn invalid_value_is_rejected_by_the_parser() {
        check_error(
            &["--authorization-always-allow-paths=/livez,metrics"],
            &expect![[r#"
                error: invalid value 'metrics' for '--authorization-always-allow-paths <PATHS>': the path "metrics" must start with /, as in /metrics

                For more information, try '--help'.
            "#]],
        );
        check_error(
            &["--bind-address=localhost"],
            &expect![[r"
            error: invalid value 'localhost' for '--bind-address <IP>': expected an IP address without a port, such as 0.0.0.0 or ::

            For more information, try '--help'.
        "]],
        );
    }

    #[test]
    fn bundles_are_resources_with_a_webhook_and_need_an_issuer() {
        let issuer = ["--tls-secret=a/b", "--tls-issue-names=c.svc"];
        let bundles = |list: &str| parse(&[&issuer[..], &[&format!("--tls-ca-bundles={list}")]].concat());
        let listed = "mutatingwebhookconfigurations/a,validatingwebhookconfigurations/b,customresourcedefinitions/c.d";
        assert_eq!(bundles(listed).unwrap().secret.tls_ca_bundles.len(), 3);
        for wrong in [
            "secrets/a",
            "mutatingwebhookconfigurations",
            "mutatingwebhookconfigurations/",
            "a/b/c",
        ] {
            let error = bundles(wrong).unwrap_err().to_string();
            assert!(error.contains("customresourcedefinitions"), "{error}");
        }
        let alone = parse(&["--tls-secret=a/b", "--tls-ca-bundles=customresourcedefinitions/c"]);
        assert!(alone.unwrap_err().to_string().contains("--tls-issue-names"));
        assert!(parse(&["--tls-ca-grace-period=0"]).is_ok());
        assert!(parse(&["--tls-ca-grace-period=-1s"]).is_err());
        assert!(parse(&["--tls-certificate-lifetime=1s"]).is_err());
    }

    #[test]
    fn the_example_of_an_object_is_one_for_its_flag() {
        for (flag, example) in [
            ("--tls-secret=foo", "portreeve-system/portreeve-serving\n"),
            ("--tls-ca-config-map=foo", "portreeve-system/portreeve-serving-ca\n"),
        ] {
            let error = parse(&["--tls-issue-names=a", flag]).unwrap_err().to_string();
            assert!(error.contains(example), "{error}");
        }
    }

    #[test]
    fn help_shows_every_flag() {
        use clap::CommandFactory;
        expect![[r"
            The daemon

            Usage: portreeve [OPTIONS]

            Options:
              -h, --help  Print help (see more with '--help')

            Secure serving:
                  --secure-port <PORT>
                      The port on which to serve HTTPS with authentication and authorization. If 0, don't serve
                      HTTPS at all [default: 10257]
                  --bind-address <IP>
                      The IP address on which to listen for the --secure-port port. 0.0.0.0 means every IPv4
                      interface; :: means every interface of both IP families [default: 0.0.0.0]
                  --tls-cert-file <FILE>
                      File containing the x509 certificate for HTTPS (CA certificates, if any, concatenated
                      after the server certificate). If --tls-cert-file and --tls-private-key-file are not
                      provided, a self-signed certificate and key are generated in memory
                  --cert-dir <FOLDER>
                      The folder of a self-signed certificate, portreeve.crt, and its key, portreeve.key. They
                      are generated unless they exist. Ignored if --tls-cert-file is provided
                  --tls-secret <NAMESPACE/NAME>
                      The Secret with the certificate (tls.crt) and its key (tls.key) for HTTPS, instead of
                      files. It is watched. Until it has a certificate, a self-signed one is served
                  --tls-issue-names <NAMES>
                      A list of DNS names (comma-separated on the command line). If set, the leader maintains
                      the Secret of --tls-secret: it issues certificates for these names from a CA of its own,
                      and renews both. The leader creates the Secret if it does not exist
                  --tls-ca-config-map <NAMESPACE/NAME>
                      The ConfigMap in which the leader publishes the CA certificates (ca.crt) of
                      --tls-issue-names for clients. It must exist and may be empty
                  --tls-ca-bundles <RESOURCE/NAME>
                      A list of objects whose caBundle the leader sets to the CA certificates of
                      --tls-issue-names (comma-separated on the command line). RESOURCE is
                      mutatingwebhookconfigurations, validatingwebhookconfigurations or
                      customresourcedefinitions. Every webhook of a configuration is set, and the webhook of a
                      definition if its conversion strategy is Webhook
                  --tls-ca-grace-period <DURATION>
                      How long a new CA of --tls-issue-names is published before a certificate of it is served.
                      Clients must read the published CAs again within this time [default: 60s]
                  --tls-private-key-file <FILE>
                      File containing the x509 private key matching --tls-cert-file
                  --tls-min-version <VERSION>
                      Minimum TLS version supported. TLS 1.2 is the lowest that is served [default:
                      VersionTLS12] [possible values: VersionTLS10, VersionTLS11, VersionTLS12, VersionTLS13]
                  --tls-cipher-suites <SUITES>
                      A list of cipher suites for the server (comma-separated on the command line), by their Go
                      names. Those of TLS 1.3 are always enabled. If omitted, the recommended ones are used
                  --tls-sni-cert-key <FILES>
                      A pair of x509 certificate and private key files, optionally suffixed with a list of names
                      for which it is served: CERTIFICATE,KEY:NAME,... A name may begin with *. for any first
                      label. Without names, those in the certificate are used. Can be repeated
                  --authorization-always-allow-paths <PATHS>
                      A list of HTTP paths that are served without authorization (comma-separated on the command
                      line). A path that ends in * allows every path with the prefix before the *. Give an empty
                      list to allow none. If /metrics is in it, everybody may see the reasons of health checks
                      [default: /healthz,/readyz,/livez]
                  --other
                      Not about serving
        "]]
        .assert_eq(&Command::command().render_help().to_string());
    }
}
