//! Decides on recorded Foos and Deployments and on mutations of them: every object that can be
//! decoded can be decided on, and no plan touches an object that is not the Foo's.

use std::fs;

use portreeve_testing::Corpus;

use crate::{CachedDeployment, decide::*};

/// The number of mutations of each folder.
const MUTATIONS: usize = 2_000;
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus");

fn kept<T: serde::de::DeserializeOwned>(file: &str) -> anyhow::Result<T> {
    Ok(serde_json::from_slice(&fs::read(format!("{FOLDER}/{file}"))?)?)
}

fn check(foo: &Arc<CachedFoo>, deployment: Option<&Arc<CachedDeployment>>) {
    let now = Timestamp::UNIX_EPOCH;
    let observed = &Observed {
        foo: Arc::clone(foo),
        deployment: deployment.cloned(),
        admitted: None,
        outdated: Vec::new(),
    };
    let plan = decide(observed, now);
    let rejections = plan.effects.iter();
    let rejections: Vec<_> = rejections
        .map(|effect| refused(observed, effect, "the write was rejected", now))
        .collect();
    for effect in [&plan].into_iter().chain(&rejections).flat_map(|plan| &plan.effects) {
        assert!(!effect.to_string().is_empty());
        match effect {
            Effect::Create(object) => {
                assert_eq!(object.key.namespace, observed.foo.metadata.namespace);
                assert_eq!(*object.key.name, *observed.foo.spec.deployment_name);
            }
            Effect::Apply { uid, .. } => {
                let deployment = observed
                    .deployment
                    .as_ref()
                    .expect("only an existing Deployment is changed");
                assert!(deployment.is_controlled_by(&observed.foo) && *uid == deployment.metadata.uid);
            }
            Effect::PatchStatus { target, .. } | Effect::Event(target, _) => {
                assert_eq!(target.uid, observed.foo.metadata.uid);
            }
            Effect::RequirePresent { uid, .. } => assert_eq!(*uid, observed.foo.metadata.uid),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn every_decodable_foo_can_be_decided_on() -> anyhow::Result<()> {
    let deployment = kept("deployment/deployment")?;
    Corpus::read(format!("{FOLDER}/foo"))?.check(MUTATIONS, |input| {
        if let Ok(foo) = serde_json::from_slice(input) {
            check(&foo, None);
            check(&foo, Some(&deployment));
        }
    })
}

#[test]
fn every_decodable_deployment_can_be_decided_on() -> anyhow::Result<()> {
    let foo = kept("foo/foo")?;
    Corpus::read(format!("{FOLDER}/deployment"))?.check(MUTATIONS, |input| {
        if let Ok(deployment) = serde_json::from_slice(input) {
            check(&foo, Some(&deployment));
        }
    })
}
