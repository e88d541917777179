use portreeve_reconcile::{BuildError, Controller, Setup};
use proptest::prelude::*;

use super::*;

fn never(_: &mut Setup<'_>) -> Result<Box<dyn Controller>, BuildError> {
    unreachable!("selection builds nothing")
}

const fn controller(name: &'static str, aliases: &'static [&'static str], on_by_default: bool) -> Descriptor {
    Descriptor {
        name,
        aliases,
        on_by_default,
        crds: Vec::new,
        rules: &[],
        flags: Vec::new,
        build: never,
    }
}

const KNOWN: &[Descriptor] = &[
    controller("foo-controller", &["foo"], true),
    controller("crontab-controller", &["crontab", "ct"], true),
    controller("garbage-collector-controller", &["garbagecollector"], false),
];

fn enabled(items: &[&str]) -> Vec<&'static str> {
    let selection = Selection::parse(items, KNOWN).unwrap();
    KNOWN
        .iter()
        .filter(|known| selection.enables(known))
        .map(|known| known.name)
        .collect()
}

/// The cases of Kubernetes' `TestIsControllerEnabled`: (list, on by default, whether the controller named "foo-controller" runs).
#[test]
fn kubernetes_cases_of_is_controller_enabled_hold() {
    let on = controller("foo-controller", &[], true);
    let off = controller("foo-controller", &[], false);
    let others = [
        controller("bar-controller", &[], true),
        controller("baz-controller", &[], true),
    ];
    let table: [(&str, Descriptor, &[&str], bool); 7] = [
        ("on by name", off, &["foo-controller", "-bar-controller"], true),
        ("off by name", on, &["-foo-controller", "bar-controller"], false),
        ("on by default", on, &["*"], true),
        ("off by default", off, &["*"], false),
        ("off by default implicit, no star", off, &["bar-controller"], false),
        (
            "on by default, but not named and no star",
            on,
            &["bar-controller"],
            false,
        ),
        (
            "first match wins",
            on,
            &["*", "-foo-controller", "foo-controller"],
            false,
        ),
    ];
    for (case, descriptor, items, expected) in table {
        let known = [descriptor, others[0], others[1]];
        let selection = Selection::parse(items, &known).unwrap();
        assert_eq!(selection.enables(&descriptor), expected, "{case}");
    }
}

/// What `TestControllerManagerAliases` asks: an alias is as good as the name, in both signs.
#[test]
fn aliases_stand_for_the_controller() {
    assert_eq!(enabled(&["foo"]), ["foo-controller"]);
    assert_eq!(enabled(&[""]), [""; 0]);
    assert_eq!(enabled(&["*", "-ct"]), ["foo-controller"]);
    assert_eq!(
        enabled(&["garbagecollector", "*"]),
        ["foo-controller", "crontab-controller", "garbage-collector-controller"]
    );
    assert_eq!(enabled(&["-foo", "foo-controller"]), [""; 0]);
}

#[test]
fn an_unknown_name_is_refused_with_the_nearest_one() {
    let error = |items: &[&str]| Selection::parse(items, KNOWN).unwrap_err().to_string();
    assert_eq!(
        error(&["fop"]),
        r#""fop" is not in the list of known controllers, did you mean "foo"? (--list-controllers prints them)"#
    );
    assert_eq!(
        error(&["*", "-crontab-controler", "qqqqqqqq"]),
        r#""crontab-controler" is not in the list of known controllers, did you mean "crontab-controller"?; "qqqqqqqq" is not in the list of known controllers (--list-controllers prints them)"#
    );
}

#[test]
fn a_registry_with_a_name_twice_is_refused() {
    assert_eq!(check_registry(KNOWN), Ok(()));
    let a = controller("a", &[], true);
    for (bad, why) in [
        (vec![a, a], r#""a" stands for "a" and for "a""#),
        (
            vec![a, controller("b", &["a"], true)],
            r#""a" stands for "a" and for "b""#,
        ),
        (vec![controller("b", &["b"], true)], r#""b" stands for "b" and for "b""#),
        (vec![controller("", &[], true)], "a controller has no name"),
    ] {
        assert_eq!(check_registry(&bad), Err(why.to_owned()));
    }
}

proptest! {
    /// Only the first item that names a controller counts, wherever stars and other names stand.
    #[test]
    fn the_first_mention_decides(items in prop::collection::vec(
        prop::sample::select(vec!["*", "foo", "-foo", "foo-controller", "ct", "-ct", "garbagecollector", "-garbagecollector"]), 0..8)
    ) {
        let mention = |names: [&str; 2]| items.iter().find(|item| names.contains(&item.trim_start_matches('-'))).copied();
        let expected = |names, by_default| match mention(names) {
            Some(item) => !item.starts_with('-'),
            None => by_default && items.contains(&"*"),
        };
        let on = enabled(&items);
        prop_assert_eq!(on.contains(&"foo-controller"), expected(["foo", "foo-controller"], true));
        prop_assert_eq!(on.contains(&"garbage-collector-controller"), expected(["garbagecollector", ""], false));
    }
}
