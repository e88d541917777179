//! Strings that many nodes share, each kept once and for as long as anything has it.

use std::{collections::HashMap, hash::Hash, sync::Arc};

/// Values by number, counted. Number 0 is never given.
#[derive(Debug)]
pub(crate) struct Interner<T: ?Sized> {
    slots: Vec<Option<Slot<T>>>,
    numbers: HashMap<Arc<T>, u32>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T: ?Sized> {
    value: Arc<T>,
    users: u32,
}

impl<T: ?Sized> Default for Interner<T> {
    fn default() -> Self {
        Self {
            slots: vec![None],
            numbers: HashMap::new(),
            free: Vec::new(),
        }
    }
}

impl<T: ?Sized + Eq + Hash> Interner<T> {
    /// The number of this value, which has one user more; `own` makes it last if it is new.
    pub(crate) fn intern(&mut self, value: &T, own: impl FnOnce(&T) -> Arc<T>) -> u32 {
        if let Some(&number) = self.numbers.get(value) {
            self.acquire(number);
            return number;
        }
        let value = own(value);
        let slot = Slot {
            value: Arc::clone(&value),
            users: 1,
        };
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        self.slots[number as usize] = Some(slot);
        self.numbers.insert(value, number);
        number
    }

    /// One user more of what has one.
    pub(crate) fn acquire(&mut self, number: u32) {
        if let Some(slot) = &mut self.slots[number as usize] {
            slot.users += 1;
        }
    }

    /// One user fewer; after the last one the number is free.
    pub(crate) fn release(&mut self, number: u32) {
        let Some(slot) = &mut self.slots[number as usize] else {
            return;
        };
        slot.users -= 1;
        if slot.users == 0 {
            self.numbers.remove(&slot.value);
            self.slots[number as usize] = None;
            self.free.push(number);
        }
    }

    /// The value of a number that has users.
    pub(crate) fn get(&self, number: u32) -> Option<&Arc<T>> {
        self.slots[number as usize].as_ref().map(|slot| &slot.value)
    }

    /// How many values there are.
    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_lives_as_long_as_it_has_users() {
        let mut names: Interner<str> = Interner::default();
        let one = names.intern("one", |name| name.into());
        assert_eq!(names.intern("one", |name| name.into()), one);
        names.release(one);
        assert_eq!(names.get(one).map(|name| &**name), Some("one"));
        names.release(one);
        assert_eq!(names.get(one), None);
        assert_eq!(names.len(), 0);
        assert_eq!(names.intern("two", |name| name.into()), one, "its number is used again");
    }
}
