//! A probe of the conversion webhook of a CRD.
//!
//! A watch of the stored version needs no conversion, so it would never notice that everybody else
//! cannot read the objects.

use std::{collections::BTreeMap, convert::Infallible, time::Duration};

use http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use parking_lot::Mutex;
use portreeve_api::Resource;
use portreeve_client::{METADATA_LIST, error_chain, refusal};
use serde::Deserialize;

use crate::{StatusReporter, Watch, report::ConversionFailure, watch::Query};

/// The time between two probes.
const INTERVAL: Duration = Duration::from_secs(30);
/// The time until the next probe after a failed one.
const INTERVAL_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// The number of failures in succession that are reported. A single one may be the instant in which
/// a replica stops.
const REPORTED_FAILURES: u32 = 2;
/// How the message of each failed conversion begins (`webhook_converter.go` of
/// apiextensions-apiserver).
const CONVERSION_FAILED: &str = "conversion webhook for ";

/// The number of objects that are read at once. The apiserver calls the webhook for each.
const PAGE: &str = "100";

/// Reads a page of the objects in each of these versions, page after page and again and again, and
/// reports whether the apiserver can convert them. In at least one of the versions, they must be
/// converted, also during a migration.
pub(super) async fn probe(
    client: &Client,
    versions: &[Resource],
    positions: &Positions,
    reporter: &StatusReporter,
) -> Infallible {
    let mut failures = 0;
    loop {
        match read_all(client, versions, positions).await {
            Ok(()) => {
                failures = 0;
                if reporter.record_conversion(Ok(())) {
                    tracing::info!("objects are converted again");
                }
            }
            Err((resource, error)) => {
                let reason = error_chain(&error);
                // Other failures, such as those of an apiserver that restarts, say nothing about
                // the conversion.
                if reason.contains(CONVERSION_FAILED) {
                    failures += 1;
                    let failure = ConversionFailure(reason.clone());
                    if failures >= REPORTED_FAILURES && reporter.record_conversion(Err(failure)) {
                        tracing::warn!(%resource, reason, "objects cannot be converted");
                    }
                }
            }
        }
        let wait = if failures == 0 {
            INTERVAL
        } else {
            INTERVAL_AFTER_FAILURE
        };
        tokio::time::sleep(wait).await;
    }
}

/// Where the next page of each version begins; empty for the first one.
pub(super) type Positions = Mutex<BTreeMap<String, String>>;

/// Reads the next page in each version, and returns the first version that fails.
async fn read_all<'a>(
    client: &Client,
    versions: &'a [Resource],
    positions: &Positions,
) -> Result<(), (&'a Resource, kube::Error)> {
    for version in versions {
        let name = version.version.to_string();
        let begin = positions.lock().get(&name).cloned().unwrap_or_default();
        // A page that fails is read again.
        let next = read_page(client, version, &begin)
            .await
            .map_err(|error| (version, error))?;
        positions.lock().insert(name, next);
    }
    Ok(())
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct List {
    metadata: ListMetadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ListMetadata {
    #[serde(rename = "continue")]
    next: String,
}

/// Reads objects as they are in etcd now: objects from a cache are already converted. Returns where
/// the next page begins.
async fn read_page(client: &Client, version: &Resource, begin: &str) -> Result<String, kube::Error> {
    let mut query = Query::new(&Watch::all(version.clone()));
    query.add("limit", PAGE);
    if !begin.is_empty() {
        query.add("continue", begin);
    }
    // Names and versions suffice, but the apiserver converts the whole objects first.
    let request = Request::get(query.into_path()).header(header::ACCEPT, METADATA_LIST);
    let request = request.body(Body::empty()).map_err(kube::Error::HttpError)?;
    let response = client.send(request).await?;
    if response.status() == StatusCode::GONE {
        // The rest of the pages has expired.
        return Ok(String::new());
    }
    if !response.status().is_success() {
        return Err(refusal(response).await);
    }
    let body = response.into_body().collect().await?.to_bytes();
    let list: List = serde_json::from_slice(&body).map_err(kube::Error::SerdeError)?;
    Ok(list.metadata.next)
}
