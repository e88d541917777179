//! Tests of the identity of undecodable objects.

use super::*;

#[test]
fn an_undecodable_object_with_another_uid_deletes_the_previous_one() {
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
