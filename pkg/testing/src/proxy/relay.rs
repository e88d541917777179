//! One client connection, with its connection to the apiserver. It forwards each request or
//! responds to it, as the rules say.
//!
//! Bodies are streamed and never buffered as a whole. A request is dropped if its sender gives up
//! while the proxy holds it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::future::poll_fn;
use futures::stream;
use http::header::CONTENT_LENGTH;
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{client, server};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::body_fault::{Body, Broken, HealSignal, apply_fault, broken};
use super::canned::CannedResponse;
use super::fault::{BodyFault, Fault};
use super::link::{FaultStream, LinkMode, LinkState, delayed};
use super::rules::{Rules, in_pages_of, is_watch};

/// The maximum number of delayed parts of a watch. The apiserver writes one event at a time;
/// further events wait in its socket.
const PARTS: usize = 256;

type Sender = client::conn::http1::SendRequest<Incoming>;

/// The state that all connections share.
pub(crate) struct Relay {
    pub(crate) link: watch::Sender<LinkState>,
    pub(crate) rules: watch::Sender<Rules>,
    pub(crate) acceptor: TlsAcceptor,
    pub(crate) connector: TlsConnector,
    pub(crate) apiserver: SocketAddr,
}

impl Relay {
    /// Serves a client until it, the apiserver or a cut ends the connection. The connection was
    /// opened after `born` cuts.
    pub(crate) async fn serve(&self, client: TcpStream, born: u64) -> Result<()> {
        let mut link = self.link.subscribe();
        let client = FaultStream::new(client, link.clone(), born)?;
        let cut = async move {
            let _ = link.wait_for(|link| link.cuts != born).await;
        };
        // Both sockets are dropped when either future ends.
        tokio::select! {
            biased;
            () = cut => Ok(()),
            ended = self.connect(client, born) => ended,
        }
    }

    async fn connect(&self, client: FaultStream, born: u64) -> Result<()> {
        let mut link = self.link.subscribe();
        // In a black hole, the client must not even see a refusal.
        link.wait_for(|link| link.mode != LinkMode::BlackHole).await?;
        let apiserver = TcpStream::connect(self.apiserver)
            .await
            .context("failed to connect to the apiserver")?;
        let mut client = self
            .acceptor
            .accept(client)
            .await
            .context("failed to shake hands with the client")?;
        client.get_mut().0.write_answers();
        let name = ServerName::IpAddress(self.apiserver.ip().into());
        let apiserver = self
            .connector
            .connect(name, FaultStream::new(apiserver, link, born)?)
            .await
            .context("failed to shake hands with the apiserver")?;
        let (sender, upstream) = client::conn::http1::handshake(TokioIo::new(apiserver)).await?;

        let sender = Mutex::new(sender);
        let service = service_fn(|request| self.answer(&sender, request));
        let mut downstream = pin!(server::conn::http1::Builder::new().serve_connection(TokioIo::new(client), service));
        tokio::select! {
            ended = &mut downstream => return ended.context("failed to serve the client"),
            // Still forward the received part of its last response.
            _ = upstream => downstream.as_mut().graceful_shutdown(),
        }
        downstream.await.context("the apiserver ended the connection")
    }

    async fn answer(&self, sender: &Mutex<Sender>, request: Request<Incoming>) -> Result<Response<Body>, Broken> {
        let arrival = Instant::now();
        let (mut head, body) = request.into_parts();
        let mut decision = None;
        self.rules.send_modify(|rules| decision = rules.decide(&head));
        let decision = decision.map(|(rule, fault)| (fault, HealSignal::of(rule, &self.rules)));
        delayed(self.link.subscribe(), arrival).await;
        // On a slow link, the fault may be healed before the request arrives.
        let decision = decision.filter(|(_, heal_signal)| !heal_signal.is_healed());
        match decision {
            Some((Fault::Respond(canned), _)) => return answer_with(&canned, body).await,
            Some((Fault::Cut, _)) => return Err(broken()),
            Some((Fault::BlackHole, heal_signal)) => {
                heal_signal.healed().await;
                return Err(broken());
            }
            Some((Fault::DelayRequest(delay), _)) => sleep(delay).await,
            Some((Fault::LimitPageSize(count), _)) => {
                if let Some(smaller) = in_pages_of(count, &head) {
                    head.uri = smaller.into();
                }
            }
            _ => {}
        }
        let is_watch = is_watch(&head);
        poll_fn(|ctx| sender.lock().poll_ready(ctx)).await?;
        let answer = sender.lock().send_request(Request::from_parts(head, body));
        let mut answer = answer.await?;
        match decision {
            Some((Fault::DropResponse, _)) => return Err(broken()),
            Some((Fault::Body(how), heal_signal)) => {
                if matches!(how, BodyFault::TruncateAt(_)) {
                    // Otherwise the early end would count as a broken connection.
                    answer.headers_mut().remove(CONTENT_LENGTH);
                }
                return Ok(answer.map(|body| apply_fault(body, how, heal_signal)));
            }
            _ => {}
        }
        let lag = match decision {
            Some((Fault::DelayResponse(lag), _)) => Some(lag),
            _ => None,
        };
        Ok(answer.map(|body| {
            if lag.is_some() || is_watch {
                in_parts(body, self.link.subscribe(), lag.unwrap_or_default())
            } else {
                body.map_err(Broken::from).boxed_unsync()
            }
        }))
    }
}

async fn answer_with(canned: &CannedResponse, mut body: Incoming) -> Result<Response<Body>, Broken> {
    // Read the request first. A client that is still writing could see the connection break before
    // the response.
    while let Some(part) = body.frame().await {
        part?;
    }
    let never = |never: Infallible| match never {};
    Ok(canned.response().map(|body| body.map_err(never).boxed_unsync()))
}

/// Returns a body whose parts are each delayed by `lag` and then by the link's delay. The delays of
/// several parts do not add up.
fn in_parts(body: Incoming, link: watch::Receiver<LinkState>, lag: Duration) -> Body {
    struct Parts {
        body: Incoming,
        is_ended: bool,
        under_way: VecDeque<(Instant, hyper::Result<Frame<Bytes>>)>,
    }
    let parts = Parts {
        body,
        is_ended: false,
        under_way: VecDeque::new(),
    };
    let next = move |mut parts: Parts| {
        let link = link.clone();
        async move {
            loop {
                let first = parts.under_way.front().map(|(arrival, _)| *arrival);
                tokio::select! {
                    biased;
                    () = delayed(link.clone(), first.unwrap_or_else(Instant::now)), if first.is_some() => {
                        let (_, part) = parts.under_way.pop_front()?;
                        return Some((part.map_err(Broken::from), parts));
                    }
                    part = parts.body.frame(), if !parts.is_ended && parts.under_way.len() < PARTS => match part {
                        Some(part) => parts.under_way.push_back((Instant::now() + lag, part)),
                        None => parts.is_ended = true,
                    },
                    else => return None,
                }
            }
        }
    };
    StreamBody::new(stream::unfold(parts, next)).boxed_unsync()
}
