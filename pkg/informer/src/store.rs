//! The store: it turns events into changes.
//!
//! The store compares a relist with its contents. Objects that disappeared unobserved are reported
//! as deleted, and unchanged objects are not reported.
//!
//! Architecture Invariant: sync and pure. No clock, no lock, no I/O; the same events produce the
//! same store and the same changes.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use portreeve_api::ObjectKey;

use crate::Projection;

/// An event of the list-and-watch loop.
#[derive(Clone, Debug)]
pub enum Event<T> {
    /// A list begins. Objects that are not listed before the next `Synced` no longer exist.
    Relisting,
    /// An object in the list.
    Listed(T),
    /// The list is complete.
    Synced,
    /// An object was added or changed.
    Applied(T),
    /// An object was deleted; this is its last state.
    Deleted(T),
    /// An object exists but cannot be decoded into the projection. The store keeps its last good
    /// state, unless that state has another UID.
    Undecodable {
        /// The key of the object.
        key: ObjectKey,
        /// Its UID, or the empty string if that cannot be read either.
        uid: Arc<str>,
        /// The path to the bad field and what was expected there, but never the value.
        error: String,
    },
    /// An object was deleted, and its last state cannot be decoded.
    DeletedUndecodable(ObjectKey),
}

/// A change of one object, as subscribers receive it.
#[derive(Debug)]
pub enum Change<T> {
    /// The object is new to the store.
    Added(Arc<T>),
    /// The same object has another version, or the same version in a resync.
    Updated {
        /// The previous state.
        old: Arc<T>,
        /// The new state.
        new: Arc<T>,
    },
    /// The object was deleted.
    Deleted {
        /// The last known state.
        last: Arc<T>,
        /// Whether `last` is the final state of the object. It is `false` if the deletion was only
        /// inferred from a relist or from another object of the same name, or if the final state
        /// cannot be decoded.
        is_final: bool,
    },
}

impl<T> Change<T> {
    /// Returns the object in its current or last known state.
    pub fn object(&self) -> &Arc<T> {
        match self {
            Self::Added(object) | Self::Updated { new: object, .. } | Self::Deleted { last: object, .. } => object,
        }
    }
}

impl<T> Clone for Change<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Added(object) => Self::Added(Arc::clone(object)),
            Self::Updated { old, new } => Self::Updated {
                old: Arc::clone(old),
                new: Arc::clone(new),
            },
            Self::Deleted { last, is_final } => Self::Deleted {
                last: Arc::clone(last),
                is_final: *is_final,
            },
        }
    }
}

/// The reason why a subscriber receives a change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cause {
    /// A watch reported the change.
    Watched,
    /// A repeated list shows the change, which happened at an unknown time.
    Relisted,
    /// The first list shows the object, which may have been unchanged for years.
    Listed,
    /// The subscriber is new, and the object was already in the store.
    Replayed,
    /// Nothing changed, but `--min-resync-period` has passed.
    Resynced,
}

/// A change and its cause.
#[derive(Debug)]
pub struct Delta<T> {
    /// What changed.
    pub change: Change<T>,
    /// Why the subscriber receives it.
    pub cause: Cause,
}

impl<T: Projection> Delta<T> {
    /// Returns the key of the object.
    pub fn key(&self) -> ObjectKey {
        self.change.object().metadata().key()
    }
}

/// Maps an object to its values in an index.
pub type IndexFn<T> = Arc<dyn Fn(&T) -> Vec<Box<str>> + Send + Sync>;

/// Objects by key and by index.
pub struct Store<T> {
    objects: HashMap<ObjectKey, Arc<T>>,
    indexes: Vec<Indexed<T>>,
    undecodable: BTreeMap<ObjectKey, String>,
    phase: Phase,
}

struct Indexed<T> {
    name: &'static str,
    values: IndexFn<T>,
    keys: HashMap<Box<str>, HashSet<ObjectKey>>,
}

