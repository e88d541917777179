use serde_json::{Value, json};

use super::*;

const LIST: &str = "list pods in n";
const REPLACE: &str = "replace PersistentVolumeClaim n/c";

fn claim(is_deleted: bool, finalizers: &[&str]) -> Value {
    let mut metadata = json!({
        "name": "c", "namespace": "n", "uid": "u", "resourceVersion": "7", "finalizers": finalizers});
    if is_deleted {
        metadata["deletionTimestamp"] = "2026-01-02T03:04:05Z".into();
    }
    json!({"metadata": metadata})
}

fn pod(volumes: &Value) -> Value {
    json!({"metadata": {"name": "p", "namespace": "n", "uid": "p1"}, "spec": {"nodeName": "a", "volumes": volumes}})
}

fn named(claim: &str) -> Value {
    json!({"name": "v", "persistentVolumeClaim": {"claimName": claim}})
}

fn decode<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

/// Returns the plan for a claim and the Pods with a node in the cache.
fn plan(claim: &Value, pods: &[Value]) -> Plan {
    let claim: Arc<CachedClaim> = Arc::new(decode(claim));
    let is_used = pods.iter().any(|pod| claim.is_used_by(&decode(pod)));
    decide(&Observed { claim, is_used })
}

/// The table of Kubernetes' `TestPVCProtectionController`. Its cases for events of Pods observe the
/// same as those for events of claims, those in which a write fails are the applier's, and Pods
/// without a node are neither in the cache nor in the list.
#[test]
fn test_pvc_protection_controller() {
    let deleted = claim(true, &[FINALIZER]);
    let remove = format!("{LIST}, {REPLACE}");
    let empty_dir = json!({"name": "e", "emptyDir": {}});
    let mut finished = pod(&json!([named("c")]));
    finished["status"] = json!({"phase": "Failed"});
    let table = [
        ("without finalizer", claim(false, &[]), vec![], REPLACE),
        ("with finalizer", claim(false, &[FINALIZER]), vec![], "nothing"),
        ("deleted", deleted.clone(), vec![], &*remove),
        (
            "deleted, used",
            deleted.clone(),
            vec![pod(&json!([named("c")]))],
            "nothing",
        ),
        (
            "deleted, other volumes",
            deleted.clone(),
            vec![pod(&json!([named("unrelated"), empty_dir]))],
            &*remove,
        ),
        ("deleted, finished Pod", deleted, vec![finished], "nothing"),
        // These are ours.
        ("deleted, without finalizer", claim(true, &["a/b"]), vec![], "nothing"),
        (
            "no volumes",
            claim(true, &[FINALIZER]),
            vec![pod(&json!(null))],
            &*remove,
        ),
    ];
    for (name, claim, pods, expected) in table {
        assert_eq!(plan(&claim, &pods).to_string(), expected, "{name}");
    }
}

#[test]
fn the_live_list_decides_on_pods_that_the_cache_does_not_have() {
    let claim: CachedClaim = decode(&claim(true, &[FINALIZER]));
    let table = [
        (pod(&json!([named("c")])).to_string(), true),
        (pod(&json!([named("d")])).to_string(), false),
        (pod(&json!([])).to_string(), false),
        // It may use the claim, so the finalizer stays.
        (
            json!({"metadata": {"name": "p"}, "spec": {"volumes": 1}}).to_string(),
            true,
        ),
        ("1".to_owned(), true),
    ];
    for (pod, expected) in table {
        assert_eq!(is_used_by_listed(&claim, &pod), expected, "{pod}");
    }
}

#[test]
fn an_ephemeral_volume_uses_only_the_claim_of_its_own_pod_until_the_pod_is_shut_down() {
    let mut ephemeral = claim(true, &[FINALIZER]);
    ephemeral["metadata"]["name"] = "p-v".into();
    let owned_by = |uid: &str| {
        let mut owned = ephemeral.clone();
        owned["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true}]);
        owned
    };
    let running = pod(&json!([{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]));
    let stopping = |seconds: i64| {
        let mut pod = running.clone();
        pod["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z".into();
        pod["metadata"]["deletionGracePeriodSeconds"] = seconds.into();
        pod
    };
    let table = [
        ("own", owned_by("p1"), running.clone(), true),
        ("a former Pod's", owned_by("p0"), running.clone(), false),
        ("nobody's", ephemeral.clone(), running.clone(), false),
        ("stopping", owned_by("p1"), stopping(30), true),
        ("shut down", owned_by("p1"), stopping(0), false),
    ];
    for (name, claim, pod, expected) in table {
        let claim: CachedClaim = decode(&claim);
        assert_eq!(claim.is_used_by(&decode(&pod)), expected, "{name}");
    }
    // A claim that a Pod names is in use until the Pod is gone.
    let mut shut_down = stopping(0);
    shut_down["spec"]["volumes"] = json!([named("c")]);
    assert_eq!(plan(&claim(true, &[FINALIZER]), &[shut_down]).to_string(), "nothing");
}

#[test]
fn a_pod_names_its_claims() {
    let ephemeral = json!({"name": "e", "ephemeral": {}});
    let pod: CachedPod = decode(&pod(&json!([named("c"), ephemeral, {"name": "x", "emptyDir": {}}])));
    let claims: Vec<_> = pod.claims().map(|key| key.to_string()).collect();
    assert_eq!(claims, ["n/c", "n/p-e"]);
}
