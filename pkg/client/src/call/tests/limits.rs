//! Tests of the time limit of calls, and of writes in flight when the fence closes.

use super::*;

/// Runs a call in paused time and returns its duration and its error.
async fn failure<T: std::fmt::Debug>(call: impl Future<Output = kube::Result<T>>) -> (Duration, kube::Error) {
    let started = Instant::now();
    let ended = tokio::time::timeout(Duration::from_hours(1), call).await;
    let error = ended.expect("the call must not hang").unwrap_err();
    (started.elapsed(), error)
}

fn never() -> impl Future<Output = Result<Response<ScriptedBody>, BoxError>> + Send + 'static {
    std::future::pending()
}

#[tokio::test(start_paused = true)]
async fn call_that_receives_no_headers_ends_at_the_limit() {
    let api = config_maps(test_stack().client(|_| never()));
    let (after, error) = failure(api.get("a")).await;
    // Tokio's timers tick in milliseconds.
    assert_eq!(after.as_secs(), 30);
    assert_eq!(ApiErrorKind::of(&error), ApiErrorKind::Transient);
    assert!(error.to_string().contains("no complete response within 30s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn limit_covers_headers_and_body_together() {
    let api = config_maps(test_stack().client(|_| async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        Ok(stalled_response("{"))
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
async fn open_watch_has_no_limit() {
    let client = test_stack().client(|_| async { Ok(stalled_response("{}\n")) });
    let mut body = client.send(watch()).await.unwrap().into_body();
    assert!(body.frame().await.unwrap().is_ok());
    let day = tokio::time::timeout(Duration::from_hours(24), body.frame()).await;
    assert!(day.is_err(), "the reader of a watch applies its own idle timeout");
}

#[tokio::test(start_paused = true)]
async fn watch_that_does_not_open_ends_at_the_limit() {
    let client = test_stack().client(|_| never());
    let (after, _) = failure(client.send(watch())).await;
    assert_eq!(after.as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn rejected_watch_whose_body_stalls_ends_at_the_limit() {
    let client = test_stack().client(|_| async {
        let mut rejection = stalled_response("Too many");
        *rejection.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        let seconds = HeaderValue::from_static("1");
        rejection.headers_mut().insert(header::RETRY_AFTER, seconds);
        Ok(rejection)
    });
    let (after, _) = failure(client.send(watch())).await;
    assert_eq!(after.as_secs(), 30);
}

/// Records when it is dropped.
struct Dropped(Arc<Mutex<Option<Instant>>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        *self.0.lock() = Some(Instant::now());
    }
}

#[tokio::test(start_paused = true)]
async fn write_in_flight_is_dropped_when_the_fence_closes() {
    let dropped = Arc::new(Mutex::new(None));
    let drop_time = Arc::clone(&dropped);
    let fence = gate(Ok(Some(Duration::from_secs(4))));
    let api = config_maps(test_stack().fence(fence).client(move |_| {
        let request = Dropped(Arc::clone(&drop_time));
        async move {
            let _request = request;
            never().await
        }
    }));
    let started = Instant::now();
    let (after, error) = failure(api.create(&PostParams::default(), &config_map())).await;
    assert_eq!(after.as_secs(), 4);
    assert_eq!((dropped.lock().unwrap() - started).as_secs(), 4);
    assert!(error.to_string().contains("the write fence closed"));
    // The apiserver may have executed the write, so the error must not claim that it was not sent.
    assert_eq!(ApiErrorKind::of(&error), ApiErrorKind::Transient);
}

#[tokio::test(start_paused = true)]
async fn write_in_flight_continues_while_the_fence_stays_open() {
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
    assert!(error.to_string().contains("the write fence closed"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn write_is_not_polled_after_the_fence_closes() {
    let (steps, next) = (Arc::new(Mutex::new(0)), Arc::new(tokio::sync::Notify::new()));
    let fence = gate(Ok(Some(Duration::from_secs(9))));
    let (step_counter, woken) = (Arc::clone(&steps), Arc::clone(&next));
    let api = config_maps(test_stack().fence(fence.clone()).client(move |_| {
        let (steps, next) = (Arc::clone(&step_counter), Arc::clone(&woken));
        async move {
            loop {
                *steps.lock() += 1;
                next.notified().await;
            }
        }
    }));
    // In a process that was stopped and resumes, the request is polled before the late timers fire.
    let close = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        fence.set(Err(Fenced("stopped for too long")));
        next.notify_one();
    };
    let (parameters, map) = (PostParams::default(), config_map());
    let written = failure(api.create(&parameters, &map));
    let ((after, error), ()) = tokio::join!(written, close);
    assert_eq!((after.as_secs(), *steps.lock()), (1, 1));
    assert!(error.to_string().contains("the write fence closed"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn open_fence_does_not_extend_the_limit() {
    let fence = gate(Ok(Some(Duration::from_mins(5))));
    let api = config_maps(test_stack().fence(fence).client(|_| never()));
    let (after, error) = failure(api.delete("a", &DeleteParams::default())).await;
    assert_eq!(after.as_secs(), 30);
    assert!(error.to_string().contains("no complete response"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_shorter_limit_does_not_include_the_wait_for_the_rate_limit() {
    let request = || {
        let mut request = Request::get("/api/v1/pods/a").body(Body::empty()).unwrap();
        request.extensions_mut().insert(TimeLimit(Duration::from_secs(5)));
        request
    };
    let client = test_stack().rate(0.1, 1).client(|_| async {
        tokio::time::sleep(Duration::from_secs(4)).await;
        Ok(response(200, "{}"))
    });
    let started = Instant::now();
    for _ in 0..2 {
        client.send(request()).await.unwrap();
    }
    assert_eq!(started.elapsed().as_secs(), 14);
    let client = test_stack().client(|_| never());
    let (after, error) = failure(client.send(request())).await;
    assert_eq!(after.as_secs(), 5);
    assert!(error.to_string().contains("no complete response within 5s"), "{error}");
}
