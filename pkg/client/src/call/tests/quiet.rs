//! Nothing of a body gets into the log.

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

/// Runs `calls` with a log that holds all that is said, but for `kube_client`, which is held at `kube`. Returns the log.
fn logged<F: Future>(kube: LevelFilter, calls: impl FnOnce() -> F) -> String {
    let log = Log::default();
    let targets = Targets::new()
        .with_default(LevelFilter::TRACE)
        .with_target("kube_client", kube);
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(log.clone())
        .with_filter(targets);
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
        // One thread, so that the client's own task logs here too.
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
fn an_answer_that_cannot_be_decoded_is_not_logged() {
    let log = logged(LevelFilter::ERROR, || async {
        let body = json!({"metadata": {"name": 1}, "data": {"password": SECRET}}).to_string();
        let (client, _) = test_stack().answering(200, &body);
        let api = config_maps(client);
        api.get("a").await.unwrap_err();
        api.create(&PostParams::default(), &config_map()).await.unwrap_err();
    });
    assert!(log.contains("done"), "the log is captured");
    assert!(!log.contains(SECRET), "{log}");
}

/// What kube would log at WARN without the cap is already made a Status by the stations.
#[test]
fn a_refusal_that_is_no_status_is_not_logged_even_without_the_cap() {
    let log = logged(LevelFilter::WARN, || async {
        let (client, _) = test_stack().answering(500, SECRET);
        config_maps(client).get("a").await.unwrap_err();
    });
    assert!(log.contains("done") && !log.contains(SECRET), "{log}");
}

#[test]
fn what_informers_read_by_is_not_logged_even_without_the_cap() {
    let log = logged(LevelFilter::TRACE, || async {
        let (client, _) = test_stack().answering(200, SECRET);
        let request = Request::get("/api/v1/secrets").body(Body::empty()).unwrap();
        client.send(request).await.unwrap().into_body().collect().await.unwrap();
    });
    assert!(log.contains("done") && !log.contains(SECRET), "{log}");
}

/// Why the cap is needed: if this fails, kube has learnt to be quiet and the cap may go.
#[test]
fn kube_itself_logs_what_it_cannot_decode() {
    let log = logged(LevelFilter::WARN, || async {
        let body = json!({"metadata": {"name": 1}, "data": {"password": SECRET}}).to_string();
        let (client, _) = test_stack().answering(200, &body);
        config_maps(client).get("a").await.unwrap_err();
    });
    assert!(log.contains(SECRET), "{log}");
}
