//! Tests that no part of a body is logged.

use std::io;

use tracing_subscriber::{Layer, filter::LevelFilter, filter::Targets, fmt::MakeWriter, layer::SubscriberExt};

use super::*;

const SECRET: &str = "hunter2";

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock()).into_owned()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Runs `calls` and returns their log. Everything is logged at TRACE except `kube_client`, which is
/// capped at `kube`.
fn logged<F: Future>(kube: LevelFilter, calls: impl FnOnce() -> F) -> String {
    let log = Log::default();
    let targets = Targets::new()
        .with_default(LevelFilter::TRACE)
        .with_target("kube_client", kube);
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(log.clone())
        .with_filter(targets);
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
        // A single thread, so that the client's own task logs to this subscriber too.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(calls());
        tracing::info!("done");
    });
    log.text()
}

#[test]
fn undecodable_response_is_not_logged() {
    let log = logged(LevelFilter::ERROR, || async {
        let body = json!({"metadata": {"name": 1}, "data": {"password": SECRET}}).to_string();
        let (client, _) = test_stack().responding(200, &body);
        let api = config_maps(client);
        api.get("a").await.unwrap_err();
        api.create(&PostParams::default(), &config_map()).await.unwrap_err();
    });
    assert!(log.contains("done"), "the log is not captured");
    assert!(!log.contains(SECRET), "{log}");
}

/// The middleware already turns the response into a Status, which kube does not log at WARN.
#[test]
fn error_response_without_a_status_is_not_logged_even_without_the_cap() {
    let log = logged(LevelFilter::WARN, || async {
        let (client, _) = test_stack().responding(500, SECRET);
        config_maps(client).get("a").await.unwrap_err();
    });
    assert!(log.contains("done") && !log.contains(SECRET), "{log}");
}

#[test]
fn responses_to_send_are_not_logged_even_without_the_cap() {
    let log = logged(LevelFilter::TRACE, || async {
        let (client, _) = test_stack().responding(200, SECRET);
        let request = Request::get("/api/v1/secrets").body(Body::empty()).unwrap();
        client.send(request).await.unwrap().into_body().collect().await.unwrap();
    });
    assert!(log.contains("done") && !log.contains(SECRET), "{log}");
}

/// Documents why the cap is needed. If this test fails, kube no longer logs bodies and the cap can
/// be removed.
#[test]
fn kube_logs_responses_that_it_cannot_decode() {
    let log = logged(LevelFilter::WARN, || async {
        let body = json!({"metadata": {"name": 1}, "data": {"password": SECRET}}).to_string();
        let (client, _) = test_stack().responding(200, &body);
        config_maps(client).get("a").await.unwrap_err();
    });
    assert!(log.contains(SECRET), "{log}");
}
