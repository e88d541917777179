//! A cache with a bounded number of entries, each of which expires.
//!
//! Architecture Invariant: pure. Time is an argument.

use std::hash::Hash;
use std::num::NonZeroUsize;
use std::time::Duration;

use lru::LruCache;
use tokio::time::Instant;

/// The longest lifetime of an entry. A time in the far future cannot be represented.
const LONGEST_TTL: Duration = Duration::from_hours(24 * 365);

/// A map that keeps the entries which were used last, each until its own time.
pub(crate) struct ExpiringCache<K: Hash + Eq, V>(LruCache<K, (V, Instant)>);

impl<K: Hash + Eq, V: Clone> ExpiringCache<K, V> {
    /// Creates a cache for at most `capacity` entries.
    pub(crate) fn new(capacity: NonZeroUsize) -> Self {
        // Grows with its entries: a bounded map would allocate all of its memory here.
        let mut entries = LruCache::unbounded();
        entries.resize(capacity);
        Self(entries)
    }

    /// Returns the value of an entry that has not expired.
    pub(crate) fn get(&mut self, key: &K, now: Instant) -> Option<V> {
        let (value, expires) = self.0.get(key)?;
        if *expires <= now {
            self.0.pop(key);
            return None;
        }
        Some(value.clone())
    }

    /// Adds an entry that expires after `ttl`. A `ttl` of zero adds nothing.
    pub(crate) fn insert(&mut self, key: K, value: V, now: Instant, ttl: Duration) {
        if !ttl.is_zero() {
            self.0.put(key, (value, now + ttl.min(LONGEST_TTL)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    #[test]
    fn entries_expire_and_the_least_recently_used_one_is_dropped() {
        let mut cache = ExpiringCache::new(NonZeroUsize::new(2).unwrap());
        let now = Instant::now();
        cache.insert("a", 1, now, TTL);
        cache.insert("b", 2, now, TTL * 2);
        assert_eq!(cache.get(&"a", now), Some(1));
        cache.insert("c", 3, now, TTL);
        assert_eq!(cache.get(&"b", now), None, "b was used least recently");
        assert_eq!(cache.get(&"c", now + TTL - Duration::from_millis(1)), Some(3));
        assert_eq!(cache.get(&"c", now + TTL), None);
        assert_eq!(cache.0.len(), 1, "an expired entry is removed");
    }

    #[test]
    fn nothing_is_cached_without_a_ttl() {
        let mut cache = ExpiringCache::new(NonZeroUsize::MIN);
        let now = Instant::now();
        cache.insert("a", 1, now, Duration::ZERO);
        assert_eq!(cache.get(&"a", now), None);
    }
}
