//! Sends access reviews that show whether this account may write the Lease, because a standby never
//! writes it.

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
/// dropped. Sends another review after `pause` if one fails, and to confirm a denial: an apiserver
/// that is starting denies everything until it has read the roles.
pub(crate) async fn review_access(
    client: Client,
    namespace: &str,
    name: &str,
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
    let mut denials = 0;
    loop {
        let answer = match reviews.create(&PostParams::default(), &review).await {
            Ok(review) => match review.status.unwrap_or_default() {
                status if status.allowed => WriteAccess::Allowed,
                status if status.evaluation_error.is_none() => WriteAccess::Denied,
                status => {
                    access
                        .lock()
                        .record_review_failure(status.evaluation_error.unwrap_or_default());
                    sleep(pause).await;
                    continue;
                }
            },
            Err(error) if ApiErrorKind::of(&error) == ApiErrorKind::Forbidden => WriteAccess::Unknown,
            Err(error) => {
                access.lock().record_review_failure(error_chain(&error));
                sleep(pause).await;
                continue;
            }
        };
        denials = if answer == WriteAccess::Denied { denials + 1 } else { 0 };
        if denials == 1 {
            sleep(pause).await;
            continue;
        }
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
