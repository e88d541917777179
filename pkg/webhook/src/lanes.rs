//! Bounds how many requests are answered at once, so that those of one tenant delay those of others
//! as little as possible.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The number of lanes of reviews. Those of one namespace are in one lane, and are answered one
/// after the other.
const LANES: usize = 64;
/// How many reviews are answered at once.
const REVIEWS: usize = 4;
/// How many conversions are answered at once.
const CONVERSIONS: usize = 2;

/// Where requests wait for their answers.
#[derive(Debug)]
pub(crate) struct Lanes {
    of_namespaces: [Arc<Semaphore>; LANES],
    reviews: Arc<Semaphore>,
    conversions: Arc<Semaphore>,
}

/// The right to answer one request, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    /// Empty if a semaphore is closed, which never happens.
    _permits: Vec<OwnedSemaphorePermit>,
}

impl Default for Lanes {
    fn default() -> Self {
        Self {
            of_namespaces: std::array::from_fn(|_| Arc::new(Semaphore::new(1))),
            reviews: Arc::new(Semaphore::new(REVIEWS)),
            conversions: Arc::new(Semaphore::new(CONVERSIONS)),
        }
    }
}

impl Lanes {
    /// Waits for a place for a review of an object in this namespace.
    pub(crate) async fn of_reviews(&self, namespace: Option<&str>) -> Place {
        let mut hasher = DefaultHasher::new();
        namespace.hash(&mut hasher);
        let number = usize::from(hasher.finish().to_le_bytes()[0]) % LANES;
        Place::of([&self.of_namespaces[number], &self.reviews]).await
    }

    /// Waits for a place for a conversion. The objects may be of many namespaces.
    pub(crate) async fn of_conversions(&self) -> Place {
        Place::of([&self.conversions]).await
    }
}

impl Place {
    async fn of<const N: usize>(semaphores: [&Arc<Semaphore>; N]) -> Self {
        let mut permits = Vec::new();
        for semaphore in semaphores {
            permits.extend(Arc::clone(semaphore).acquire_owned().await);
        }
        Self { _permits: permits }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn one_namespace_takes_one_place() {
        let lanes = Lanes::default();
        let _first = lanes.of_reviews(Some("a")).await;
        assert!(lanes.of_reviews(Some("a")).now_or_never().is_none());
        let names: Vec<_> = (0..LANES).map(|number| number.to_string()).collect();
        let others: Vec<_> = names
            .iter()
            .filter_map(|name| lanes.of_reviews(Some(name)).now_or_never())
            .collect();
        assert_eq!(others.len(), REVIEWS - 1);
        assert!(
            lanes.of_conversions().now_or_never().is_some(),
            "reviews do not delay it"
        );
    }
}
