//! The memory of a leader and of its standby.

use std::time::Instant;

use anyhow::Result;
use jiff::{Zoned, tz::TimeZone};
use portreeve_testing::ControlPlane;

use crate::bench::Bench;
use crate::idle::{kibibytes, settled};
use crate::objects::{self, Kind};
use crate::plan::{REST, Step};
use crate::replicas::Replicas;
use crate::rows::{Measure, Row, Sample};

/// Measures memory. The standby starts last, so the leader has been idle for at least as long.
pub(crate) async fn measure(bench: &Bench, step: &Step) -> Result<Vec<Sample>> {
    let row = Row::Standby;
    let plane = ControlPlane::start().await?;
    let client = plane.client()?;
    let now = Zoned::now().with_time_zone(TimeZone::UTC);
    let schedule = |index| objects::far_from(&now, index);
    let count = bench.options.count(row);
    objects::create(Kind::CronJob, &client, count, schedule, &bench.progress).await?;
    let replicas = Replicas::start(bench, &plane, step.subject).await?;
    drop(client);
    let not_before = Instant::now() + REST;
    let both = async {
        let standby = settled(replicas.standby.controller.pid(), not_before).await?;
        let leader = settled(replicas.leader.controller.pid(), not_before).await?;
        Ok((kibibytes(leader.resident), kibibytes(standby.resident)))
    };
    let (leader, standby) = replicas.guard(both).await?;
    let values = [
        (Measure::LeaderResident, leader),
        (Measure::StandbyResident, standby),
        (Measure::StandbyToLeader, standby / leader),
    ];
    let sample = |(measure, value)| Sample {
        row,
        subject: step.subject,
        measure,
        value,
    };
    Ok(values.map(sample).into())
}
