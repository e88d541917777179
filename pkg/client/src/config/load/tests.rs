//! Tests of loading, which needs no connection.

use std::fs;

use super::*;
use crate::{
    config::tests::{TOKEN, kubeconfig, parse, path},
    error_chain,
};

/// Returns the file's text in which a line of the only block is `secret`, and a blank line follows.
fn with_header(secret: &str) -> String {
    format!("-----BEGIN CERTIFICATE-----\n{secret}\n\nMTIz\n-----END CERTIFICATE-----\n")
}

fn failure(cluster: &str) -> (PathBuf, Error) {
    let file = kubeconfig(cluster, "{token: a}");
    match load(&parse(&["--kubeconfig", path(&file)]).unwrap()) {
        Ok(_) => panic!("{cluster} was accepted"),
        Err(error) => (file.path().to_owned(), error),
    }
}

#[track_caller]
fn check(error: &Error, path: &Path) {
    let (text, debug) = (error_chain(error), format!("{error:?}"));
    assert!(
        text.contains(&format!("CA certificates in {}:", path.display())),
        "{text}"
    );
    assert!(!text.contains(TOKEN) && !debug.contains(TOKEN), "{text} {debug}");
}

/// A PEM reader takes the lines before a blank line for headers, and its error quotes an invalid
/// one.
#[test]
fn errors_do_not_quote_a_line_of_a_ca_file() {
    let authority = tempfile::NamedTempFile::new().unwrap();
    fs::write(authority.path(), with_header(TOKEN)).unwrap();
    let cluster = format!("server: 'https://a:1', certificate-authority: {}", path(&authority));
    let (_, error) = failure(&format!("{{{cluster}}}"));
    check(&error, authority.path());

    // The same text in base64.
    let inline = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCnMzY3IzdC10MGtlbgoKTVRJegotLS0tLUVORCBDRVJUSUZJQ0FURS0tLS0tCg==";
    let (file, error) = failure(&format!("{{{cluster}, certificate-authority-data: {inline}}}"));
    check(&error, &file);
}

#[test]
fn errors_do_not_quote_a_line_of_the_ca_in_a_pod() {
    let authority = tempfile::NamedTempFile::new().unwrap();
    fs::write(authority.path(), with_header(TOKEN)).unwrap();
    let cluster = format!("{{server: 'https://a:1', certificate-authority: {}}}", path(&authority));
    let file = Kubeconfig::read_from(kubeconfig(&cluster, "{}").path()).unwrap();
    let Err(KubeconfigError::ParseCertificates(source)) = Config::try_from(file) else {
        panic!("the CA was accepted");
    };
    assert!(source.to_string().contains(TOKEN), "{source}");
    check(
        &of_in_cluster(InClusterError::ParseCertificates(source)),
        Path::new(CLUSTER_AUTHORITY),
    );
}

#[test]
fn every_kind_of_credential_counts() {
    let anonymous = |user: &str| {
        let file = kubeconfig("{server: 'https://a:1'}", user);
        load(&parse(&["--kubeconfig", path(&file)]).unwrap()).unwrap().anonymous
    };
    for user in [
        "{token: a}",
        "{tokenFile: a}",
        "{username: a, password: a}",
        "{client-certificate: a, client-key: a}",
        "{client-certificate-data: YQ==, client-key-data: YQ==}",
        "{exec: {command: a}}",
        "{auth-provider: {name: oidc}}",
    ] {
        assert_eq!(anonymous(user), None, "{user}");
    }
    for user in ["{}", "null", "{token: ''}", "{username: a}", "{as: a}"] {
        let reason = anonymous(user).unwrap_or_default();
        assert!(
            reason.starts_with("the user \"u\" has none of: auth-provider, "),
            "{user}: {reason}"
        );
    }
}
