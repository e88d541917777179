//! Objects that cannot be decoded are still the same object, or another one.

use super::*;

#[test]
fn an_undecodable_object_of_another_uid_ends_the_one_before() {
    check(
        &[
            "relisting",
            "listed a@1",
            "listed b@1",
            "synced",
            "undecodable b+x", //
            "relisting",
            "undecodable a+y",
            "undecodable b+x",
            "synced",
            "applied a@5+y",
        ],
        &expect![[r#"
            relisting:
            listed a@1: added a@1, Listed
            listed b@1: added b@1, Listed
            synced:
            undecodable b+x:
            relisting:
            undecodable a+y: deleted a@1 (last known), Relisted
            undecodable b+x:
            synced:
            applied a@5+y: added a@5, Watched
            holds ["a@5", "b@1"], undecodable ["n/b"], synced true
        "#]],
    );
}
