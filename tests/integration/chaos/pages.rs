//! Lists in several pages, one of which fails: everybody's at the same time.

use anyhow::{Context, Result};
use portreeve_api::{CRONTABS, FOOS, Resource};
use portreeve_testing::{Canned, Fault, Matcher, Times};
use serde_json::json;

use super::course::Course;
use crate::{
    garbage::draft::config_map,
    garbage::yard::Yard,
    schedules::kinds::{CRON_JOBS, Kind},
    support::{LIMIT, scene::Scene},
    ttl::stage::Jobs,
};

/// What each controller lists and watches. The collector wants metadata of these too, and of ConfigMaps it alone wants anything.
static WHOLE: [Resource; 5] = [
    CRONTABS,
    CRON_JOBS,
    FOOS,
    Resource::namespaced("apps", "v1", "Deployment", "deployments"),
    Resource::namespaced("batch", "v1", "Job", "jobs"),
];
static METADATA: Resource = Resource::namespaced("", "v1", "ConfigMap", "configmaps");

/// Requests for all that there is of each resource, as its informer sends them. A census asks for one namespace.
fn informers(requests: fn() -> Matcher) -> impl Iterator<Item = Matcher> {
    let all = move |resource: &Resource| requests().path_prefix(resource.collection_path(None));
    let whole = WHOLE.iter().map(move |resource| all(resource).whole());
    whole.chain([all(&METADATA).metadata()])
}

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
            .map(|page| proxy.answer(page, answer.clone(), Times::Nth(2)))
            .collect();
        for watch in informers(Matcher::watches) {
            proxy.answer(watch, Canned::expired(), Times::Next(1));
        }
        proxy.fault(Matcher::lists(), Fault::PagesOf(1), Times::UntilHealed);
        proxy.reset();
        course.work.wave().await?;
        for (third, resource) in thirds.iter().zip(WHOLE.iter().chain([&METADATA])) {
            let failed = third.until_answered(1, LIMIT).await;
            failed.with_context(|| format!("{} with {answer:?}", resource.plural))?;
        }
        course.judge().await?;
        course.proxy.heal();
    }
    course.finish().await
}
