//! `--tls-sni-cert-key`: further certificates, chosen by the server name that a client asks for.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::NAMED_PAIR;
use super::pair::{FlagFile, Pair, PairError};

/// A certificate with its key, and the names for which it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPair {
    pub(super) pair: Pair,
    /// The names of the flag, in lower case. Empty: the names in the certificate.
    names: Vec<String>,
}

/// An invalid item of `--tls-sni-cert-key`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidNamedPair {
    /// The item does not name two files.
    #[error(
        "expected a certificate file and a key file, as in tls.crt,tls.key or tls.crt,tls.key:*.example.com,example.com"
    )]
    Files,
    /// A name is neither a host name nor a wildcard for one label.
    #[error("the name {name:?} is neither a host name nor a host name after *.")]
    Name {
        /// The name as given.
        name: String,
    },
}

impl FromStr for NamedPair {
    type Err = InvalidNamedPair;

    /// Parses `CERTIFICATE,KEY[:NAME,...]`, as in Kubernetes.
    fn from_str(text: &str) -> Result<Self, InvalidNamedPair> {
        let (files, names) = text
            .split_once(':')
            .map_or((text, None), |(files, names)| (files, Some(names)));
        let (certificate, key) = files.split_once(',').ok_or(InvalidNamedPair::Files)?;
        if certificate.is_empty() || key.is_empty() || key.contains(',') || names == Some("") {
            return Err(InvalidNamedPair::Files);
        }
        let names = names.into_iter().flat_map(|names| names.split(','));
        Ok(Self {
            pair: Pair {
                certificate: FlagFile::new(NAMED_PAIR, Path::new(certificate)),
                key: FlagFile::new(NAMED_PAIR, Path::new(key)),
            },
            names: names.map(name).collect::<Result<_, _>>()?,
        })
    }
}

fn name(text: &str) -> Result<String, InvalidNamedPair> {
    let host = text.strip_prefix("*.").unwrap_or(text);
    let is_host_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    // Clients do not send an IP address as a server name.
    let is_address = host.parse::<IpAddr>().is_ok();
    if host.is_empty() || is_address || !host.chars().all(is_host_char) {
        return Err(InvalidNamedPair::Name { name: text.to_owned() });
    }
    Ok(text.to_ascii_lowercase())
}

/// The certificates by server name.
#[derive(Debug)]
pub(super) struct CertificatesByName {
    /// For clients that ask for another name, or for none.
    default: Arc<CertifiedKey>,
    named: HashMap<String, Arc<CertifiedKey>>,
}

impl CertificatesByName {
    /// Loads the named certificates. As in Kubernetes, names of the flag count before those in
    /// certificates, and earlier items before later ones.
    pub(super) fn load(default: Arc<CertifiedKey>, pairs: &[NamedPair]) -> Result<Self, PairError> {
        let mut named = HashMap::new();
        let mut from_certificates = Vec::new();
        for NamedPair { pair, names } in pairs {
            let certified = Arc::new(pair.load()?);
            if names.is_empty() {
                from_certificates.push(certified);
                continue;
            }
            for name in names {
                named.entry(name.clone()).or_insert_with(|| Arc::clone(&certified));
            }
        }
        for certified in from_certificates {
            for name in names_in(&certified) {
                named.entry(name).or_insert_with(|| Arc::clone(&certified));
            }
        }
        Ok(Self { default, named })
    }

    /// Returns the certificate for a server name: of the name itself, or of a wildcard for its
    /// first label.
    fn find(&self, server: Option<&str>) -> &Arc<CertifiedKey> {
        let find = |server: &str| {
            let server = server.to_ascii_lowercase();
            let wildcard = server.split_once('.').map(|(_, parent)| format!("*.{parent}"));
            let exact = self.named.get(&server);
            exact.or_else(|| self.named.get(&wildcard?))
        };
        server.and_then(find).unwrap_or(&self.default)
    }
}

impl ResolvesServerCert for CertificatesByName {
    fn resolve(&self, client: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(self.find(client.server_name())))
    }
}

