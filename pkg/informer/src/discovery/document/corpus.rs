//! Tests with recorded discovery documents and mutations of them: no input causes a panic or a
//! hang, and every decoded resource can be requested.

use std::collections::BTreeMap;

use portreeve_testing::Corpus;

use super::*;
use crate::discovery::{ServedResources, Verb};

/// The number of mutations per folder.
const MUTATIONS: usize = 1_500;

fn corpus(folder: &str) -> anyhow::Result<Corpus> {
    Corpus::read(format!("{}/corpus/{folder}", env!("CARGO_MANIFEST_DIR")))
}

fn check(groups: &Groups) {
    for (api_version, resources) in groups.values().flatten() {
        for DiscoveredResource { resource, .. } in resources.iter().flat_map(|resources| resources.iter()) {
            assert!(!resource.plural.is_empty() && !resource.kind.is_empty());
            assert!(
                !resource.plural.contains('/'),
                "the path of {resource} has an extra segment"
            );
            assert_eq!(resource.api_version(), **api_version);
        }
    }
    let served = ServedResources::default().updated_by(&[groups], &BTreeMap::new());
    assert!(
        served
            .preferred(&[Verb::List])
            .all(|resource| !resource.plural.is_empty())
    );
}

#[test]
fn an_aggregated_document_is_decoded_or_rejected() -> anyhow::Result<()> {
    corpus("discovery")?.check(MUTATIONS, |input| match root(input) {
        Ok(Document::Whole(groups)) => check(&groups),
        Ok(Document::Versions(_)) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    })
}

#[test]
fn a_resource_list_is_decoded_or_rejected() -> anyhow::Result<()> {
    corpus("version")?.check(MUTATIONS, |input| {
        if let Ok(resources) = version("batch/v1", input) {
            check(&Groups::from([(
                "batch".into(),
                vec![("batch/v1".into(), Some(resources))],
            )]));
        }
    })
}

#[test]
fn other_documents_are_not_empty_resource_lists() {
    for input in ["{}", r#"{"kind":"Status"}"#, r#"{"resources":[]}"#] {
        assert!(version("v1", input.as_bytes()).is_err(), "{input}");
    }
}
