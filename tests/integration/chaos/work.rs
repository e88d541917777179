//! The work of every controller, in waves, and the expected state of the cluster after each wave.

use anyhow::{Context, Result};
use jiff::Timestamp;
use portreeve_testing::ControlPlane;

use crate::{
    fixtures::{
        clock::OffsetClock,
        namespace::NamespaceFixture,
        schedules::{minutes, next_minute},
    },
    profile::{self, Expected, STEP, Wave},
    registry::PROFILES,
};

/// The work of all controllers in one namespace.
pub(super) struct Work {
    pub(super) fixture: NamespaceFixture,
    /// The next wave. Its time is that of the last one until it begins.
    wave: Wave,
    /// The work of each controller, by name.
    parts: Vec<(&'static str, Box<dyn profile::Work>)>,
}

impl Work {
    pub(super) async fn start(plane: &ControlPlane, clock: &OffsetClock) -> Result<Self> {
        let fixture = NamespaceFixture::new(plane, "chaos").await?;
        let wave = Wave {
            fixture: fixture.clone(),
            clock: clock.clone(),
            number: 0,
            // It lies as far in the future as a step allows, so that only the test's clock reaches
            // it.
            slot: next_minute(Timestamp::now(), 1) + minutes(STEP - 1),
        };
        let mut parts = Vec::new();
        for profile in PROFILES {
            let name = profile.descriptor.name;
            parts.push((name, (profile.work)(wave.clone()).await.context(name)?));
        }
        Ok(Self { fixture, wave, parts })
    }

    /// The time of the last wave.
    pub(super) fn slot(&self) -> Timestamp {
        self.wave.slot
    }

    /// Gives every controller new, changed, due and deleted objects to process.
    pub(super) async fn wave(&mut self) -> Result<()> {
        if self.wave.number > 0 {
            self.wave.slot += minutes(STEP);
        }
        self.wave.clock.set(self.wave.slot);
        for (name, part) in &mut self.parts {
            part.wave(&self.wave).await.context(*name)?;
        }
        self.wave.number += 1;
        Ok(())
    }

    /// Runs the part of a wave for one controller, whose work does not depend on the clock.
    pub(super) async fn wave_of(&mut self, controller: &str) -> Result<()> {
        for (_, part) in self.parts.iter_mut().filter(|(name, _)| *name == controller) {
            part.churn(&self.wave).await?;
        }
        self.wave.number += 1;
        Ok(())
    }

    /// Does what a wave does, for a daemon with the system clock.
    pub(super) async fn churn(&mut self) -> Result<()> {
        for (name, part) in &mut self.parts {
            part.churn(&self.wave).await.context(*name)?;
        }
        self.wave.number += 1;
        Ok(())
    }

    /// Waits until the cluster has the expected state.
    pub(super) async fn verify(&self) -> Result<()> {
        self.wait_until_done().await?;
        profile::verify(&self.expected()).await
    }

    /// Waits until all work is done.
    pub(super) async fn wait_until_done(&self) -> Result<()> {
        profile::wait_until_done(&self.expected()).await
    }

    fn expected(&self) -> Vec<(&'static str, &dyn Expected)> {
        let parts = self.parts.iter();
        parts.map(|(name, part)| (*name, &**part as &dyn Expected)).collect()
    }
}
