//! The check that the apiserver is on this machine.

use std::{io, net::IpAddr, time::Duration};

use axum::http::Uri;
use tokio::{net::lookup_host, time::timeout};

use super::Error;

/// The time limit for the lookup of the apiserver's name.
const LIMIT: Duration = Duration::from_secs(5);

/// Checks that every address of the apiserver is a loopback address.
///
/// # Errors
///
/// Returns an error if one is not, or if the name cannot be resolved.
pub(super) async fn ensure_local(url: &Uri) -> Result<(), Error> {
    let resolve = |source| Error::Resolve {
        url: url.clone(),
        source,
    };
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    let found = timeout(LIMIT, lookup_host((host, url.port_u16().unwrap_or(443)))).await;
    let found = found.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let addresses: Vec<_> = found.map_err(resolve)?.map(|address| address.ip()).collect();
    if addresses.is_empty() {
        return Err(resolve(io::ErrorKind::NotFound.into()));
    }
    match addresses.into_iter().find(|address| !is_loopback(*address)) {
        Some(address) => Err(Error::Remote {
            url: url.clone(),
            address,
        }),
        None => Ok(()),
    }
}

fn is_loopback(address: IpAddr) -> bool {
    // An IPv4 address may be written as an IPv6 one.
    address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_loopback_addresses_are_on_this_machine() {
        let check = async |url: &str| {
            let checked = ensure_local(&url.parse().unwrap()).await;
            checked.map_err(|error| error.to_string())
        };
        for url in [
            "https://127.0.0.1:6443",
            "https://127.8.9.1",
            "https://[::1]:6443/path",
            "https://[::ffff:127.0.0.1]:6443",
            "https://localhost:6443",
        ] {
            assert_eq!(check(url).await, Ok(()), "{url}");
        }
        for url in [
            "https://192.0.2.1:6443",
            "https://[2001:db8::1]:6443",
            "https://[::ffff:192.0.2.1]:6443",
            "https://0.0.0.0:6443",
        ] {
            let error = check(url).await.unwrap_err();
            assert!(error.contains(url) && error.contains("--allow-remote"), "{error}");
        }
        let error = check("https://name.invalid:6443").await.unwrap_err();
        assert!(
            error.contains("name.invalid") && error.contains("--kubeconfig"),
            "{error}"
        );
    }
}
