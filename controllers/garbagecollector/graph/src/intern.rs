//! Reference-counted values that many nodes share. Each is stored once, for as long as it has
//! users.

use std::{collections::HashMap, hash::Hash, sync::Arc};

/// A set of numbered values, each with a count of its users. Number 0 is never assigned.
///
/// Not a library: `lasso` and `string-interner` hold only strings and cannot remove one, and the
/// handles of `internment` are pointers, twice as large as these numbers.
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
    /// Returns the number of this value and adds a user to it. If the value is new, `own` creates
    /// the stored copy.
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

    /// Adds a user to a value that has one.
    pub(crate) fn acquire(&mut self, number: u32) {
        if let Some(slot) = &mut self.slots[number as usize] {
            slot.users += 1;
        }
    }

    /// Removes a user. After the last one the number is free for reuse.
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

    /// Returns the value of a number that has users.
    pub(crate) fn get(&self, number: u32) -> Option<&Arc<T>> {
        self.slots[number as usize].as_ref().map(|slot| &slot.value)
    }

    /// Returns the number of values.
    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_kept_as_long_as_it_has_users() {
        let mut names: Interner<str> = Interner::default();
        let one = names.intern("one", |name| name.into());
        assert_eq!(names.intern("one", |name| name.into()), one);
        names.release(one);
        assert_eq!(names.get(one).map(|name| &**name), Some("one"));
        names.release(one);
        assert_eq!(names.get(one), None);
        assert_eq!(names.len(), 0);
        assert_eq!(names.intern("two", |name| name.into()), one, "the number is reused");
    }
}
