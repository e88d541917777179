//! Requests that only attackers send.

use super::*;

/// The head of a request for which the user `admin` gets 200.
const HIDDEN: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: admin\r\n\r\n";

/// Sends this text, and returns everything that the server answers.
async fn exchange(running: &Running, text: &str) -> String {
    let mut stream = running.connect().await;
    soon(stream.write_all(text.as_bytes())).await.unwrap();
    let mut answer = Vec::new();
    // The server may end without TLS's `close_notify`.
    drop(soon(stream.read_to_end(&mut answer)).await);
    String::from_utf8(answer).unwrap()
}

/// A proxy in front of the server could take the hidden request for a part of the body.
#[tokio::test]
async fn a_body_of_ambiguous_length_hides_no_request() {
    let running = Running::start(&Args::default(), Limits::default(), endpoints());
    for lengths in [
        "Content-Length: 0\r\nContent-Length: 70\r\n",
        "Content-Length: 0, 70\r\n",
        "Content-Length: +0\r\n",
        "Content-Length: -1\r\n",
        "Content-Length : 0\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    ] {
        let text = format!("POST /nothing HTTP/1.1\r\nHost: localhost\r\n{lengths}\r\n{HIDDEN}");
        let answer = exchange(&running, &text).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{lengths:?}: {answer}");
        assert!(!answer.contains(" 200 "), "{lengths:?}: {answer}");
    }
}

/// Returns the first message of a client that knows no later version than TLS 1.1.
fn obsolete_hello(version: [u8; 2]) -> Vec<u8> {
    let (random, session) = ([0; 32], [0]);
    let (suites, compressions) = ([0, 2, 0xc0, 0x13], [1, 0]);
    let body = [&version[..], &random, &session, &suites, &compressions].concat();
    let length = u8::try_from(body.len()).unwrap();
    [&[0x16, 3, 1, 0, length + 4, 1, 0, 0, length][..], &body].concat()
}

#[tokio::test]
async fn obsolete_versions_of_tls_are_rejected() {
    const ALERT: u8 = 21;
    const FATAL: u8 = 2;
    let running = Running::with(endpoints());
    let (tls_1_0, tls_1_1) = ([3, 1], [3, 2]);
    for version in [tls_1_0, tls_1_1] {
        let mut stream = soon(TcpStream::connect(running.address)).await.unwrap();
        soon(stream.write_all(&obsolete_hello(version))).await.unwrap();
        let mut answer = Vec::new();
        soon(stream.read_to_end(&mut answer)).await.unwrap();
        assert!(
            matches!(answer[..], [ALERT, 3, _, 0, 2, FATAL, _]),
            "{version:?}: {answer:?}"
        );
    }
}

/// A series for each path, method or client would let anybody take memory.
#[tokio::test]
async fn requests_add_no_series() {
    let running = Running::with(endpoints());
    let series = async || running.get("/metrics").await.body.lines().count();
    running.get("/livez").await;
    series().await;
    let before = series().await;
    for number in 0..30 {
        let (method, path) = (format!("M{number}"), format!("/nothing-{number}"));
        let agent = format!("User-Agent: client-{number}\r\n");
        running.request_with(&method, &path, &agent).await;
        running.request_with("GET", &format!("/livez?{number}"), &agent).await;
    }
    assert_eq!(series().await, before);
}
