//! Tests of misbehaving clients, too many clients, and the shutdown.

use super::*;

const SHORT: Duration = Duration::from_millis(50);

fn slots(connections: usize) -> Limits {
    Limits {
        connections,
        ..Limits::default()
    }
}

/// Starts a server that allows every path and has the route of a gate.
fn start_with_gate(limits: Limits) -> (Gate, Running) {
    let (gate, extra_routes) = Gate::new();
    let endpoints = HttpEndpoints {
        extra_routes,
        ..endpoints()
    };
    (gate, Running::start(&allow_paths("/*"), limits, endpoints))
}

/// Waits until the server has closed this connection, and returns whether it sent no data.
async fn closed(stream: &mut (impl AsyncReadExt + Unpin)) -> bool {
    let mut received = Vec::new();
    // A reset or an end without TLS's `close_notify` also counts as closed.
    _ = soon(stream.read_to_end(&mut received)).await;
    received.is_empty()
}

async fn send_wait_request(running: &Running) -> TlsStream<TcpStream> {
    let mut stream = running.connect().await;
    soon(stream.write_all(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n"))
        .await
        .unwrap();
    stream
}

#[tokio::test]
async fn client_without_a_handshake_does_not_block_others() {
    let running = Running::with(endpoints());
    let _silent = soon(TcpStream::connect(running.address)).await.unwrap();
    let mut noisy = soon(TcpStream::connect(running.address)).await.unwrap();
    soon(noisy.write_all(b"GET /livez HTTP/1.1\r\n\r\n")).await.unwrap();
    assert_eq!(running.get("/livez").await.status(), "200");
}

#[tokio::test]
async fn handshake_has_a_time_limit() {
    let limits = Limits {
        handshake: SHORT,
        ..Limits::default()
    };
    let running = Running::start(&Args::default(), limits, endpoints());
    let mut silent = soon(TcpStream::connect(running.address)).await.unwrap();
    assert!(closed(&mut silent).await);
}

#[tokio::test]
async fn request_head_has_a_time_limit() {
    let limits = Limits {
        headers: SHORT,
        ..Limits::default()
    };
    let running = Running::start(&Args::default(), limits, endpoints());
    let mut slow = running.connect().await;
    soon(slow.write_all(b"GET /livez HTTP/1.1\r\nHo")).await.unwrap();
    assert!(closed(&mut slow).await);
}

#[tokio::test]
async fn response_has_a_time_limit() {
    let limits = Limits {
        request: SHORT,
        ..Limits::default()
    };
    let (mut gate, running) = start_with_gate(limits);
    let reply = running.get("/wait").await;
    soon(gate.started.recv()).await.unwrap();
    assert_eq!(reply.show(), "504 The request took too long\n");
}

#[tokio::test]
async fn longest_unused_connection_is_evicted() {
    let limits = Limits {
        eviction_grace: SHORT,
        ..slots(2)
    };
    let running = Running::start(&Args::default(), limits, endpoints());
    let mut oldest = soon(TcpStream::connect(running.address)).await.unwrap();
    let mut second = running.connect().await;
    assert_eq!(running.get("/livez").await.status(), "200");
    assert!(closed(&mut oldest).await);
    // The newer connection was not evicted and is still served.
    soon(second.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
        .await
        .unwrap();
    assert_eq!(Reply::read(second).await.status(), "200");
}

#[tokio::test]
async fn active_request_keeps_its_slot_while_others_wait() {
    let (mut gate, mut running) = start_with_gate(slots(2));
    let first = send_wait_request(&running).await;
    let second = send_wait_request(&running).await;
    for _ in 0..2 {
        soon(gate.started.recv()).await.unwrap();
    }
    // Active requests hold both slots, so the third request gets its response only after one of
    // them.
    let (third, ()) = tokio::join!(running.get("/livez"), async {
        assert!(gate.started.try_recv().is_err());
        gate.release.add_permits(1);
    });
    assert_eq!(third.status(), "200");
    gate.release.add_permits(1);
    running.stop.cancel();
    running.stopped().await.unwrap();
    drop((first, second));
}

#[tokio::test]
async fn open_connections_never_exceed_the_slots() {
    // With a long grace period, no connection is evicted on a slow machine.
    let limits = Limits {
        eviction_grace: Duration::from_mins(1),
        ..slots(2)
    };
    let (mut gate, running) = start_with_gate(limits);
    let clients = async {
        tokio::join!(
            running.get("/wait"),
            running.get("/wait"),
            running.get("/wait"),
            running.get("/wait")
        )
    };
    let rounds = async {
        for _ in 0..2 {
            soon(gate.started.recv()).await.unwrap();
        }
        for _ in 0..2 {
            assert!(gate.started.try_recv().is_err(), "a third request was accepted");
            gate.release.add_permits(1);
            soon(gate.started.recv()).await.unwrap();
        }
        gate.release.add_permits(2);
    };
    let ((a, b, c, d), ()) = tokio::join!(clients, rounds);
    for reply in [a, b, c, d] {
        assert_eq!(reply.show(), "200 waited");
    }
}

#[tokio::test]
async fn stopping_finishes_active_requests_and_accepts_no_more() {
    let limits = Limits {
        first_request: Duration::ZERO,
        ..Limits::default()
    };
    let (mut gate, mut running) = start_with_gate(limits);
    let waiting = send_wait_request(&running).await;
    let mut unused = running.connect().await;
    let mut silent = soon(TcpStream::connect(running.address)).await.unwrap();
    soon(gate.started.recv()).await.unwrap();

    running.stop.cancel();
    assert!(closed(&mut unused).await && closed(&mut silent).await);
    soon(async { while TcpStream::connect(running.address).await.is_ok() {} }).await;
    assert!(
        running.task.try_join_next().is_none(),
        "the server must wait for the request"
    );

    gate.release.add_permits(1);
    let reply = Reply::read(waiting).await;
    assert_eq!(reply.show(), "200 waited");
    assert!(reply.head.contains("connection: close"), "{}", reply.head);
    running.stopped().await.unwrap();
}

#[tokio::test]
async fn stopping_waits_for_the_first_request_of_new_connections() {
    let mut running = Running::with(endpoints());
    let mut clients = vec![running.connect().await];
    let connected = soon(TcpStream::connect(running.address)).await.unwrap();
    running.stop.cancel();
    clients.push(
        Running::handshake(connected, running.certificate.clone())
            .await
            .unwrap(),
    );
    for mut client in clients {
        soon(client.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"))
            .await
            .unwrap();
        assert_eq!(Reply::read(client).await.status(), "200");
    }
    running.stopped().await.unwrap();
}

#[tokio::test]
async fn stopping_respects_the_drain_limit() {
    let limits = Limits {
        drain: SHORT,
        ..Limits::default()
    };
    let (mut gate, mut running) = start_with_gate(limits);
    let mut waiting = send_wait_request(&running).await;
    soon(gate.started.recv()).await.unwrap();
    running.stop.cancel();
    running.stopped().await.unwrap();
    assert!(closed(&mut waiting).await);
}

#[tokio::test]
async fn stopping_before_the_first_client_ends_immediately() {
    let mut running = Running::with(endpoints());
    running.stop.cancel();
    running.stopped().await.unwrap();
}

#[tokio::test]
async fn requests_that_wait_for_their_admission_do_not_block_others() {
    let running = Running::start(&Args::default(), slots(2), endpoints());
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let mut stream = running.connect().await;
        let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: waiting\r\n\r\n";
        soon(stream.write_all(request)).await.unwrap();
        waiting.push(stream);
    }
    assert_eq!(running.get("/livez").await.status(), "200");
    assert!(closed(&mut waiting[0]).await, "the oldest is evicted");
}

#[tokio::test]
async fn a_request_that_waits_for_its_admission_is_evicted_after_silent_clients() {
    let running = Running::start(&Args::default(), slots(2), endpoints());
    let mut waiting = running.connect().await;
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: waiting\r\n\r\n";
    soon(waiting.write_all(request)).await.unwrap();
    for _ in 0..3 {
        let mut silent = soon(TcpStream::connect(running.address)).await.unwrap();
        assert_eq!(running.get("/livez").await.status(), "200");
        assert!(closed(&mut silent).await);
    }
    let end = tokio::time::timeout(SHORT, waiting.read_u8());
    assert!(end.await.is_err(), "it was evicted before the silent clients");
}

#[tokio::test]
async fn a_client_with_known_credentials_is_not_evicted() {
    let running = Running::start(&Args::default(), slots(3), endpoints());
    let mut clients = Vec::new();
    for name in ["known", "waiting"] {
        let mut stream = running.connect().await;
        let request = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: {name}\r\n\r\n");
        soon(stream.write_all(request.as_bytes())).await.unwrap();
        clients.push(stream);
    }
    for _ in 0..2 {
        let mut stranger = running.connect().await;
        let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: waiting\r\n\r\n";
        soon(stranger.write_all(request)).await.unwrap();
        clients.push(stranger);
    }
    assert!(closed(&mut clients[1]).await, "the oldest stranger is evicted");
    let end = tokio::time::timeout(SHORT, clients[0].read_u8());
    assert!(end.await.is_err(), "the known client was evicted");
}

/// Handshakes take the processor time of one thread. Each connection that is evicted during its
/// handshake would come back.
#[tokio::test]
async fn a_flood_of_reconnecting_clients_does_not_end_handshakes() {
    let running = Running::start(&Args::default(), slots(4), endpoints());
    let flood = async {
        let clients = (0..64).map(|_| async {
            loop {
                let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: stranger\r\n\r\n";
                if let Ok(connected) = TcpStream::connect(running.address).await
                    && let Ok(mut stream) = Running::handshake(connected, running.certificate.clone()).await
                    && stream.write_all(request).await.is_ok()
                {
                    _ = stream.read_to_end(&mut Vec::new()).await;
                }
            }
        });
        futures::future::join_all(clients).await
    };
    // A client that a busy machine holds up for 40 ms is evicted, so it tries again.
    let get = async || {
        let mut text = String::new();
        let connected = TcpStream::connect(running.address).await.ok()?;
        let mut stream = Running::handshake(connected, running.certificate.clone()).await.ok()?;
        let request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.ok()?;
        stream.read_to_string(&mut text).await.ok()?;
        Some(text)
    };
    let scraper = async {
        for number in 0..10 {
            let mut answer = get().await;
            for _ in 0..2 {
                if answer.is_none() {
                    answer = get().await;
                }
            }
            let is_served = answer.as_ref().is_some_and(|text| text.starts_with("HTTP/1.1 200"));
            assert!(is_served, "request {number}: {answer:?}");
        }
    };
    tokio::select! {
        _ = flood => {}
        () = scraper => {}
    }
}
