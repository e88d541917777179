//! Tracks the identity, version and annotations of a Lease.
//!
//! There are several sources: the responses to the elector's reads and writes, the watch, and the
//! responses to writes by other parts of this process. An update that is older than the known
//! resourceVersion is ignored, with one exception. A response that is older than the version known
//! *before the request was sent* shows that the apiserver's own history went back, as after a
//! restore from backup.
//!
//! Architecture Invariant: pure.

use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::ObjectMeta};

/// Returns the version as a number. Kubernetes has guaranteed since 1.35 that versions are
/// increasing integers; versions of any other form cannot be compared.
pub(crate) fn revision(lease: &Lease) -> Option<u64> {
    version(lease).parse().ok()
}

fn version(lease: &Lease) -> &str {
    lease.metadata.resource_version.as_deref().unwrap_or_default()
}

/// Applies a state of the Lease that may be outdated. Returns whether the Lease was replaced or its
/// annotations changed.
pub(crate) fn update(known: &mut Lease, reported: Lease) -> bool {
    if is_older_than(&reported, revision(known)) {
        return false;
    }
    let (before, now) = (&known.metadata, &reported.metadata);
    let is_changed = now.uid != before.uid || now.annotations != before.annotations;
    *known = reported;
    is_changed
}

/// Applies the response to a read or write. `known_at_request` is the revision that was known when
/// the request was sent.
pub(crate) fn update_from_response(known: &mut Lease, response: Lease, known_at_request: Option<u64>) -> bool {
    if is_older_than(&response, known_at_request) {
        // The known version does not exist in the current history.
        known.metadata.resource_version = None;
    }
    update(known, response)
}

/// Applies the watch's DELETED event, which carries a version as well. Only that version remains
/// known.
pub(crate) fn mark_deleted(known: &mut Lease, last: Lease) -> bool {
    let metadata = ObjectMeta {
        resource_version: last.metadata.resource_version,
        ..ObjectMeta::default()
    };
    update(known, Lease { metadata, spec: None })
}

/// Applies a read that did not find the Lease. If the known revision changed after the request was
/// sent, it may belong to a recreated Lease.
pub(crate) fn mark_not_found(known: &mut Lease, known_at_request: Option<u64>) -> bool {
    let is_current = revision(known) == known_at_request;
    is_current && mark_deleted(known, known.clone())
}

/// Returns the resourceVersion for a write based on `read`: the newest known version with the same
/// record. A change of annotations changes the version but not the record.
pub(crate) fn version_for<'a>(known: &'a Lease, read: &'a Lease) -> &'a str {
    let is_same = known.metadata.uid == read.metadata.uid && known.spec == read.spec;
    let newest = if is_same && !is_older_than(known, revision(read)) {
        known
    } else {
        read
    };
    version(newest)
}

/// Returns whether the Lease is older than the known revision. A quorum read never returns a
/// version that is older than the one known before it was sent, so such a response shows that the
/// apiserver's history went back.
pub(crate) fn is_older_than(lease: &Lease, known: Option<u64>) -> bool {
    revision(lease)
        .zip(known)
        .is_some_and(|(revision, known)| revision < known)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::api::coordination::v1::LeaseSpec;

    use super::*;

    /// Returns a Lease `uid` that `holder` holds, with the annotation `note`.
    fn lease(uid: &str, version: &str, holder: &str, note: &str) -> Lease {
        Lease {
            metadata: ObjectMeta {
                uid: Some(uid.to_owned()),
                resource_version: Some(version.to_owned()),
                annotations: Some(BTreeMap::from([("note".to_owned(), note.to_owned())])),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.to_owned()),
                ..LeaseSpec::default()
            }),
        }
    }

    fn known() -> Lease {
        lease("a", "10", "me", "old")
    }

    /// Applies `apply` to the known snapshot. Returns the resulting version and note (`-` if there
    /// is none), and whether anything changed.
    fn after(apply: impl FnOnce(&mut Lease) -> bool) -> (String, bool) {
        let mut snapshot = known();
        let is_changed = apply(&mut snapshot);
        let annotations = snapshot.metadata.annotations.clone().unwrap_or_default();
        let note = annotations.get("note").map_or("-", String::as_str);
        (format!("{} {note}", version(&snapshot)), is_changed)
    }

    #[test]
    fn updates_older_than_the_known_version_are_ignored() {
        let table = [
            ("newer", lease("a", "11", "me", "new"), "11 new", true),
            ("a renewal", lease("a", "11", "me", "old"), "11 old", false),
            ("older", lease("a", "9", "me", "new"), "10 old", false),
            (
                "newer, with more digits",
                lease("a", "100", "me", "new"),
                "100 new",
                true,
            ),
            ("another Lease", lease("b", "11", "me", "old"), "11 old", true),
            ("a former Lease", lease("b", "9", "me", "new"), "10 old", false),
            ("not comparable", lease("a", "x", "me", "new"), "x new", true),
        ];
        for (name, reported, expected, is_changed) in table {
            assert_eq!(
                after(|snapshot| update(snapshot, reported)),
                (expected.to_owned(), is_changed),
                "{name}"
            );
        }
    }

    #[test]
    fn responses_older_than_the_revision_known_at_the_request_reset_the_snapshot() {
        let response = || lease("a", "9", "me", "new");
        let table = [
            ("requested at the known revision", Some(10), "9 new", true),
            ("revision learned after the request", Some(8), "10 old", false),
            ("nothing was known", None, "10 old", false),
        ];
        for (name, known_at_request, expected, is_changed) in table {
            let result = after(|snapshot| update_from_response(snapshot, response(), known_at_request));
            assert_eq!(result, (expected.to_owned(), is_changed), "{name}");
        }
    }

    #[test]
    fn older_versions_do_not_restore_the_annotations_of_a_deleted_lease() {
        let gone = |version: &str| lease("a", version, "me", "old");
        assert_eq!(
            after(|snapshot| mark_deleted(snapshot, gone("12"))),
            ("12 -".to_owned(), true)
        );
        assert_eq!(
            after(|snapshot| mark_deleted(snapshot, gone("9"))),
            ("10 old".to_owned(), false)
        );
        assert_eq!(
            after(|snapshot| mark_not_found(snapshot, Some(10))),
            ("10 -".to_owned(), true)
        );
        assert_eq!(
            after(|snapshot| mark_not_found(snapshot, Some(9))),
            ("10 old".to_owned(), false)
        );
        let late = |snapshot: &mut Lease| mark_deleted(snapshot, gone("12")) && update(snapshot, gone("11"));
        assert_eq!(after(late), ("12 -".to_owned(), false));
        let next = |snapshot: &mut Lease| {
            mark_not_found(snapshot, Some(10)) && update(snapshot, lease("b", "13", "me", "new"))
        };
        assert_eq!(after(next), ("13 new".to_owned(), true));
    }

    #[test]
    fn renewals_rely_on_the_newest_version_with_the_same_record() {
        let table = [
            ("annotated", lease("a", "12", "me", "new"), "12"),
            ("taken", lease("a", "12", "thief", "old"), "10"),
            ("recreated", lease("b", "12", "me", "old"), "10"),
            ("older", lease("a", "9", "me", "old"), "10"),
        ];
        for (name, newest, expected) in table {
            assert_eq!(version_for(&newest, &known()), expected, "{name}");
        }
    }
}
