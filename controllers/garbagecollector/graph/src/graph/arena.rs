//! An arena that stores many small values of one type in chunks. Growing it moves nothing and
//! leaves at most one chunk partly empty.

use std::{
    num::NonZeroU32,
    ops::{Index, IndexMut},
};

const CHUNK: usize = 1_024;

/// The position of a value in an [`Arena`].
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) struct Id(NonZeroU32);

impl Id {
    fn of(place: usize) -> Self {
        // Memory runs out long before four billion values.
        let number = u32::try_from(place).unwrap_or(u32::MAX - 1);
        Self(NonZeroU32::MIN.saturating_add(number))
    }

    fn place(self) -> (usize, usize) {
        let place = self.0.get() as usize - 1;
        (place / CHUNK, place % CHUNK)
    }
}

/// Values by position. Positions of removed values are reused.
#[derive(Debug)]
pub(super) struct Arena<T> {
    chunks: Vec<Vec<Option<T>>>,
    free: Vec<Id>,
    count: usize,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            free: Vec::new(),
            count: 0,
        }
    }
}

impl<T> Arena<T> {
    pub(super) fn insert(&mut self, thing: T) -> Id {
        self.count += 1;
        if let Some(id) = self.free.pop() {
            let (chunk, place) = id.place();
            self.chunks[chunk][place] = Some(thing);
            return id;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let last = self.chunks.len() - 1;
        self.chunks[last].push(Some(thing));
        Id::of(last * CHUNK + self.chunks[last].len() - 1)
    }

    pub(super) fn remove(&mut self, id: Id) -> Option<T> {
        let (chunk, place) = id.place();
        let thing = self.chunks[chunk][place].take()?;
        self.count -= 1;
        if self.count == 0 {
            self.chunks = Vec::new();
            self.free = Vec::new();
        } else {
            self.free.push(id);
        }
        Some(thing)
    }

    /// Returns an iterator over all values, in the order of their positions.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Id, &T)> {
        let things = self.chunks.iter().flatten().enumerate();
        things.filter_map(|(place, thing)| Some((Id::of(place), thing.as_ref()?)))
    }

    pub(super) fn has(&self, id: Id) -> bool {
        let (chunk, place) = id.place();
        self.chunks
            .get(chunk)
            .and_then(|chunk| chunk.get(place))
            .is_some_and(Option::is_some)
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Returns the memory that the arena takes in bytes, without what its values point to.
    pub(super) fn bytes(&self) -> usize {
        self.chunks.len() * CHUNK * size_of::<Option<T>>() + self.free.capacity() * size_of::<Id>()
    }
}

/// Architecture Invariant: whoever removes a value also removes every stored `Id` of it. The
/// property tests check that.
impl<T> Index<Id> for Arena<T> {
    type Output = T;

    fn index(&self, id: Id) -> &T {
        let (chunk, place) = id.place();
        match &self.chunks[chunk][place] {
            Some(thing) => thing,
            None => unreachable!("{id:?} holds no value"),
        }
    }
}

impl<T> IndexMut<Id> for Arena<T> {
    fn index_mut(&mut self, id: Id) -> &mut T {
        let (chunk, place) = id.place();
        match &mut self.chunks[chunk][place] {
            Some(thing) => thing,
            None => unreachable!("{id:?} holds no value"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_reused_and_an_empty_arena_takes_no_memory() {
        let mut arena = Arena::default();
        let ids: Vec<_> = (0..3_000).map(|thing| arena.insert(Box::new(thing))).collect();
        assert_eq!(*arena[ids[2_000]], 2_000);
        arena.remove(ids[1]);
        assert_eq!(arena.insert(Box::new(7)), ids[1]);
        assert_eq!(arena.iter().map(|(_, thing)| **thing).sum::<i32>(), 4_498_500 - 1 + 7);
        for id in ids {
            assert!(arena.remove(id).is_some());
        }
        assert_eq!((arena.len(), arena.bytes()), (0, 0));
    }

    #[test]
    fn optional_id_takes_four_bytes() {
        assert_eq!(size_of::<Option<Id>>(), 4);
    }
}
