//! Loads the configuration that the flags describe, from a kubeconfig or from the pod.
//!
//! Architecture Invariant: no certificate, key, token or password reaches an error.

use std::path::{Path, PathBuf};

use kube::{
    Config,
    config::{AuthInfo, Cluster, Context, InClusterError, Kubeconfig, KubeconfigError},
};

use super::{Args, Error};

/// The CA of the apiserver in a pod.
const CLUSTER_AUTHORITY: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

/// The fields of a kubeconfig's user that authenticate requests.
const CREDENTIALS: [&str; 7] = [
    "auth-provider",
    "client-certificate",
    "client-certificate-data",
    "exec",
    "password",
    "token",
    "tokenFile",
];

/// A configuration and its origin.
pub(super) struct Loaded {
    pub(super) config: Config,
    /// The files that it depends on, except for a token file, which kube reads again by itself.
    pub(super) files: Vec<PathBuf>,
    /// Why the kubeconfig has no credentials, so that requests are anonymous.
    pub(super) anonymous: Option<String>,
}

/// Loads the configuration that the flags describe.
pub(super) fn load(args: &Args) -> Result<Loaded, Error> {
    let context = args.context.as_deref();
    let mut loaded = match (&args.kubeconfig, &args.master) {
        (Some(path), _) => load_kubeconfigs(std::slice::from_ref(path), context)?,
        (None, Some(master)) => Loaded {
            config: Config::new(master.clone()),
            files: Vec::new(),
            anonymous: None,
        },
        (None, None) if !args.merged_kubeconfigs.is_empty() => load_kubeconfigs(&args.merged_kubeconfigs, context)?,
        (None, None) => {
            let mut config = Config::incluster().map_err(of_in_cluster)?;
            // kube would read this file again by itself, but would not report that it is broken.
            let files = config.root_cert_file.take().into_iter().collect();
            Loaded {
                config,
                files,
                anonymous: None,
            }
        }
    };
    if let Some(master) = &args.master {
        loaded.config.cluster_url = master.clone();
    }
    Ok(loaded)
}

/// Loads the kubeconfigs, merged into one. There is at least one.
fn load_kubeconfigs(paths: &[PathBuf], context: Option<&str>) -> Result<Loaded, Error> {
    let mut file = Kubeconfig::default();
    for path in paths {
        let merged = Kubeconfig::read_from(path).and_then(|read| file.merge(read));
        file = merged.map_err(|error| of_kubeconfig(path, path, error))?;
    }
    let path = paths.last().cloned().unwrap_or_default();
    if let Some(context) = context {
        file.current_context = Some(context.to_owned());
        if current_context(&file).is_none() {
            let context = context.to_owned();
            return Err(Error::NoContext { context, path });
        }
    }
    let context = current_context(&file);
    let cluster = context.and_then(|(_, context)| cluster_of(&file, context));
    let proxy_url = cluster.and_then(|cluster| cluster.proxy_url.as_ref());
    if proxy_url.is_some_and(|url| !url.is_empty()) {
        return Err(Error::Proxy);
    }
    let anonymous = context.and_then(|(name, context)| missing_credentials(&file, name, context));
    let authority = cluster.and_then(|cluster| Some(PathBuf::from(cluster.certificate_authority.as_ref()?)));
    let has_inline_authority = cluster.is_some_and(|cluster| cluster.certificate_authority_data.is_some());
    let mut config = Config::try_from(file).map_err(|error| {
        let authority = authority.as_ref().filter(|_| !has_inline_authority);
        of_kubeconfig(&path, authority.unwrap_or(&path), error)
    })?;
    // Any proxy that is set now comes from kube, which reads HTTPS_PROXY but ignores NO_PROXY.
    config.proxy_url = None;
    let mut files = paths.to_vec();
    files.extend(authority);
    let user = &config.auth_info;
    let pair = [&user.client_certificate, &user.client_key];
    files.extend(pair.into_iter().flatten().map(PathBuf::from));
    Ok(Loaded {
        config,
        files,
        anonymous,
    })
}

/// Returns the current context with its name.
fn current_context(file: &Kubeconfig) -> Option<(&str, &Context)> {
    let name = file.current_context.as_deref()?;
    let context = file.contexts.iter().find(|context| context.name == name)?;
    Some((name, context.context.as_ref()?))
}

fn cluster_of<'a>(file: &'a Kubeconfig, context: &Context) -> Option<&'a Cluster> {
    let cluster = file.clusters.iter().find(|named| named.name == context.cluster);
    cluster.and_then(|named| named.cluster.as_ref())
}

/// Returns why requests would be anonymous; `None` if the context has credentials.
///
/// Like client-go, kube accepts a context without a user, and one whose user does not exist.
fn missing_credentials(file: &Kubeconfig, context_name: &str, context: &Context) -> Option<String> {
    let Some(name) = context.user.as_deref().filter(|name| !name.is_empty()) else {
        return Some(format!("the context {context_name:?} names no user"));
    };
    let Some(user) = file.auth_infos.iter().find(|user| user.name == name) else {
        return Some(format!(
            "the context {context_name:?} names the user {name:?}, who is not in the file"
        ));
    };
    let has_credentials = user.auth_info.as_ref().is_some_and(has_credentials);
    (!has_credentials).then(|| format!("the user {name:?} has none of: {}", CREDENTIALS.join(", ")))
}

fn has_credentials(user: &AuthInfo) -> bool {
    // Unlike the struct, the serialized form shows whether a secret is empty.
    serde_json::to_value(user).is_ok_and(|user| {
        let mut credentials = CREDENTIALS.iter().filter_map(|field| user.get(field));
        credentials.any(|value| !value.is_null() && value != "")
    })
}

/// Returns the error for a kubeconfig whose CA is in the file `authority`.
fn of_kubeconfig(path: &Path, authority: &Path, source: KubeconfigError) -> Error {
    let path = path.to_owned();
    let source = match source {
        KubeconfigError::Parse(source) => source.to_string(),
        // The text quotes a line, which may be part of a key.
        KubeconfigError::ParseCertificates(_) => {
            return Error::Authority {
                path: authority.to_owned(),
            };
        }
        source => return Error::LoadKubeconfig { path, source },
    };
    let line = source.lines().next().unwrap_or_default();
    // The parser quotes values in one of three kinds of quotation marks.
    let problem = line.split(['"', '`', '\'']).next().unwrap_or_default().trim_end();
    let problem = problem.trim_start_matches("error: ").to_owned();
    Error::ParseKubeconfig { path, problem }
}

fn of_in_cluster(source: InClusterError) -> Error {
    match source {
        // The text quotes a line, which may be part of a key.
        InClusterError::ParseCertificates(_) => Error::Authority {
            path: CLUSTER_AUTHORITY.into(),
        },
        source => Error::LoadInCluster(source),
    }
}

#[cfg(test)]
mod tests;
