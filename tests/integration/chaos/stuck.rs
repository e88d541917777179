//! A call of a controller hangs, and `/livez` names that controller.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use portreeve_testing::{Fault, FaultProxy, Matcher, Repeat};

use super::{scenario::Account, work::Work};
use crate::{
    fixtures::{LIMIT, clock::OffsetClock, definitions::plane_with_definitions, rounds::is_exhaustive},
    registry,
};

/// The number of controllers in `make test`; `make chaos` tries all.
const CONTROLLERS: usize = 2;
/// The client's timeout, after which a hanging call ends.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_hanging_call_fails_only_the_check_of_its_controller() -> Result<()> {
    let plane = plane_with_definitions().await?;
    let proxy = FaultProxy::start(&plane).await?;
    let account = Account::of(&plane, &proxy, &["--controller-stuck-timeout=3s"]).await?;
    let clock = OffsetClock::new();
    let daemon = account.run(&clock).await?;
    let mut work = Work::start(&plane, &clock).await?;
    work.wave().await?;
    work.verify().await?;
    let controllers = if is_exhaustive() { usize::MAX } else { CONTROLLERS };
    for name in registry::names().take(controllers) {
        let write = Matcher::writes().user_agent(name);
        let hanging = proxy.fault(write, Fault::BlackHole, Repeat::Next(1));
        work.wave().await?;
        hanging.wait_for_applied(1, LIMIT).await?;
        let began = Instant::now();
        let line = daemon
            .admin
            .wait_until_failing("/livez", name, &["item ", "has made no progress for"])
            .await?;
        ensure!(
            began.elapsed() < CALL_TIMEOUT,
            "livez failed only after the call had ended: {line}"
        );
        let failed = daemon.admin.failing("/livez").await?;
        ensure!(failed.iter().all(|line| line.contains(name)), "{failed:?}");
        proxy.heal();
        daemon.admin.wait_until_passing("/livez").await?;
        work.verify().await?;
    }
    daemon.stop().await
}
