//! Lists in several pages, one of which fails: everybody's at the same time.

use anyhow::{Context, Result};
use portreeve_testing::{Canned, Fault, Matcher, Times};
use serde_json::json;

use super::{
    course::Course,
    weather::{expire_watches, informers},
};
use crate::{
    garbage::{draft::config_map, yard::Yard},
    schedules::kinds::Kind,
    support::{SETTLED, scene::Scene},
    ttl::stage::Jobs,
};

/// More of each resource than two pages of one object hold, with nothing to do.
async fn crowd(course: &Course) -> Result<()> {
    let scene = Scene::new(&course.plane, "crowd").await?;
    let (yard, jobs) = (Yard::of(&scene.namespace), Jobs::of(&scene));
    for number in 0..3 {
        let name = format!("crowd-{number}");
        for kind in Kind::BOTH {
            let off = json!({"suspend": true});
            kind.create(&scene.namespace, &name, "@yearly", &off).await?;
        }
        scene.settled_foo(&name, 1).await?;
        jobs.create(&name, json!({})).await?;
        yard.create(config_map(&name)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn lists_that_fail_on_their_third_page_are_made_up_for() -> Result<()> {
    let mut course = Course::start().await?;
    crowd(&course).await?;
    for answer in [Canned::expired(), Canned::internal_error()] {
        let proxy = &course.proxy;
        let thirds: Vec<_> = informers(Matcher::later_pages)
            .map(|(resource, page)| (resource, proxy.answer(page, answer.clone(), Times::Nth(2))))
            .collect();
        expire_watches(proxy);
        proxy.fault(Matcher::lists(), Fault::PagesOf(1), Times::UntilHealed);
        proxy.reset();
        course.work.wave().await?;
        for (resource, third) in &thirds {
            let failed = third.until_answered(1, SETTLED).await;
            failed.with_context(|| format!("{resource} with {answer:?}"))?;
        }
        course.judge().await?;
        course.proxy.heal();
    }
    course.finish().await
}
