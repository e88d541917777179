//! The settings of the client for the apiserver.

use std::{sync::Arc, time::Duration};

use portreeve_client::{AlwaysOpen, Fence, Outage, ReadOnly};

/// The first part of the user agent.
pub(crate) const AGENT: &str = concat!("portreeve/", env!("CARGO_PKG_VERSION"));

/// The time limit of one call to the apiserver. It is longer than the 30 s for which the apiserver
/// waits for a conversion webhook, and for an admission webhook at most, so that the apiserver can
/// report which webhook does not answer.
const CALL_LIMIT: Duration = Duration::from_secs(35);

/// Returns the settings of a client. In a dry run, its fence is closed.
pub(crate) fn settings(
    dry_run: bool,
    requests: &portreeve_client::Metrics,
    outage: &Outage,
) -> portreeve_client::Settings {
    let fence: Arc<dyn Fence> = if dry_run {
        Arc::new(ReadOnly)
    } else {
        Arc::new(AlwaysOpen)
    };
    portreeve_client::Settings {
        program: AGENT.to_owned(),
        call_limit: CALL_LIMIT,
        fence,
        metrics: requests.clone(),
        outage: outage.clone(),
    }
}
