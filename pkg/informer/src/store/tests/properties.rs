//! Tests with random events: subscribers can rebuild the store from its changes, and indexes are
//! always correct.

use proptest::prelude::*;

use super::*;

/// Generates events with few names, versions and UIDs, so that they often collide.
pub(super) fn events() -> impl Strategy<Value = Vec<String>> {
    let object = (0..4_usize, 1..6_u32, 0..3_u32);
    let word = prop_oneof![
        4 => Just("listed"),
        4 => Just("applied"),
        2 => Just("deleted"),
        1 => Just("undecodable"),
        1 => Just("deleted-undecodable"),
        1 => Just("relisting"),
        1 => Just("synced"),
    ];
    let event = (word, object).prop_map(|(word, (name, version, uid))| {
        let name = ["a", "b", "c", "d"][name];
        match word {
            "relisting" | "synced" => word.to_owned(),
            "undecodable" | "deleted-undecodable" => format!("{word} {name}"),
            _ => format!("{word} {name}@{version}+{uid}"),
        }
    });
    proptest::collection::vec(event, 0..60)
}

pub(super) fn identity(object: &Foo) -> String {
    format!("{}+{}", print(object), object.metadata.uid)
}

fn contents(store: &Store<Foo>) -> BTreeMap<ObjectKey, String> {
    let objects = store.iter();
    objects
        .map(|object| (object.metadata.key(), identity(object)))
        .collect()
}

/// Applies a change as a subscriber would, and checks that it is consistent with the changes before
/// it.
pub(super) fn replay(replayed: &mut BTreeMap<ObjectKey, String>, delta: &Delta<Foo>) {
    let key = delta.key();
    match &delta.change {
        Change::Added(object) => assert_eq!(replayed.insert(key, identity(object)), None),
        Change::Updated { old, new } => {
            assert_eq!(old.metadata.uid, new.metadata.uid, "an update must not change the UID");
            assert_eq!(replayed.insert(key, identity(new)), Some(identity(old)));
        }
        Change::Deleted { last, is_final } => {
            let known = replayed.remove(&key).expect("only a known object can be deleted");
            assert!(*is_final || known == identity(last));
        }
    }
}

fn by_uid() -> IndexFn<Foo> {
    Arc::new(|object: &Foo| vec![(*object.metadata.uid).into(), "all".into()])
}

/// Returns every value of an index with its objects.
fn index_contents(store: &Store<Foo>, index: usize) -> BTreeMap<Box<str>, Vec<String>> {
    let values = store.indexes[index].keys.keys();
    values
        .map(|value| (value.clone(), found(store, index, value)))
        .collect()
}

/// Returns a copy of the store without indexes.
fn rebuilt(store: &Store<Foo>) -> Store<Foo> {
    Store {
        objects: store.objects.clone(),
        ..Store::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn replaying_the_changes_rebuilds_the_store(events in events()) {
        let mut store = Store::default();
        let mut replayed = BTreeMap::new();
        for line in &events {
            for delta in store.apply(event(line)) {
                replay(&mut replayed, &delta);
            }
            prop_assert_eq!(&replayed, &contents(&store));
        }
    }

    #[test]
    fn every_index_equals_a_rebuild(events in events(), late in 0..60_usize) {
        let mut store = Store::default();
        store.add_index("uid", by_uid());
        for (number, line) in events.iter().enumerate() {
            if number == late {
                store.add_index("version", by_version());
            }
            store.apply(event(line));
            let mut rebuilt_store = rebuilt(&store);
            rebuilt_store.add_index("uid", by_uid());
            prop_assert_eq!(index_contents(&store, 0), index_contents(&rebuilt_store, 0));
            if number >= late {
                let index = rebuilt_store.add_index("version", by_version());
                prop_assert_eq!(index_contents(&store, 1), index_contents(&rebuilt_store, index));
            }
        }
    }

    /// After any events and aborted lists, a complete list leaves exactly the listed objects.
    #[test]
    fn after_a_complete_list_the_store_has_exactly_the_listed_objects(
        before in events(),
        listed in proptest::collection::btree_map("[abcd]", 1..6_u32, 0..4),
    ) {
        let mut store = Store::default();
        for line in &before {
            store.apply(event(line));
        }
        store.apply(Event::Relisting);
        for (name, version) in &listed {
            store.apply(event(&format!("listed {name}@{version}+z")));
        }
        store.apply(Event::Synced);
        let expected: BTreeMap<_, _> = listed
            .iter()
            .map(|(name, version)| (key(name), format!("{name}@{version}+z")))
            .collect();
        prop_assert_eq!(contents(&store), expected);
        prop_assert!(store.undecodable().is_empty());
        prop_assert!(store.is_synced());
    }

    /// Only an observed deletion or a complete list can remove an object.
    #[test]
    fn an_aborted_list_removes_nothing(before in events(), lists in events()) {
        let mut store = Store::default();
        for line in &before {
            store.apply(event(line));
        }
        let known: Vec<_> = contents(&store).into_keys().collect();
        store.apply(Event::Relisting);
        for line in lists.iter().filter(|line| line.starts_with("listed") || *line == "relisting") {
            store.apply(event(line));
        }
        for key in known {
            prop_assert!(store.get(&key).is_some(), "the store has lost {key}");
        }
    }
}
