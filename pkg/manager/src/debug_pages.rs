//! The debug pages of controllers. They are looked up per request because controllers are built
//! after the listener opens.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{Arc, Weak},
};

use parking_lot::{Mutex, RwLock};
use portreeve_reconcile::{DebugPage, DebugQuery, DebugResponse};
use tokio::{sync::Semaphore, task::JoinSet};

use crate::health::ManagerState;

/// The path prefix of all pages.
pub const DEBUG_PAGES_PATH: &str = "/debug/controllers";

/// The controller and the path of a page.
type Name = (&'static str, &'static str);

/// The debug pages of the controllers that are built so far. Cheap to clone.
#[derive(Clone)]
pub struct DebugPages {
    state: Arc<RwLock<ManagerState>>,
    /// The pages that are being rendered. Rendering a graph of a million nodes takes much
    /// memory, so concurrent requests for the same page are rendered one after another.
    turns: Arc<Mutex<BTreeMap<Name, Weak<Semaphore>>>>,
}

impl DebugPages {
    pub(crate) fn of(state: &Arc<RwLock<ManagerState>>) -> Self {
        Self {
            state: Arc::clone(state),
            turns: Arc::default(),
        }
    }

    /// Returns the paths of all pages, one per line.
    pub fn index(&self) -> String {
        let state = self.state.read();
        let mut lines = String::new();
        for DebugPage { controller, path, .. } in &state.debug_pages {
            // Writing to a String cannot fail.
            let _ = writeln!(lines, "{DEBUG_PAGES_PATH}/{controller}/{path}");
        }
        lines
    }

    /// Renders one page on a thread for blocking work. Concurrent requests for the same page wait
    /// for each other. A page that panics results in a 500.
    pub async fn show(&self, controller: &str, path: &str, query: DebugQuery) -> DebugResponse {
        let Some(page) = self.page(controller, path) else {
            return DebugResponse::not_found(format_args!("Page not found; {DEBUG_PAGES_PATH} lists all pages."));
        };
        let turn = self.turn((page.controller, page.path));
        // The semaphore is never closed.
        let permit = turn.acquire_owned().await.ok();
        let mut making = JoinSet::new();
        making.spawn_blocking(move || {
            let shown = (page.handler)(&query);
            // The permit is dropped here and not after the join: the client may disconnect, but a
            // page that was started is rendered to its end.
            drop(permit);
            shown
        });
        match making.join_next().await {
            Some(Ok(shown)) => shown,
            _ => DebugResponse {
                status: 500,
                ..DebugResponse::text("Failed to render the page: see the log\n")
            },
        }
    }

    /// Returns a page by the name of its controller, which may lack `-controller`.
    fn page(&self, controller: &str, path: &str) -> Option<DebugPage> {
        let is_named = |name: &str| name == controller || name.strip_suffix("-controller") == Some(controller);
        let state = self.state.read();
        let mut pages = state.debug_pages.iter();
        pages
            .find(|page| is_named(page.controller) && page.path == path)
            .cloned()
    }

    fn turn(&self, name: Name) -> Arc<Semaphore> {
        let mut turns = self.turns.lock();
        if let Some(turn) = turns.get(&name).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::new(Semaphore::new(1));
        turns.insert(name, Arc::downgrade(&turn));
        turn
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            atomic::{AtomicUsize, Ordering},
            mpsc,
        },
        time::Duration,
    };

    use futures::future::join_all;
    use tokio::time::timeout;

    use super::*;

    /// The time limit for operations that should complete immediately.
    const LIMIT: Duration = Duration::from_secs(30);

    type Show = Arc<dyn Fn(&DebugQuery) -> DebugResponse + Send + Sync>;

    fn pages(shows: &[(&'static str, Show)]) -> DebugPages {
        let page = |(path, show): &(&'static str, Show)| DebugPage {
            controller: "a-controller",
            path,
            handler: Arc::clone(show),
        };
        let state = ManagerState {
            debug_pages: shows.iter().map(page).collect(),
            ..ManagerState::default()
        };
        DebugPages::of(&Arc::new(RwLock::new(state)))
    }

    async fn status(pages: &DebugPages, controller: &str, path: &str) -> u16 {
        pages.show(controller, path, DebugQuery::default()).await.status
    }

    #[tokio::test]
    async fn page_that_panics_returns_a_500_and_can_be_requested_again() {
        let asked = AtomicUsize::new(0);
        let pages = pages(&[(
            "graph",
            Arc::new(move |_| {
                assert!(asked.fetch_add(1, Ordering::Relaxed) > 0, "the first time");
                DebugResponse::text("a graph")
            }),
        )]);
        assert_eq!(status(&pages, "a-controller", "graph").await, 500);
        assert_eq!(status(&pages, "a-controller", "graph").await, 200);
    }

    #[tokio::test]
    async fn page_is_rendered_once_at_a_time_even_after_the_client_disconnects() {
        let (making, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (begun, mut has_begun) = tokio::sync::mpsc::channel(8);
        let (end, ends) = mpsc::channel();
        let ends = Mutex::new(ends);
        let highest = Arc::clone(&most);
        let slow: Show = Arc::new(move |_| {
            highest.fetch_max(making.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            begun.blocking_send(()).unwrap();
            ends.lock().recv_timeout(LIMIT).unwrap();
            making.fetch_sub(1, Ordering::SeqCst);
            DebugResponse::text("a graph")
        });
        let pages = pages(&[("graph", slow), ("explain", Arc::new(|_| DebugResponse::text("why")))]);
        tokio::select! {
            biased;
            status = status(&pages, "a-controller", "graph") => panic!("the page was rendered: {status}"),
            begun = timeout(LIMIT, has_begun.recv()) => assert_eq!(begun, Ok(Some(()))),
        }
        // Other pages are not blocked.
        assert_eq!(status(&pages, "a-controller", "explain").await, 200);
        for _ in 0..4 {
            end.send(()).unwrap();
        }
        let answers = join_all((0..3).map(|_| status(&pages, "a-controller", "graph"))).await;
        assert_eq!(answers, [200, 200, 200]);
        assert_eq!(most.load(Ordering::SeqCst), 1);
    }
}
