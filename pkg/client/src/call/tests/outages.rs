//! Tests of outages, with a scripted apiserver in paused time.

use tokio::{task::JoinSet, time::sleep};

use super::*;
use crate::OutageCount;

/// A scripted apiserver, and a process that sends requests to it.
struct Fixture {
    /// The status code of each response, by whether the request is a probe; 0 is no response.
    codes: Arc<Mutex<(u16, u16)>>,
    probes: Arc<Mutex<Vec<Instant>>>,
    client: Client,
    outage: Outage,
    _tasks: JoinSet<()>,
}

impl Fixture {
    fn new() -> Self {
        let stack = test_stack();
        let outage = stack.shared.outage.clone();
        let codes = Arc::new(Mutex::new((200, 200)));
        let probes = Arc::<Mutex<Vec<Instant>>>::default();
        let (responses, record) = (Arc::clone(&codes), Arc::clone(&probes));
        let client = stack.client(move |request| {
            let (of_probes, of_others) = *responses.lock();
            let is_probe = request.uri().path() == "/readyz";
            if is_probe {
                record.lock().push(Instant::now());
            }
            let code = if is_probe { of_probes } else { of_others };
            async move {
                match code {
                    0 => Err("connection refused".into()),
                    code => Ok(response(code, r#"{"metadata": {}}"#)),
                }
            }
        });
        let mut tasks = JoinSet::new();
        let (own_outage, own_client) = (outage.clone(), client.clone());
        tasks.spawn(async move { own_outage.probe(&own_client).await });
        Self {
            codes,
            probes,
            client,
            outage,
            _tasks: tasks,
        }
    }

    /// Sets the responses to probes and to other requests.
    fn respond(&self, probes: u16, others: u16) {
        *self.codes.lock() = (probes, others);
    }

    async fn request(&self) {
        config_maps(self.client.clone()).get("a").await.ok();
    }

    /// Sends a request, sets the responses after seven seconds, and returns how long a backoff of
    /// a minute lasted.
    async fn back_off(&self, probes: u16, others: u16) -> Duration {
        let (started, count) = (Instant::now(), self.outage.count());
        self.request().await;
        let responds = async {
            sleep(Duration::from_secs(7)).await;
            self.respond(probes, others);
        };
        tokio::join!(self.outage.back_off(Duration::from_mins(1), count, 1), responds);
        started.elapsed()
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_outage_ends_a_backoff() {
    for code in [0, 500, 503] {
        let fixture = Fixture::new();
        fixture.respond(code, code);
        let waited = fixture.back_off(200, 200).await;
        // A probe follows within 250 ms, and the spread is 200 ms.
        let expected = Duration::from_secs(7)..Duration::from_millis(7_460);
        assert!(expected.contains(&waited), "{code}: {waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn another_success_ends_an_outage_if_the_account_may_not_probe() {
    let fixture = Fixture::new();
    fixture.respond(0, 0);
    let success = async {
        sleep(Duration::from_secs(8)).await;
        fixture.request().await;
    };
    let (waited, ()) = tokio::join!(fixture.back_off(403, 200), success);
    let expected = Duration::from_secs(8)..Duration::from_millis(8_460);
    assert!(expected.contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn rejections_do_not_end_a_backoff() {
    for code in [401, 403, 404, 429] {
        let fixture = Fixture::new();
        fixture.respond(0, 0);
        let waited = fixture.back_off(code, code).await;
        assert_eq!(waited.as_secs(), 60, "{code}");
        // Probes end once it is clear that the apiserver runs.
        let last = fixture.probes.lock().last().copied();
        assert_eq!(last.map(|last| last.elapsed().as_secs()), Some(23), "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn failures_of_some_requests_are_no_outage() {
    let fixture = Fixture::new();
    fixture.respond(200, 500);
    let requests = async {
        for _ in 0..100 {
            fixture.request().await;
            sleep(Duration::from_millis(100)).await;
        }
    };
    let (waited, ()) = tokio::join!(fixture.back_off(200, 500), requests);
    assert_eq!(waited.as_secs(), 60);
    assert_eq!(fixture.outage.count(), OutageCount::default());
}

#[tokio::test(start_paused = true)]
async fn an_outage_that_ends_while_a_request_is_in_flight_ends_its_backoff() {
    let fixture = Fixture::new();
    let count = fixture.outage.count();
    fixture.respond(0, 0);
    fixture.back_off(200, 200).await;
    let started = Instant::now();
    assert!(fixture.outage.back_off(Duration::from_mins(1), count, 1).await);
    assert!(
        started.elapsed() < Duration::from_millis(210),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn waits_of_an_outage_last_until_its_end_but_at_most_30_seconds() {
    let fixture = Fixture::new();
    fixture.respond(0, 0);
    fixture.request().await;
    assert_eq!(fixture.outage.min_wait(), Duration::ZERO);
    sleep(Duration::from_secs(2)).await;
    let started = Instant::now();
    let count = fixture.outage.count();
    assert!(!fixture.outage.back_off(Duration::from_millis(5), count, 1).await);
    assert_eq!(started.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn probes_are_sent_only_while_requests_fail_and_at_a_bounded_rate() {
    let fixture = Fixture::new();
    fixture.request().await;
    sleep(Duration::from_mins(1)).await;
    let count = || std::mem::take(&mut *fixture.probes.lock()).len();
    assert_eq!(count(), 0);
    fixture.respond(0, 0);
    fixture.request().await;
    sleep(Duration::from_mins(1)).await;
    let first_minute = count();
    assert!((200..=240).contains(&first_minute), "{first_minute}");
    sleep(Duration::from_mins(1)).await;
    let second_minute = count();
    assert!((110..=120).contains(&second_minute), "{second_minute}");
    fixture.respond(200, 200);
    sleep(Duration::from_mins(1)).await;
    assert_eq!(count(), 1);
}
