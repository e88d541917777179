//! A probe of the conversion webhook of a CRD.
//!
//! A watch of the stored version needs no conversion, so it would never notice that everybody else
//! cannot read the objects.

use std::{convert::Infallible, time::Duration};

use http::Request;
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use portreeve_api::Resource;
use portreeve_client::{error_chain, refusal};

use crate::{StatusReporter, Watch, watch::Query};

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

/// Lists one object in each of these versions, again and again, and reports whether the apiserver
/// can convert it. In at least one of them, it must be converted, also during a migration.
pub(super) async fn probe(client: &Client, versions: &[Resource], reporter: &StatusReporter) -> Infallible {
    let mut failures = 0;
    loop {
        match list_all(client, versions).await {
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
                    if failures >= REPORTED_FAILURES && reporter.record_conversion(Err(reason.clone())) {
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

/// Lists one object in each version, and returns the first version that fails.
async fn list_all<'a>(client: &Client, versions: &'a [Resource]) -> Result<(), (&'a Resource, kube::Error)> {
    for version in versions {
        list_one(client, version).await.map_err(|error| (version, error))?;
    }
    Ok(())
}

/// Lists one object as it is in etcd now: objects from a cache are already converted.
async fn list_one(client: &Client, converted: &Resource) -> Result<(), kube::Error> {
    let mut query = Query::new(&Watch::all(converted.clone()));
    query.add("limit", "1");
    let request = Request::get(query.into_path()).body(Body::empty());
    let response = client.send(request.map_err(kube::Error::HttpError)?).await?;
    if !response.status().is_success() {
        return Err(refusal(response).await);
    }
    // Read to the end, so that the connection can be used again.
    drop(response.into_body().collect().await?);
    Ok(())
}
