//! A call of each controller that hangs: health names whose it is.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use portreeve_testing::{ControlPlane, Fault, FaultProxy, Matcher, Repeat};

use super::{faults::CONTROLLERS, scenario::Account, work::Work};
use crate::{
    clock::OffsetClock,
    health::{failing, wait_until_failing, wait_until_passing},
    support::SETTLED,
};

/// When a call that hangs ends by itself.
const CALL: Duration = Duration::from_secs(30);

#[tokio::test]
async fn each_controller_whose_call_hangs_turns_its_own_line_red_until_it_ends() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let proxy = FaultProxy::start(&plane).await?;
    let account = Account::of(&plane, &proxy, &["--controller-stuck-timeout=3s"]).await?;
    let clock = OffsetClock::new();
    let daemon = account.run(&clock).await?;
    let mut work = Work::start(&plane, &clock).await?;
    work.wave().await?;
    work.verify().await?;
    for name in CONTROLLERS {
        let write = Matcher::writes().user_agent(name);
        let hanging = proxy.fault(write, Fault::BlackHole, Repeat::Next(1));
        work.wave().await?;
        hanging.wait_for_applied(1, SETTLED).await?;
        let began = Instant::now();
        let line = wait_until_failing(&daemon.admin, "/livez", name, &["in work for"]).await?;
        println!("after {:?}: {line}", began.elapsed());
        ensure!(began.elapsed() < CALL, "much later than its limit: {line}");
        let red = failing(&daemon.admin, "/livez").await?;
        ensure!(red.iter().all(|line| line.contains(name)), "{red:?}");
        proxy.heal();
        wait_until_passing(&daemon.admin, "/livez").await?;
        work.verify().await?;
    }
    daemon.stop().await
}
