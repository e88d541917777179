use portreeve_reconcile::{BuildError, Context, Registrations};
use proptest::prelude::*;

use super::*;

fn never(_: &Context<'_>) -> Result<Registrations, BuildError> {
    unreachable!("a selection builds no controller")
}

const fn controller(name: &'static str, aliases: &'static [&'static str], on_by_default: bool) -> Descriptor {
    Descriptor {
        name,
        log_target: module_path!(),
        aliases,
        on_by_default,
        in_testenv: false,
        crds: &[],
        policies: &[],
        rules: &[],
        webhooks: Vec::new,
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

/// The cases of Kubernetes' `TestIsControllerEnabled`: the list, whether the controller is on by
/// default, and whether the controller named "foo-controller" runs.
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

/// Like `TestControllerManagerAliases`: an alias works like the name, with and without a minus
/// sign.
#[test]
fn aliases_select_their_controller() {
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
fn unknown_name_error_suggests_the_nearest_name() {
    let error = |items: &[&str]| Selection::parse(items, KNOWN).unwrap_err().to_string();
    assert_eq!(
        error(&["fop"]),
        r#"unknown controller "fop" (did you mean "foo"?); --list-controllers prints the known names"#
    );
    assert_eq!(
        // A single letter is equally far from every name.
        error(&["q"]),
        r#"unknown controller "q"; --list-controllers prints the known names"#
    );
    assert_eq!(
        error(&["*", "-crontab-controler", "qqqqqqqq"]),
        r#"unknown controller "crontab-controler" (did you mean "crontab-controller"?), unknown controller "qqqqqqqq"; --list-controllers prints the known names"#
    );
}

#[test]
fn registry_with_a_duplicate_name_is_rejected() {
    assert_eq!(check_registry(KNOWN), Ok(()));
    let a = controller("a", &[], true);
    for (bad, why) in [
        (vec![a, a], r#""a" is used by "a" and by "a""#),
        (
            vec![a, controller("b", &["a"], true)],
            r#""a" is used by "a" and by "b""#,
        ),
        (vec![controller("b", &["b"], true)], r#""b" is used by "b" and by "b""#),
        (vec![controller("", &[], true)], "a controller has no name"),
    ] {
        assert_eq!(check_registry(&bad).unwrap_err().to_string(), why);
    }
}

/// A list item as a user may write it: names and aliases with and without a minus sign, stars,
/// blanks, and unknown names.
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

/// Kubernetes' `IsControllerEnabled`, translated literally, for a list in which aliases are
/// replaced by names.
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

/// Returns the item with its alias replaced by the name, or `None` for an unknown name.
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
    fn every_list_selects_like_kubernetes_or_names_the_unknown_items(items in prop::collection::vec(item(), 0..8)) {
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

    /// A name with one letter removed, doubled or replaced leads to a suggestion of the right name.
    #[test]
    fn misspelt_name_leads_to_the_right_suggestion(
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
}
