//! Tests of documents from apiservers, in common and unusual forms.

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use super::*;
use crate::discovery::{ServedResources, Verb};

/// Formats a response: the resources of each version with their scopes, or `unknown` for a version
/// with unknown resources.
fn print(groups: &Groups) -> String {
    let versions = groups.values().flatten().map(|(api_version, resources)| {
        let Some(resources) = resources else {
            return format!("{api_version}: unknown\n");
        };
        let resources = resources.iter().map(|DiscoveredResource { resource, .. }| {
            assert_eq!(resource.api_version(), **api_version);
            let Resource {
                kind, plural, scope, ..
            } = resource;
            format!(" {plural}={kind}/{scope:?}")
        });
        format!("{api_version}:{}\n", resources.collect::<String>())
    });
    versions.collect()
}

#[expect(clippy::needless_pass_by_value, reason = "a call is a row of a table")]
fn check(document: Value, expected: Expect) {
    let text = match root(document.to_string().as_bytes()) {
        Ok(Document::Whole(groups)) => print(&groups),
        Ok(Document::Versions(versions)) => format!("{versions:?}\n"),
        Err(error) => format!("error: {error}\n"),
    };
    expected.assert_eq(&text);
}

#[test]
fn an_aggregated_document_is_decoded() {
    check(
        json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": [
            {"metadata": {"name": "apps", "creationTimestamp": null}, "versions": [
                {"version": "v1", "freshness": "Current", "resources": [
                    {"resource": "deployments", "responseKind": {"group": "apps", "version": "v1", "kind": "Deployment"},
                     "scope": "Namespaced", "singularResource": "deployment", "verbs": ["delete", "list"], "shortNames": ["d"],
                     "subresources": [{"subresource": "scale", "responseKind": {"kind": "Scale"}, "verbs": ["get"]}]},
                    {"resource": "things", "responseKind": {"group": "", "version": "", "kind": "Thing"}, "scope": "Cluster",
                     "verbs": null},
                ]},
                {"version": "v1beta1", "resources": null},
            ]},
            {"metadata": {"name": "down"}, "versions": [{"version": "v1", "freshness": "Stale", "resources": [
                {"resource": "olds", "responseKind": {"kind": "Old"}, "scope": "Cluster", "verbs": ["list"]},
            ]}]},
            {"metadata": {"name": "empty"}, "versions": null},
        ]}),
        expect![[r"
            apps/v1: deployments=Deployment/Namespaced things=Thing/Cluster
            apps/v1beta1:
            down/v1: unknown
        "]],
    );
}

#[test]
fn the_core_group_has_no_name() {
    check(
        json!({"kind": "APIGroupDiscoveryList", "items": [{"metadata": {}, "versions": [{"version": "v1", "resources": [
            {"resource": "pods", "responseKind": {"kind": "Pod"}, "scope": "Namespaced", "verbs": ["get"]},
        ]}]}]}),
        expect![[r"
            v1: pods=Pod/Namespaced
        "]],
    );
}

#[test]
fn entries_with_only_subresources_are_skipped() {
    check(
        json!({"kind": "APIGroupDiscoveryList", "items": [{"metadata": {"name": "a"}, "versions": [{"version": "v1", "resources": [
            {"resource": "parents", "scope": "Namespaced", "verbs": [], "subresources": [{"subresource": "child"}]},
            {"resource": "nulls", "responseKind": null, "scope": "Namespaced"},
            {"resource": "", "responseKind": {"kind": "Empty"}, "scope": "Namespaced"},
            {"resource": "empties", "responseKind": {"kind": ""}, "scope": "Namespaced"},
            {"resource": "a/b", "responseKind": {"kind": "Sub"}, "scope": "Namespaced"},
            {"resource": "good", "responseKind": {"kind": "Good"}, "scope": "Namespaced"},
        ]}]}]}),
        expect![[r"
            a/v1: good=Good/Namespaced
        "]],
    );
}

#[test]
fn version_lists_are_decoded_with_the_preferred_version_first() {
    check(
        json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
        expect![[r#"
            [("", ["v1"])]
        "#]],
    );
    check(
        json!({"kind": "APIGroupList", "groups": [
            {"name": "a", "preferredVersion": {"groupVersion": "a/v2", "version": "v2"}, "versions": [
                {"groupVersion": "a/v1", "version": "v1"}, {"groupVersion": "a/v3"}, {"groupVersion": "a/v2"}]},
            {"name": "b", "versions": [{"groupVersion": "b/v1"}]},
            {"name": "c", "versions": null},
        ]}),
        expect![[r#"
            [("a", ["a/v2", "a/v1", "a/v3"]), ("b", ["b/v1"]), ("c", [])]
        "#]],
    );
}

#[test]
fn other_documents_are_rejected_without_repeating_their_content() {
    check(
        json!({"kind": "Hunter2", "items": []}),
        expect![[r"
            error: unknown variant, expected one of `APIGroupDiscoveryList`, `APIVersions`, `APIGroupList`
        "]],
    );
    check(
        json!({"items": []}),
        expect![[r"
            error: missing field `kind`
        "]],
    );
    check(
        json!({"kind": "APIGroupDiscoveryList", "items": [{"metadata": {"name": 2}}]}),
        expect![[r"
            error: invalid type, expected a string
        "]],
    );
    assert!(root(b"<html>").is_err());
    assert!(version("v1", b"").is_err());
}

#[test]
fn subresources_in_a_resource_list_are_skipped() {
    let document = json!({"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": [
        {"name": "deployments", "singularName": "", "namespaced": true, "kind": "Deployment", "verbs": ["delete", "list", "impersonate"]},
        {"name": "deployments/scale", "group": "autoscaling", "namespaced": true, "kind": "Scale", "verbs": ["get"]},
        {"name": "things", "namespaced": false, "kind": "Thing", "verbs": null},
    ]});
    let resources = version("apps/v1", document.to_string().as_bytes()).expect("the document is a resource list");
    let groups = Groups::from([("apps".into(), vec![("apps/v1".into(), Some(resources))])]);
    assert_eq!(
        print(&groups),
        "apps/v1: deployments=Deployment/Namespaced things=Thing/Cluster\n"
    );
    let served = ServedResources::default().updated_by(&[&groups], &std::collections::BTreeMap::new());
    let preferred: Vec<_> = served
        .preferred(&[Verb::List, Verb::Delete])
        .map(ToString::to_string)
        .collect();
    assert_eq!(preferred, ["deployments.v1.apps"]);
}