/// Returns the DNS names in a certificate, and its common name if it is a host name, in lower case.
fn names_in(certified: &CertifiedKey) -> Vec<String> {
    let leaf = certified.end_entity_cert().ok();
    let Some((_, certificate)) = leaf.and_then(|leaf| X509Certificate::from_der(leaf).ok()) else {
        return Vec::new();
    };
    let alternative = certificate.subject_alternative_name().ok().flatten();
    let alternative = alternative.iter().flat_map(|extension| &extension.value.general_names);
    let dns = alternative.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    });
    let common = certificate.subject().iter_common_name();
    let common = common.filter_map(|common| name(common.as_str().ok()?).ok());
    dns.chain(common).collect()
}

#[cfg(test)]
mod tests {
    use rustls::crypto::ring;
    use rustls::pki_types::PrivateKeyDer;

    use super::*;

    struct Files(tempfile::TempDir);

    impl Files {
        /// Writes a certificate for these names, and returns an item of the flag without names.
        fn issue(&self, file: &str, names: &[&str]) -> String {
            let names: Vec<_> = names.iter().copied().map(str::to_owned).collect();
            let generated = rcgen::generate_simple_self_signed(names).unwrap();
            let path = |ending: &str| self.0.path().join(format!("{file}.{ending}"));
            std::fs::write(path("crt"), generated.cert.pem()).unwrap();
            std::fs::write(path("key"), generated.signing_key.serialize_pem()).unwrap();
            format!("{},{}", path("crt").display(), path("key").display())
        }
    }

    fn default() -> Arc<CertifiedKey> {
        let generated = rcgen::generate_simple_self_signed(["default".to_owned()]).unwrap();
        let key = PrivateKeyDer::Pkcs8(generated.signing_key.serialize_der().into());
        let key = ring::sign::any_supported_type(&key).unwrap();
        Arc::new(CertifiedKey::new(vec![generated.cert.der().clone()], key))
    }

    #[test]
    fn certificates_are_found_by_name() {
        let files = Files(tempfile::tempdir().unwrap());
        let own = files.issue("own", &["one.example.com", "*.example.com"]);
        let explicit = files.issue("explicit", &["ignored.example.org"]) + ":one.example.com,*.wild.example";
        let pairs = [own, explicit].map(|item| item.parse().unwrap());
        let resolver = CertificatesByName::load(default(), &pairs).unwrap();
        let found = |server: Option<&str>| names_in(resolver.find(server)).remove(0);
        let table = [
            (None, "default"),
            (Some("unknown.example.net"), "default"),
            (Some("ignored.example.org"), "default"),
            // A name of the flag counts before the one in a certificate.
            (Some("one.example.com"), "ignored.example.org"),
            (Some("ONE.example.com"), "ignored.example.org"),
            (Some("two.example.com"), "one.example.com"),
            (Some("a.b.example.com"), "default"),
            (Some("example.com"), "default"),
            (Some("x.wild.example"), "ignored.example.org"),
        ];
        for (server, expected) in table {
            assert_eq!(found(server), expected, "{server:?}");
        }
    }

    #[test]
    fn items_of_the_flag_are_parsed_as_in_kubernetes() {
        let parse = |text: &str| text.parse::<NamedPair>();
        assert_eq!(parse("a.crt,a.key").unwrap().names, Vec::<String>::new());
        assert_eq!(parse("a.crt,a.key:Foo,*.foo").unwrap().names, ["foo", "*.foo"]);
        for text in ["", "a.crt", "a.crt,", ",a.key", "a.crt,a.key,b.key", "a.crt,a.key:"] {
            assert_eq!(parse(text), Err(InvalidNamedPair::Files), "{text:?}");
        }
        for (text, name) in [
            ("a,b:*", "*"),
            ("a,b:10.0.0.1", "10.0.0.1"),
            ("a,b:c,", ""),
            ("a,b:a.*.b", "a.*.b"),
            ("a,b:c d", "c d"),
        ] {
            let name = name.to_owned();
            assert_eq!(parse(text), Err(InvalidNamedPair::Name { name }), "{text:?}");
        }
    }
}
