//! What a Lease says besides who holds it: which one it is, and its annotations.
//!
//! Several tell of it, each in its own time: the answers to the elector's reads and writes, the watch, and the answers to what others in
//! this process write. News that are older than what is known count for nothing, by their resourceVersion. One thing alone goes back: an
//! answer that is older than what was known *before it was asked for* shows that the apiserver's own history did, as after a restored
//! backup.
//!
//! Architecture Invariant: pure.

use std::collections::BTreeMap;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};

/// A Lease as it was last read, written or watched, whoever holds it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeaseSnapshot {
    /// Which one; `None` when there is none, or none was seen yet.
    pub uid: Option<String>,
    /// In which version. Of a Lease that is gone, the last that is known.
    pub version: String,
    /// What it is annotated with.
    pub annotations: BTreeMap<String, String>,
    record: LeaseSpec,
}

impl From<Lease> for LeaseSnapshot {
    fn from(lease: Lease) -> Self {
        Self {
            uid: lease.metadata.uid,
            version: lease.metadata.resource_version.unwrap_or_default(),
            annotations: lease.metadata.annotations.unwrap_or_default(),
            record: lease.spec.unwrap_or_default(),
        }
    }
}

impl LeaseSnapshot {
    /// The version as a number. Kubernetes promises since 1.35 that it is one, and grows; what is none cannot be compared.
    pub(crate) fn revision(&self) -> Option<u64> {
        self.version.parse().ok()
    }

    /// Somebody has told of the Lease, who knows how long ago. Returns whether there is another one now, or other annotations.
    pub(crate) fn update(&mut self, news: Self) -> bool {
        if news.is_older_than(self.revision()) {
            return false;
        }
        let is_changed = news.uid != self.uid || news.annotations != self.annotations;
        *self = news;
        is_changed
    }

    /// The Lease was read or written, and this is the answer; `asked` is the revision that was known when it was asked for.
    pub(crate) fn update_from_response(&mut self, answer: Self, asked: Option<u64>) -> bool {
        if answer.is_older_than(asked) {
            // A quorum read cannot be late by this much: what is known never was, in the history that there is now.
            self.version.clear();
        }
        self.update(answer)
    }

    /// The watch has told of its end, which has a version as well.
    pub(crate) fn mark_deleted(&mut self, last: Self) -> bool {
        self.update(Self {
            version: last.version,
            ..Self::default()
        })
    }

    /// It was read and not found. What was heard since that was asked for may be of the next one.
    pub(crate) fn mark_not_found(&mut self, asked: Option<u64>) -> bool {
        let is_current = self.revision() == asked;
        is_current && self.mark_deleted(self.clone())
    }

    /// The version that a write can rely on which relies on `read`: the newest in which the record is still the same one. Annotations
    /// change without a word about who holds the Lease.
    pub(crate) fn version_for<'a>(&'a self, read: &'a Self) -> &'a str {
        let is_same = self.uid == read.uid && self.record == read.record;
        let newest = if is_same && !self.is_older_than(read.revision()) {
            self
        } else {
            read
        };
        &newest.version
    }

    fn is_older_than(&self, known: Option<u64>) -> bool {
        self.revision()
            .zip(known)
            .is_some_and(|(revision, known)| revision < known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Lease `uid` that `holder` holds, annotated with `note=` something.
    fn lease(uid: &str, version: &str, holder: &str, note: &str) -> LeaseSnapshot {
        LeaseSnapshot {
            uid: Some(uid.to_owned()),
            version: version.to_owned(),
            annotations: BTreeMap::from([("note".to_owned(), note.to_owned())]),
            record: LeaseSpec {
                holder_identity: Some(holder.to_owned()),
                ..LeaseSpec::default()
            },
        }
    }

    fn known() -> LeaseSnapshot {
        lease("a", "10", "me", "old")
    }

    /// What is known after something was told: its version and its note, `-` for none.
    fn after(tell: impl FnOnce(&mut LeaseSnapshot) -> bool) -> (String, bool) {
        let mut snapshot = known();
        let is_changed = tell(&mut snapshot);
        let note = snapshot.annotations.get("note").map_or("-", String::as_str);
        (format!("{} {note}", snapshot.version), is_changed)
    }

    #[test]
    fn what_is_older_than_what_is_known_counts_for_nothing() {
        let table = [
            ("newer", lease("a", "11", "me", "new"), "11 new", true),
            ("a renewal", lease("a", "11", "me", "old"), "11 old", false),
            ("older", lease("a", "9", "me", "new"), "10 old", false),
            (
                "older, with less digits more",
                lease("a", "100", "me", "new"),
                "100 new",
                true,
            ),
            ("another one", lease("b", "11", "me", "old"), "11 old", true),
            ("a former one", lease("b", "9", "me", "new"), "10 old", false),
            ("not comparable", lease("a", "x", "me", "new"), "x new", true),
        ];
        for (name, news, expected, is_changed) in table {
            assert_eq!(
                after(|snapshot| snapshot.update(news)),
                (expected.to_owned(), is_changed),
                "{name}"
            );
        }
    }

    #[test]
    fn an_answer_older_than_what_was_known_before_shows_that_history_went_back() {
        let answer = || lease("a", "9", "me", "new");
        let table = [
            ("asked when this was known", Some(10), "9 new", true),
            ("known since it was asked", Some(8), "10 old", false),
            ("nothing was known", None, "10 old", false),
        ];
        for (name, asked, expected, is_changed) in table {
            let told = after(|snapshot| snapshot.update_from_response(answer(), asked));
            assert_eq!(told, (expected.to_owned(), is_changed), "{name}");
        }
    }

    #[test]
    fn a_lease_that_is_gone_has_no_annotations_and_its_former_versions_do_not_bring_them_back() {
        let gone = |version: &str| lease("a", version, "me", "old");
        assert_eq!(
            after(|snapshot| snapshot.mark_deleted(gone("12"))),
            ("12 -".to_owned(), true)
        );
        assert_eq!(
            after(|snapshot| snapshot.mark_deleted(gone("9"))),
            ("10 old".to_owned(), false)
        );
        assert_eq!(
            after(|snapshot| snapshot.mark_not_found(Some(10))),
            ("10 -".to_owned(), true)
        );
        assert_eq!(
            after(|snapshot| snapshot.mark_not_found(Some(9))),
            ("10 old".to_owned(), false)
        );
        let late = |snapshot: &mut LeaseSnapshot| snapshot.mark_deleted(gone("12")) && snapshot.update(gone("11"));
        assert_eq!(after(late), ("12 -".to_owned(), false));
        let next = |snapshot: &mut LeaseSnapshot| {
            snapshot.mark_not_found(Some(10)) && snapshot.update(lease("b", "13", "me", "new"))
        };
        assert_eq!(after(next), ("13 new".to_owned(), true));
    }

    #[test]
    fn a_renewal_relies_on_the_newest_version_with_the_same_record() {
        let table = [
            ("annotated", lease("a", "12", "me", "new"), "12"),
            ("taken", lease("a", "12", "thief", "old"), "10"),
            ("made anew", lease("b", "12", "me", "old"), "10"),
            ("not heard yet", lease("a", "9", "me", "old"), "10"),
        ];
        for (name, newest, expected) in table {
            assert_eq!(newest.version_for(&known()), expected, "{name}");
        }
    }
}
