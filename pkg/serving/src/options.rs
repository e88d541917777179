//! The flags of the HTTPS listener, with Kubernetes' names. Flatten them into the daemon's
//! arguments.
//!
//! Architecture Invariant: values only. Nothing is read or bound here.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use crate::AllowedPaths;

/// The port of kube-controller-manager, so that existing scrape configurations work.
const SECURE_PORT: u16 = 10257;

/// The paths that probes need, as in kube-controller-manager.
const ALWAYS_ALLOWED: &str = "/healthz,/readyz,/livez";

/// The address and the certificate for HTTPS. [`Args::default`] equals the parsed flags of an empty
/// command line.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Secure serving")]
#[group(skip)]
pub struct Args {
    /// The port on which to serve HTTPS. Paths that --authorization-always-allow-paths does not
    /// allow answer 401. If 0, don't serve HTTPS at all.
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

    /// File containing the x509 private key matching --tls-cert-file.
    #[arg(long, value_name = "FILE")]
    pub tls_private_key_file: Option<PathBuf>,

    /// A list of HTTP paths that are served without credentials (comma-separated on the command
    /// line); all others answer 401. A path that ends in * allows every path with the prefix before
    /// the *. Give an empty list to allow none.
    #[arg(long, value_name = "PATHS", value_delimiter = ',', default_value = ALWAYS_ALLOWED)]
    pub authorization_always_allow_paths: Vec<AllowedPaths>,
}

fn parse_address(text: &str) -> Result<IpAddr, String> {
    let parsed = text.parse();
    parsed.map_err(|_| "expected an IP address without a port, such as 0.0.0.0 or ::".to_owned())
}

impl Args {
    /// Returns the address to listen on, or `None` when `--secure-port=0` disables serving.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        (self.secure_port != 0).then(|| SocketAddr::new(self.bind_address, self.secure_port))
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
            tls_cert_file: None,
            tls_private_key_file: None,
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
    fn port_zero_turns_serving_off() {
        assert_eq!(parse(&["--secure-port=0"]).unwrap().address(), None);
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
    fn help_shows_every_flag() {
        use clap::CommandFactory;
        expect![[r"
            The daemon

            Usage: portreeve [OPTIONS]

            Options:
              -h, --help  Print help

            Secure serving:
                  --secure-port <PORT>
                      The port on which to serve HTTPS. Paths that --authorization-always-allow-paths does not
                      allow answer 401. If 0, don't serve HTTPS at all [default: 10257]
                  --bind-address <IP>
                      The IP address on which to listen for the --secure-port port. 0.0.0.0 means every IPv4
                      interface; :: means every interface of both IP families [default: 0.0.0.0]
                  --tls-cert-file <FILE>
                      File containing the x509 certificate for HTTPS (CA certificates, if any, concatenated
                      after the server certificate). If --tls-cert-file and --tls-private-key-file are not
                      provided, a self-signed certificate and key are generated in memory
                  --tls-private-key-file <FILE>
                      File containing the x509 private key matching --tls-cert-file
                  --authorization-always-allow-paths <PATHS>
                      A list of HTTP paths that are served without credentials (comma-separated on the command
                      line); all others answer 401. A path that ends in * allows every path with the prefix
                      before the *. Give an empty list to allow none [default: /healthz,/readyz,/livez]
                  --other
                      Not about serving
        "]]
        .assert_eq(&Command::command().render_help().to_string());
    }
}
