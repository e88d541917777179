//! Discovery documents as an apiserver sent them, and as others might: nothing panics or hangs, and no resource comes of it that could
//! not be asked for.

use std::collections::BTreeSet;

use portreeve_testing::Corpus;

use super::*;
use crate::discovery::{ServedResources, Verb};

/// How many mutations there are of each folder.
const MUTATIONS: usize = 1_500;

fn corpus(folder: &str) -> anyhow::Result<Corpus> {
    Corpus::read(format!("{}/corpus/{folder}", env!("CARGO_MANIFEST_DIR")))
}

fn check(groups: &Groups) {
    for (api_version, offers) in groups.values().flatten() {
        for DiscoveredResource { resource, .. } in offers.iter().flat_map(|offers| offers.iter()) {
            assert!(!resource.plural.is_empty() && !resource.kind.is_empty());
            assert!(!resource.plural.contains('/'), "{resource} would lead elsewhere");
            assert_eq!(resource.api_version(), **api_version);
        }
    }
    let served = ServedResources::default().updated_by(&[groups], &BTreeSet::new());
    assert!(
        served
            .preferred(&[Verb::List])
            .all(|resource| !resource.plural.is_empty())
    );
}

#[test]
fn discovery_in_one_document_offers_resources_or_is_refused() -> anyhow::Result<()> {
    corpus("discovery")?.check(MUTATIONS, |input| match root(input) {
        Ok(Document::Whole(groups)) => check(&groups),
        Ok(Document::Versions(_)) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    })
}

#[test]
fn the_resources_of_a_version_are_read_or_refused() -> anyhow::Result<()> {
    corpus("version")?.check(MUTATIONS, |input| {
        if let Ok(offers) = version("batch/v1", input) {
            check(&Groups::from([(
                "batch".into(),
                vec![("batch/v1".into(), Some(offers))],
            )]));
        }
    })
}

#[test]
fn what_is_no_list_of_resources_is_no_empty_one() {
    for input in ["{}", r#"{"kind":"Status"}"#, r#"{"resources":[]}"#] {
        assert!(version("v1", input.as_bytes()).is_err(), "{input}");
    }
}
