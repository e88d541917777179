//! No call hangs: what ends it, and when.

use super::*;

/// Runs a call in paused time; how long it took and how it failed.
async fn failure<T: std::fmt::Debug>(call: impl Future<Output = kube::Result<T>>) -> (Duration, kube::Error) {
    let started = Instant::now();
    let ended = tokio::time::timeout(Duration::from_hours(1), call).await;
    let error = ended.expect("the call hangs").unwrap_err();
    (started.elapsed(), error)
}

fn never() -> impl Future<Output = Result<Response<Scripted>, BoxError>> + Send + 'static {
    std::future::pending()
}

#[tokio::test(start_paused = true)]
async fn a_call_that_gets_no_headers_ends_at_the_limit() {
    let api = config_maps(test_stack().client(|_| never()));
    let (after, error) = failure(api.get("a")).await;
    // The clock of timers ticks in milliseconds.
    assert_eq!(after.as_secs(), 30);
    assert_eq!(ApiErrorKind::of(&error), ApiErrorKind::Transient);
    assert!(error.to_string().contains("no complete answer within 30s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_goes_silent_in_the_middle_ends_at_the_limit() {
    let api = config_maps(test_stack().client(|_| async { Ok(stuck(r#"{"metadata":{"#)) }));
    let (after, error) = failure(api.get("a")).await;
    assert_eq!(after.as_secs(), 30);
    assert!(error.to_string().contains("no complete answer within 30s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_time_of_headers_and_body_is_counted_together() {
    let api = config_maps(test_stack().client(|_| async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        Ok(stuck("{"))
    }));
    let (after, _) = failure(api.get("a")).await;
    assert_eq!(after.as_secs(), 30);
}

fn watch() -> Request<Body> {
    Request::get("/api/v1/pods?watch=true&resourceVersion=5")
        .body(Body::empty())
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_open_watch_has_no_limit() {
    let client = test_stack().client(|_| async { Ok(stuck("{}\n")) });
    let mut body = client.send(watch()).await.unwrap().into_body();
    assert!(body.frame().await.unwrap().is_ok());
    let day = tokio::time::timeout(Duration::from_hours(24), body.frame()).await;
    assert!(day.is_err(), "the silence of a watch is for its reader to judge");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_does_not_open_ends_at_the_limit() {
    let client = test_stack().client(|_| never());
    let (after, _) = failure(client.send(watch())).await;
    assert_eq!(after.as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn a_watch_whose_refusal_goes_silent_ends_at_the_limit() {
    let client = test_stack().client(|_| async {
        let mut refusal = stuck("Too many");
        *refusal.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        let seconds = HeaderValue::from_static("1");
        refusal.headers_mut().insert(header::RETRY_AFTER, seconds);
        Ok(refusal)
    });
    let (after, _) = failure(client.send(watch())).await;
    assert_eq!(after.as_secs(), 30);
}

/// Notes when it is dropped.
struct Dropped(Arc<Mutex<Option<Instant>>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        *self.0.lock() = Some(Instant::now());
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_under_way_is_dropped_when_the_fence_closes() {
    let dropped = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&dropped);
    let fence = gate(Ok(Some(Duration::from_secs(4))));
    let api = config_maps(test_stack().fence(fence).client(move |_| {
        let request = Dropped(Arc::clone(&seen));
        async move {
            let _request = request;
            never().await
        }
    }));
    let started = Instant::now();
    let (after, error) = failure(api.create(&PostParams::default(), &config_map())).await;
    assert_eq!(after.as_secs(), 4);
    assert_eq!((dropped.lock().unwrap() - started).as_secs(), 4);
    assert!(
        error
            .to_string()
            .contains("the time in which this process may write was over")
    );
    // It may have been carried out: that it was not sent would be a lie.
    assert_eq!(ApiErrorKind::of(&error), ApiErrorKind::Transient);
}

#[tokio::test(start_paused = true)]
async fn a_write_under_way_goes_on_for_as_long_as_the_fence_is_kept_open() {
    let fence = gate(Ok(Some(Duration::from_secs(4))));
    let api = config_maps(test_stack().fence(fence.clone()).client(|_| never()));
    let keep_open = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        fence.set(Ok(Some(Duration::from_secs(4))));
        tokio::time::sleep(Duration::from_secs(3)).await;
        fence.set(Err(Fenced("lost")));
    };
    let (parameters, map) = (PostParams::default(), config_map());
    let written = failure(api.create(&parameters, &map));
    let ((after, error), ()) = tokio::join!(written, keep_open);
    assert_eq!(after.as_secs(), 7);
    assert!(error.to_string().contains("may write was over"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_write_makes_no_step_once_the_fence_is_closed_whatever_its_timer_says() {
    let (steps, next) = (Arc::new(Mutex::new(0)), Arc::new(tokio::sync::Notify::new()));
    let fence = gate(Ok(Some(Duration::from_secs(9))));
    let (counted, woken) = (Arc::clone(&steps), Arc::clone(&next));
    let api = config_maps(test_stack().fence(fence.clone()).client(move |_| {
        let (steps, next) = (Arc::clone(&counted), Arc::clone(&woken));
        async move {
            loop {
                *steps.lock() += 1;
                next.notified().await;
            }
        }
    }));
    // As for a process that was stopped: it wakes up with something to do, and its timers are behind.
    let close = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        fence.set(Err(Fenced("stopped for too long")));
        next.notify_one();
    };
    let (parameters, map) = (PostParams::default(), config_map());
    let written = failure(api.create(&parameters, &map));
    let ((after, error), ()) = tokio::join!(written, close);
    assert_eq!((after.as_secs(), *steps.lock()), (1, 1));
    assert!(error.to_string().contains("may write was over"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_fence_that_stays_open_longer_than_the_limit_does_not_extend_it() {
    let fence = gate(Ok(Some(Duration::from_mins(5))));
    let api = config_maps(test_stack().fence(fence).client(|_| never()));
    let (after, error) = failure(api.delete("a", &DeleteParams::default())).await;
    assert_eq!(after.as_secs(), 30);
    assert!(error.to_string().contains("no complete answer"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_the_rate_limit_does_not_shorten_the_call() {
    let (client, requests) = test_stack().rate(0.01, 1).answering(200, r#"{"metadata":{}}"#);
    let api = config_maps(client);
    api.get("a").await.unwrap();
    api.get("a").await.unwrap();
    assert_eq!(requests.methods().len(), 2);
}
