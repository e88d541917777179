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
        // As near as a letter is to any other.
        error(&["q"]),
        r#""q" is not in the list of known controllers (--list-controllers prints them)"#
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

/// An item as somebody may write it: names and aliases in both signs, stars, blanks, and what nobody is called.
fn item() -> impl Strategy<Value = String> {
    let names = KNOWN
        .iter()
        .flat_map(|known| [known.name].into_iter().chain(known.aliases.iter().copied()));
    let name = prop::sample::select(names.collect::<Vec<_>>());
    prop_oneof![
        8 => name.clone().prop_map(str::to_owned),
        8 => name.clone().prop_map(|name| format!("-{name}")),
        4 => Just("*".to_owned()),
        1 => name.prop_map(|name| format!(" {name}\t")),
        1 => Just(String::new()),
        1 => prop::sample::select(vec!["fop", "-", "--foo", "-*", "**", "FOO", "foo-", "nobody"]).prop_map(str::to_owned),
    ]
}

/// Kubernetes' `IsControllerEnabled`, word for word, over a list in which aliases were replaced by names.
fn is_enabled(name: &str, by_default: bool, items: &[String]) -> bool {
    let mut has_star = false;
    for item in items {
        if item == name {
            return true;
        }
        if *item == format!("-{name}") {
            return false;
        }
        has_star |= item == "*";
    }
    has_star && by_default
}

/// The item with its alias replaced by the name; `None` for what nobody is called.
fn resolved(item: &str) -> Option<String> {
    let (sign, id) = item.strip_prefix('-').map_or(("", item), |id| ("-", id));
    let known = KNOWN
        .iter()
        .find(|known| known.name == id || known.aliases.contains(&id));
    let is_star = (item == "*").then(|| item.to_owned());
    is_star.or_else(|| Some(format!("{sign}{}", known?.name)))
}

proptest! {
    #[test]
    fn every_list_selects_what_kubernetes_would_or_names_what_is_unknown(items in prop::collection::vec(item(), 0..8)) {
        let meant: Vec<&str> = items.iter().map(|item| item.trim()).filter(|item| !item.is_empty()).collect();
        let unknown: Vec<&str> = meant.iter().copied().filter(|item| resolved(item).is_none()).collect();
        match Selection::parse(&items, KNOWN) {
            Ok(selection) => {
                prop_assert_eq!(unknown, Vec::<&str>::new());
                let items: Vec<String> = meant.iter().filter_map(|item| resolved(item)).collect();
                for known in KNOWN {
                    let expected = is_enabled(known.name, known.on_by_default, &items);
                    prop_assert_eq!(selection.enables(known), expected, "{}", known.name);
                }
            }
            Err(UnknownNames(names)) => {
                let told: Vec<String> = names.iter().map(|(name, _)| name.clone()).collect();
                let expected: Vec<&str> = unknown.iter().map(|item| item.strip_prefix('-').unwrap_or(item)).collect();
                prop_assert_eq!(told, expected);
            }
        }
    }

    /// With one letter left out, doubled or replaced, what was meant is suggested.
    #[test]
    fn a_name_with_one_letter_wrong_is_suggested_in_its_right_form(
        known in 0..KNOWN.len(),
        place: prop::sample::Index,
        letter in prop::option::of("[a-z]{1,2}"),
    ) {
        let name = KNOWN[known].name;
        let mut typed = name.to_owned();
        let place = place.index(typed.len());
        typed.replace_range(place..=place, letter.as_deref().unwrap_or_default());
        if let Err(UnknownNames(names)) = Selection::parse(&[&typed], KNOWN) {
            prop_assert_eq!(names, vec![(typed, Some(name))]);
        }
    }

    /// Levenshtein's own definition, which takes for ever.
    #[test]
    fn distances_are_levenshtein_s(a in "[ab\u{e9}]{0,5}", b in "[ab\u{e9}]{0,5}") {
        fn slowly(a: &[char], b: &[char]) -> usize {
            match (a.split_first(), b.split_first()) {
                (None, _) => b.len(),
                (_, None) => a.len(),
                (Some((x, a_rest)), Some((y, b_rest))) if x == y => slowly(a_rest, b_rest),
                (Some((_, a_rest)), Some((_, b_rest))) => {
                    1 + slowly(a_rest, b).min(slowly(a, b_rest)).min(slowly(a_rest, b_rest))
                }
            }
        }
        let [a_chars, b_chars] = [&a, &b].map(|text| text.chars().collect::<Vec<_>>());
        prop_assert_eq!(distance(&a, &b), slowly(&a_chars, &b_chars));
    }
}
