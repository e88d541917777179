use std::fs;

use futures::FutureExt;
use portreeve_testing::Authority;

use super::*;

fn ca() -> String {
    Authority::new().unwrap().pem()
}

fn none() -> Authorities {
    Authorities::default()
}

#[test]
fn a_file_that_cannot_be_published_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.crt");
    let error = || RootCa::open(Some(path.clone()), &none()).err().unwrap().to_string();
    let broken = ca().replacen("MII", "MI", 1);
    assert_eq!(error(), format!("failed to read {}", path.display()));
    for content in ["", "ca", &*broken, &*format!("{}{broken}", ca())] {
        fs::write(&path, content).unwrap();
        let expected = format!("{} contains no valid PEM certificates", path.display());
        assert_eq!(error(), expected, "{content:?}");
    }
    fs::write(&path, ca() + "-----BEGIN EC PRIVATE KEY-----").unwrap();
    assert!(error().starts_with(&format!("{} contains a private key", path.display())));
    fs::write(&path, [0xff]).unwrap();
    assert_eq!(error(), format!("failed to read {}", path.display()));
    fs::write(&path, "a".repeat(1024 * 1024 + 1)).unwrap();
    assert_eq!(error(), format!("{} is longer than 1 MiB", path.display()));
    assert!(matches!(RootCa::open(None, &none()), Err(RootCaError::NoAuthorities)));
}

#[tokio::test(start_paused = true)]
async fn a_changed_file_is_followed_and_a_broken_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.crt");
    let (old, new) = (ca(), format!("# the next one\n{}", ca()));
    fs::write(&path, &old).unwrap();
    let root_ca = RootCa::open(Some(path.clone()), &none()).unwrap();
    assert_eq!(*root_ca.pem(), *old);
    for content in [&*old, "broken"] {
        fs::write(&path, content).unwrap();
        let changed = tokio::time::timeout(POLL_INTERVAL * 3, root_ca.changed());
        assert!(changed.await.is_err(), "{content:?}");
        assert_eq!(*root_ca.pem(), *old);
    }
    fs::write(&path, &new).unwrap();
    root_ca.changed().await;
    assert_eq!(*root_ca.pem(), *new);
}

#[tokio::test]
async fn the_certificates_of_the_connection_are_followed() {
    let authorities = Authorities::default();
    authorities.replace(Some("old".into()));
    let root_ca = RootCa::open(None, &authorities).unwrap();
    assert_eq!(root_ca.changed().now_or_never(), None);
    // A connection without a CA has nothing to publish.
    authorities.replace(None);
    assert_eq!(root_ca.changed().now_or_never(), None);
    authorities.replace(Some("new".into()));
    assert_eq!(root_ca.changed().now_or_never(), Some(()));
    assert_eq!(&*root_ca.pem(), "new");
    assert_eq!(root_ca.changed().now_or_never(), None);
}