/// The values of one object in each index, in the order of the indexes.
type Values = Vec<Vec<Box<str>>>;

enum Phase {
    /// No list has started yet.
    Empty,
    /// A list is in progress. `seen` has the keys that were listed so far. `first` is set until a
    /// list has completed.
    Listing { seen: HashSet<ObjectKey>, first: bool },
    /// A list has completed, and events keep the store up to date.
    Synced,
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self {
            objects: HashMap::new(),
            indexes: Vec::new(),
            undecodable: BTreeMap::new(),
            phase: Phase::Empty,
        }
    }
}

impl<T: Projection> Store<T> {
    /// Applies one event and returns the resulting changes, in order.
    pub fn apply(&mut self, event: Event<T>) -> Vec<Delta<T>> {
        let cause = self.cause();
        let changes = match event {
            Event::Relisting => {
                let first = cause == Cause::Listed;
                let seen = HashSet::new();
                self.phase = Phase::Listing { seen, first };
                Vec::new()
            }
            Event::Listed(object) | Event::Applied(object) => self.upsert(object),
            Event::Deleted(last) => self.delete(last).into_iter().collect(),
            Event::Synced => self.sweep(),
            Event::Undecodable { key, uid, error } => self.keep_undecodable(key, &uid, error).into_iter().collect(),
            Event::DeletedUndecodable(key) => self.forget(&key).into_iter().collect(),
        };
        changes.into_iter().map(|change| Delta { change, cause }).collect()
    }

    /// Returns the object with this key.
    pub fn get(&self, key: &ObjectKey) -> Option<&Arc<T>> {
        self.objects.get(key)
    }

    /// Returns all objects, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.objects.values()
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Returns whether the store has no objects.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Returns whether a list has ever completed.
    pub fn is_synced(&self) -> bool {
        matches!(self.phase, Phase::Synced | Phase::Listing { first: false, .. })
    }

    /// Returns the existing objects that cannot be decoded, with their errors.
    pub fn undecodable(&self) -> &BTreeMap<ObjectKey, String> {
        &self.undecodable
    }

    /// Adds an index over current and future objects, and returns its number. If the name is
    /// already in use, the existing index stays and its number is returned.
    pub fn add_index(&mut self, name: &'static str, values: IndexFn<T>) -> usize {
        if let Some(number) = self.indexes.iter().position(|index| index.name == name) {
            return number;
        }
        let mut index = Indexed {
            name,
            values,
            keys: HashMap::new(),
        };
        for (key, object) in &self.objects {
            index.insert(key, &(index.values)(object));
        }
        self.indexes.push(index);
        self.indexes.len() - 1
    }

    /// Returns the objects under `value` in the index `number`, in no particular order.
    pub fn by_index(&self, number: usize, value: &str) -> impl Iterator<Item = &Arc<T>> {
        let keys = self.indexes.get(number).and_then(|index| index.keys.get(value));
        keys.into_iter().flatten().filter_map(|key| self.objects.get(key))
    }

    fn cause(&self) -> Cause {
        match self.phase {
            Phase::Synced => Cause::Watched,
            Phase::Listing { first: false, .. } => Cause::Relisted,
            Phase::Empty | Phase::Listing { first: true, .. } => Cause::Listed,
        }
    }

    fn mark_seen(&mut self, key: &ObjectKey) {
        if let Phase::Listing { seen, .. } = &mut self.phase {
            seen.insert(key.clone());
        }
    }

    /// Returns the values of an object in all indexes. Index functions come from the callers and
    /// may panic, so they run before anything changes; the same event can then be applied again.
    fn values(&self, object: &T) -> Values {
        self.indexes.iter().map(|index| (index.values)(object)).collect()
    }

    /// Updates the indexes whose values changed. Most changes of objects change no indexed value.
    fn reindex(&mut self, key: &ObjectKey, before: &Values, after: &Values) {
        for (number, index) in self.indexes.iter_mut().enumerate() {
            let [before, after] =
                [before, after].map(|values| values.get(number).map(Vec::as_slice).unwrap_or_default());
            if before != after {
                index.remove(key, before);
                index.insert(key, after);
            }
        }
    }

