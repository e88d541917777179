//! Keeps the trust in client certificates up to date: reads the files of the flags and the
//! ConfigMap of the cluster.

use std::{path::PathBuf, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use parking_lot::RwLock;
use portreeve_client::error_chain;
use tokio::{task::spawn_blocking, time::sleep};

use crate::{
    client_certificate::{BundleError, CaBundle},
    request_header::HeaderNames,
    trust::{Trust, TrustError, TrustedProxies},
};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";

/// The pause between two reads of the files and the ConfigMap.
const INTERVAL: Duration = Duration::from_secs(30);
/// The pause until the first read succeeds.
const FIRST_INTERVAL: Duration = Duration::from_secs(1);

/// The number of rejections in a row that show that the right is missing: an apiserver that is
/// starting rejects everything until it has read the roles.
const CERTAIN_DENIALS: u32 = 3;

/// Trust that cannot be looked up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LookupError {
    /// A file cannot be read.
    #[error("failed to read {flag}={}", path.display())]
    Read {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The certificates in a file cannot be used.
    #[error("failed to use {flag}={}", path.display())]
    Use {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: BundleError,
    },
    /// The ConfigMap cannot be used.
    #[error("failed to use the configuration of client certificates: {0}")]
    Invalid(String),
    /// The ConfigMap cannot be read.
    #[error("failed to read configmap {NAMESPACE}/{NAME}")]
    Get(#[source] Box<kube::Error>),
    /// The account may not read the ConfigMap.
    #[error(
        "forbidden to read configmap {NAMESPACE}/{NAME}: bind the Role extension-apiserver-authentication-reader \
         in {NAMESPACE} to the account, or set --authentication-tolerate-lookup-failure"
    )]
    Forbidden(#[source] Box<kube::Error>),
}

/// Where the trust in client certificates comes from.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    /// `--client-ca-file`, instead of the cluster's CAs of users.
    pub(crate) users: Option<PathBuf>,
    /// `--requestheader-client-ca-file` and its lists, instead of the cluster's.
    pub(crate) proxies: Option<(PathBuf, Vec<String>, HeaderNames)>,
    /// Whether the cluster is asked at all.
    pub(crate) lookup: bool,
    /// Whether a rejection of the first lookups ends the daemon.
    pub(crate) strict: bool,
}

/// Keeps `trust` up to date. Returns only if a file cannot be used at the start, or if the cluster
/// rejects the first lookups and that must not be tolerated.
pub(crate) async fn keep_up_to_date(sources: &Sources, client: &Client, trust: &RwLock<Trust>) -> LookupError {
    let (mut has_files, mut has_cluster, mut denials) = (false, !sources.lookup, 0);
    let mut last_failure = None;
    loop {
        let mut found = trust.read().clone();
        let mut failure = None;
        if sources.lookup {
            match from_cluster(client).await {
                Ok(published) => {
                    // As long as the ConfigMap does not exist, its last content counts.
                    found = published.unwrap_or(found);
                    (has_cluster, denials) = (true, 0);
                }
                Err(error) => {
                    let is_denied = matches!(error, LookupError::Forbidden(_));
                    denials = if is_denied { denials + 1 } else { 0 };
                    if sources.strict && !has_cluster && denials >= CERTAIN_DENIALS {
                        return error;
                    }
                    failure = Some(error);
                }
            }
        }
        match read_files(sources, &mut found).await {
            Ok(()) => has_files = true,
            Err(error) if !has_files => return error,
            Err(error) => failure = Some(error),
        }
        *trust.write() = found;
        report(failure.map(|error| error_chain(&error)), &mut last_failure);
        sleep(if has_cluster { INTERVAL } else { FIRST_INTERVAL }).await;
    }
}

/// Logs a failure unless it is the last one.
fn report(failure: Option<String>, last: &mut Option<String>) {
    if let Some(failure) = failure.as_ref().filter(|_| failure != *last) {
        tracing::warn!(err = failure, "keeping previous configuration of client certificates");
    }
    *last = failure;
}

/// Reads the files of the flags, whose content replaces the cluster's.
async fn read_files(sources: &Sources, trust: &mut Trust) -> Result<(), LookupError> {
    if let Some(path) = &sources.users {
        trust.users = Some(read_bundle("--client-ca-file", path.clone()).await?);
    }
    if let Some((path, allowed_names, headers)) = &sources.proxies {
        trust.proxies = Some(TrustedProxies {
            ca: read_bundle("--requestheader-client-ca-file", path.clone()).await?,
            allowed_names: allowed_names.clone(),
            headers: headers.clone(),
        });
    }
    Ok(())
}

/// Reads the ConfigMap. Returns `None` if it does not exist.
async fn from_cluster(client: &Client) -> Result<Option<Trust>, LookupError> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    match api.get_opt(NAME).await {
        Ok(Some(map)) => {
            let trust = Trust::from_config_map(&map.data.unwrap_or_default());
            let invalid = |error: TrustError| LookupError::Invalid(error_chain(&error));
            trust.map(Some).map_err(invalid)
        }
        Ok(None) => Ok(None),
        Err(kube::Error::Api(status)) if status.code == 403 => {
            Err(LookupError::Forbidden(Box::new(kube::Error::Api(status))))
        }
        Err(error) => Err(LookupError::Get(Box::new(error))),
    }
}

/// Reads the CAs in a file, on a thread for blocking work, because a file system may hang.
pub(crate) async fn read_bundle(flag: &'static str, path: PathBuf) -> Result<CaBundle, LookupError> {
    let file = path.clone();
    let read = spawn_blocking(move || std::fs::read_to_string(file)).await;
    let pem = read
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
        .map_err(|source| LookupError::Read {
            flag,
            path: path.clone(),
            source,
        })?;
    CaBundle::parse(&pem).map_err(|source| LookupError::Use { flag, path, source })
}
