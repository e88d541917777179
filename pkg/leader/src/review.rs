//! Asks the apiserver whether this account may write the Lease, because a standby never writes it.

use std::{convert::Infallible, time::Duration};

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::{Api, Client, api::PostParams};
use parking_lot::Mutex;
use portreeve_client::{ApiErrorKind, error_chain};
use tokio::time::sleep;

use crate::{
    access::{LeaseAccess, WriteAccess},
    boot_clock,
};

/// The pause after an answer. A denial fails the readiness check two retry periods and 10 s after
/// the right was revoked, so the two retry periods are left for the request.
const INTERVAL: Duration = Duration::from_secs(10);

/// Records regularly whether this account may patch the Lease `namespace/name`, until the future is
/// dropped. Asks again after `pause` when there is no answer.
pub(crate) async fn review_access(
    client: Client,
    (namespace, name): (&str, &str),
    access: &Mutex<LeaseAccess>,
    pause: Duration,
) -> Infallible {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client);
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some("coordination.k8s.io".to_owned()),
                resource: Some("leases".to_owned()),
                verb: Some("patch".to_owned()),
                namespace: Some(namespace.to_owned()),
                name: Some(name.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    loop {
        let answer = match reviews.create(&PostParams::default(), &review).await {
            Ok(answer) if answer.status.as_ref().is_some_and(|status| status.allowed) => WriteAccess::Allowed,
            Ok(_) => WriteAccess::Denied,
            Err(error) if ApiErrorKind::of(&error) == ApiErrorKind::Forbidden => WriteAccess::Unknown,
            Err(error) => {
                access.lock().record_review_failure(error_chain(&error));
                sleep(pause).await;
                continue;
            }
        };
        if access.lock().record_write_access(answer, boot_clock::now()) {
            report(namespace, name, answer);
        }
        sleep(INTERVAL).await;
    }
}

fn report(namespace: &str, name: &str, answer: WriteAccess) {
    let lease = format!("{namespace}/{name}");
    match answer {
        WriteAccess::Allowed => tracing::info!(lease, "allowed to patch the lease again"),
        WriteAccess::Denied => tracing::warn!(
            lease,
            "forbidden to patch the lease, this replica cannot lead; `portreeve rbac` prints the required rules"
        ),
        WriteAccess::Unknown => {
            tracing::warn!(
                lease,
                "forbidden to create SelfSubjectAccessReviews, assuming the right to patch the lease"
            );
        }
    }
}