    fn upsert(&mut self, object: T) -> Vec<Change<T>> {
        let key = object.metadata().key();
        self.mark_seen(&key);
        let new = Arc::new(object);
        let old = self.objects.get(&key).cloned();
        let (old_metadata, new_metadata) = (old.as_ref().map(|old| old.metadata()), new.metadata());
        let recreated = old_metadata.is_some_and(|old| old.uid != new_metadata.uid);
        if !recreated && old_metadata.is_some_and(|old| old.resource_version == new_metadata.resource_version) {
            self.undecodable.remove(&key);
            // A list in another version contains the same object in another form.
            if let Phase::Listing { .. } = self.phase {
                self.objects.insert(key, new);
            }
            return Vec::new();
        }
        let before = old.as_ref().map(|old| self.values(old)).unwrap_or_default();
        let after = self.values(&new);
        self.undecodable.remove(&key);
        self.reindex(&key, &before, &after);
        self.objects.insert(key, Arc::clone(&new));
        match old {
            None => vec![Change::Added(new)],
            // The object was recreated, and its deletion was missed.
            Some(last) if recreated => vec![Change::Deleted { last, is_final: false }, Change::Added(new)],
            Some(old) => vec![Change::Updated { old, new }],
        }
    }

    /// Records an undecodable object. If its UID differs from that of the stored object, the
    /// deletion of the stored object was missed.
    fn keep_undecodable(&mut self, key: ObjectKey, uid: &str, error: String) -> Option<Change<T>> {
        self.mark_seen(&key);
        let known = self.objects.get(&key).map(|known| &known.metadata().uid);
        let recreated = !uid.is_empty() && known.is_some_and(|known| **known != *uid);
        let deleted = if recreated { self.forget(&key) } else { None };
        self.undecodable.insert(key, error);
        deleted
    }

    fn delete(&mut self, last: T) -> Option<Change<T>> {
        self.forget(&last.metadata().key())?;
        Some(Change::Deleted {
            last: Arc::new(last),
            is_final: true,
        })
    }

    /// Removes an object whose final state is unknown.
    fn forget(&mut self, key: &ObjectKey) -> Option<Change<T>> {
        let values = self.values_of(key);
        self.remove(key, &values)
    }

    fn values_of(&self, key: &ObjectKey) -> Values {
        self.objects
            .get(key)
            .map(|object| self.values(object))
            .unwrap_or_default()
    }

    fn remove(&mut self, key: &ObjectKey, values: &Values) -> Option<Change<T>> {
        self.undecodable.remove(key);
        let last = self.objects.remove(key)?;
        self.reindex(key, values, &Vec::new());
        Some(Change::Deleted { last, is_final: false })
    }

    /// Ends a list, and removes the objects that were not listed.
    fn sweep(&mut self) -> Vec<Change<T>> {
        let Phase::Listing { seen, .. } = &self.phase else {
            return Vec::new();
        };
        let known = self.objects.keys().chain(self.undecodable.keys());
        let gone = known.filter(|key| !seen.contains(*key));
        let gone: BTreeMap<ObjectKey, Values> = gone.map(|key| (key.clone(), self.values_of(key))).collect();
        self.phase = Phase::Synced;
        gone.iter()
            .filter_map(|(key, values)| self.remove(key, values))
            .collect()
    }
}

impl<T> Indexed<T> {
    fn insert(&mut self, key: &ObjectKey, values: &[Box<str>]) {
        for value in values {
            self.keys.entry(value.clone()).or_default().insert(key.clone());
        }
    }

    fn remove(&mut self, key: &ObjectKey, values: &[Box<str>]) {
        for value in values {
            if let Some(keys) = self.keys.get_mut(value) {
                keys.remove(key);
                if keys.is_empty() {
                    self.keys.remove(value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
