//! The store: events in, changes out.
//!
//! A relist is diffed: what vanished while nobody watched comes out as deleted, what did not change comes out as nothing.
//!
//! Architecture Invariant: sync and pure. No clock, no lock, no I/O; the same events make the same store and the same changes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use portreeve_api::ObjectKey;

use crate::Projection;

/// What the list-and-watch loop saw.
#[derive(Clone, Debug)]
pub enum Event<T> {
    /// A list begins. What does not come before the next `Synced` no longer exists.
    Relisting,
    /// An object in the list.
    Listed(T),
    /// The list is complete.
    Synced,
    /// An object was added or changed.
    Applied(T),
    /// An object was deleted; this is its last state.
    Deleted(T),
    /// An object exists, but its bytes are not what the projection expects. Its last good state is kept.
    Undecodable {
        /// Which object.
        key: ObjectKey,
        /// What is wrong with it, with the path to the field.
        error: String,
    },
    /// An object was deleted whose last state could not be decoded.
    DeletedUndecodable(ObjectKey),
}

/// What a store's subscribers are told.
#[derive(Debug)]
pub enum Change<T> {
    /// The object is new to the store.
    Added(Arc<T>),
    /// The same object has another version, or the same one when it is a resync.
    Updated {
        /// Before.
        old: Arc<T>,
        /// After.
        new: Arc<T>,
    },
    /// The object is gone.
    Deleted {
        /// The last state known.
        last: Arc<T>,
        /// Whether `last` is its final state. `false`: the deletion was missed and found by a relist, or its final state could not
        /// be decoded.
        is_final: bool,
    },
}

impl<T> Change<T> {
    /// The object as it is now, or as it was last.
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

/// Why a change is told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cause {
    /// Somebody changed something.
    Watched,
    /// The first list: the object may have been as it is for years.
    Listed,
    /// The subscriber is new, the object is not.
    Replayed,
    /// Nothing changed; `--min-resync-period` has passed.
    Resynced,
}

/// A change and why it is told.
#[derive(Debug)]
pub struct Delta<T> {
    /// What changed.
    pub change: Change<T>,
    /// Why it is told.
    pub cause: Cause,
}

impl<T: Projection> Delta<T> {
    /// The key of the object.
    pub fn key(&self) -> ObjectKey {
        self.change.object().metadata().key()
    }
}

/// Maps an object to the values that it is found under.
pub type IndexFn<T> = Arc<dyn Fn(&T) -> Vec<Box<str>> + Send + Sync>;

/// Objects by key, and by every index.
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

enum Phase {
    /// Nothing was ever listed completely.
    Empty,
    /// A list is under way; `seen` holds what it has named so far.
    Listing { seen: HashSet<ObjectKey>, first: bool },
    /// Complete, and kept up to date.
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
    /// Takes one event in and returns the changes that it makes, in order.
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
            Event::Undecodable { key, error } => {
                self.see(&key);
                self.undecodable.insert(key, error);
                Vec::new()
            }
            Event::DeletedUndecodable(key) => self.forget(&key).into_iter().collect(),
        };
        changes.into_iter().map(|change| Delta { change, cause }).collect()
    }

    /// The object of that key.
    pub fn get(&self, key: &ObjectKey) -> Option<&Arc<T>> {
        self.objects.get(key)
    }

    /// All objects, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.objects.values()
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether there is no object.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Whether a list was ever complete.
    pub fn is_synced(&self) -> bool {
        matches!(self.phase, Phase::Synced | Phase::Listing { first: false, .. })
    }

    /// Objects that exist and cannot be decoded, and why.
    pub fn undecodable(&self) -> &BTreeMap<ObjectKey, String> {
        &self.undecodable
    }

    /// Adds an index over what is and what will be stored, and returns its number. One name is one index: a second call returns
    /// the first one's number.
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
            index.insert(key, object);
        }
        self.indexes.push(index);
        self.indexes.len() - 1
    }

    /// The objects that index `number` has under `value`, in no order.
    pub fn by_index(&self, number: usize, value: &str) -> impl Iterator<Item = &Arc<T>> {
        let keys = self.indexes.get(number).and_then(|index| index.keys.get(value));
        keys.into_iter().flatten().filter_map(|key| self.objects.get(key))
    }

    fn cause(&self) -> Cause {
        if self.is_synced() {
            Cause::Watched
        } else {
            Cause::Listed
        }
    }

    fn see(&mut self, key: &ObjectKey) {
        if let Phase::Listing { seen, .. } = &mut self.phase {
            seen.insert(key.clone());
        }
    }

    fn upsert(&mut self, object: T) -> Vec<Change<T>> {
        let key = object.metadata().key();
        self.see(&key);
        self.undecodable.remove(&key);
        let new = Arc::new(object);
        let (was, is) = (self.objects.get(&key).map(|was| was.metadata()), new.metadata());
        let recreated = was.is_some_and(|was| was.uid != is.uid);
        if !recreated && was.is_some_and(|was| was.resource_version == is.resource_version) {
            return Vec::new();
        }
        // Another object of the same name: that the one before was deleted has been missed.
        let deleted = if recreated { self.forget(&key) } else { None };
        let change = self.insert(key, new);
        deleted.into_iter().chain([change]).collect()
    }

    fn insert(&mut self, key: ObjectKey, new: Arc<T>) -> Change<T> {
        let Some(slot) = self.objects.get_mut(&key) else {
            self.indexes.iter_mut().for_each(|index| index.insert(&key, &new));
            self.objects.insert(key, Arc::clone(&new));
            return Change::Added(new);
        };
        let old = std::mem::replace(slot, Arc::clone(&new));
        for index in &mut self.indexes {
            index.replace(&key, &old, &new);
        }
        Change::Updated { old, new }
    }

    fn delete(&mut self, last: T) -> Option<Change<T>> {
        self.forget(&last.metadata().key())?;
        Some(Change::Deleted {
            last: Arc::new(last),
            is_final: true,
        })
    }

    /// Removes an object whose final state is not known.
    fn forget(&mut self, key: &ObjectKey) -> Option<Change<T>> {
        self.undecodable.remove(key);
        let last = self.objects.remove(key)?;
        for index in &mut self.indexes {
            index.remove(key, &last);
        }
        Some(Change::Deleted { last, is_final: false })
    }

    /// Ends a list: what it did not name is gone.
    fn sweep(&mut self) -> Vec<Change<T>> {
        let Phase::Listing { seen, .. } = std::mem::replace(&mut self.phase, Phase::Synced) else {
            return Vec::new();
        };
        let known = self.objects.keys().chain(self.undecodable.keys());
        let gone: BTreeSet<ObjectKey> = known.filter(|key| !seen.contains(*key)).cloned().collect();
        gone.iter().filter_map(|key| self.forget(key)).collect()
    }
}

impl<T> Indexed<T> {
    fn insert(&mut self, key: &ObjectKey, object: &T) {
        for value in (self.values)(object) {
            self.keys.entry(value).or_default().insert(key.clone());
        }
    }

    fn remove(&mut self, key: &ObjectKey, object: &T) {
        for value in (self.values)(object) {
            if let Some(keys) = self.keys.get_mut(&value) {
                keys.remove(key);
                if keys.is_empty() {
                    self.keys.remove(&value);
                }
            }
        }
    }

    /// Most changes leave the indexed values alone.
    fn replace(&mut self, key: &ObjectKey, old: &T, new: &T) {
        if (self.values)(old) != (self.values)(new) {
            self.remove(key, old);
            self.insert(key, new);
        }
    }
}

#[cfg(test)]
mod tests;
