//! The controllers' pages: found when they are asked for, since controllers are built after the listener has opened.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{Arc, Weak},
};

use parking_lot::{Mutex, RwLock};
use portreeve_reconcile::{DebugPage, DebugQuery, DebugResponse};
use tokio::{sync::Semaphore, task::JoinSet};

use crate::health::ManagerState;

/// The path below which pages are.
pub const DEBUG_PAGES_PATH: &str = "/debug/controllers";

/// Whose page, and which.
type Name = (&'static str, &'static str);

/// Every controller's pages, as far as controllers are built. Cheap to clone.
#[derive(Clone)]
pub struct DebugPages {
    state: Arc<RwLock<ManagerState>>,
    /// Pages that are being made. One can take all the memory that a graph of a million nodes takes as text: never twice at once.
    turns: Arc<Mutex<BTreeMap<Name, Weak<Semaphore>>>>,
}

impl DebugPages {
    pub(crate) fn of(state: &Arc<RwLock<ManagerState>>) -> Self {
        Self {
            state: Arc::clone(state),
            turns: Arc::default(),
        }
    }

    /// The path of each page on a line of its own.
    pub fn index(&self) -> String {
        let state = self.state.read();
        let mut lines = String::new();
        for DebugPage { controller, path, .. } in &state.pages {
            // A String takes everything.
            let _ = writeln!(lines, "{DEBUG_PAGES_PATH}/{controller}/{path}");
        }
        lines
    }

    /// Makes one page, on a thread that may compute for long; whoever asks for the same meanwhile waits. A page that panics is a 500.
    pub async fn show(&self, controller: &str, path: &str, query: DebugQuery) -> DebugResponse {
        let Some(page) = self.page(controller, path) else {
            return DebugResponse::not_found(format_args!(
                "There is no such page; {DEBUG_PAGES_PATH} lists what there is."
            ));
        };
        let turn = self.turn((page.controller, page.path));
        // The semaphore is never closed.
        let permit = turn.acquire_owned().await.ok();
        let mut making = JoinSet::new();
        making.spawn_blocking(move || {
            let shown = (page.handler)(&query);
            // Here, and not where the answer is waited for: who asked may have gone, and the page is made to its end once it is begun.
            drop(permit);
            shown
        });
        match making.join_next().await {
            Some(Ok(shown)) => shown,
            _ => DebugResponse {
                status: 500,
                ..DebugResponse::text("The page could not be made: see the log\n")
            },
        }
    }

    fn page(&self, controller: &str, path: &str) -> Option<DebugPage> {
        let state = self.state.read();
        let mut pages = state.pages.iter();
        pages
            .find(|page| page.controller == controller && page.path == path)
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

    /// For what takes no time.
    const LIMIT: Duration = Duration::from_secs(30);

    type Show = Arc<dyn Fn(&DebugQuery) -> DebugResponse + Send + Sync>;

    fn pages(shows: &[(&'static str, Show)]) -> DebugPages {
        let page = |(path, show): &(&'static str, Show)| DebugPage {
            controller: "a-controller",
            path,
            handler: Arc::clone(show),
        };
        let state = ManagerState {
            pages: shows.iter().map(page).collect(),
            ..ManagerState::default()
        };
        DebugPages::of(&Arc::new(RwLock::new(state)))
    }

    async fn status(pages: &DebugPages, controller: &str, path: &str) -> u16 {
        pages.show(controller, path, DebugQuery::default()).await.status
    }

    #[tokio::test]
    async fn a_page_is_found_by_its_controller_and_its_path() {
        let pages = pages(&[
            ("graph", Arc::new(|_| DebugResponse::text("a graph"))),
            ("explain", Arc::new(|_| DebugResponse::bad_request("give a uid"))),
        ]);
        let table = [
            ("a-controller", "graph", 200),
            ("a-controller", "explain", 400),
            ("a-controller", "other", 404),
            ("b-controller", "graph", 404),
            ("", "", 404),
        ];
        for (controller, path, expected) in table {
            assert_eq!(status(&pages, controller, path).await, expected, "{controller}/{path}");
        }
        assert_eq!(
            pages.index(),
            "/debug/controllers/a-controller/graph\n/debug/controllers/a-controller/explain\n"
        );
    }

    #[tokio::test]
    async fn a_page_that_panics_is_a_500_and_can_be_asked_for_again() {
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
    async fn a_page_is_made_for_one_at_a_time_even_if_who_asked_has_gone() {
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
            status = status(&pages, "a-controller", "graph") => panic!("it was made: {status}"),
            begun = timeout(LIMIT, has_begun.recv()) => assert_eq!(begun, Ok(Some(()))),
        }
        // Another page does not wait for that one.
        assert_eq!(status(&pages, "a-controller", "explain").await, 200);
        for _ in 0..4 {
            end.send(()).unwrap();
        }
        let answers = join_all((0..3).map(|_| status(&pages, "a-controller", "graph"))).await;
        assert_eq!(answers, [200, 200, 200]);
        assert_eq!(most.load(Ordering::SeqCst), 1);
    }
}
