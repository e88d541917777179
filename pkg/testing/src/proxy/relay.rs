//! One client connection, with its connection to the apiserver. It forwards each request or
//! responds to it itself, as the rules decide.
//!
//! Bodies are streamed and not buffered as a whole, and a request is dropped if its sender gives up
//! while the proxy holds it. The requests that a fault forwards late are the exception.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::future::poll_fn;
use futures::stream;
use http::header::{CONTENT_LENGTH, DATE};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Either, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{client, server};
use hyper_util::rt::TokioIo;
use jiff::fmt::rfc2822::{DateTimeParser, DateTimePrinter};
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
use super::rules::{Rules, is_watch, with_page_size};

/// The maximum number of delayed parts of a watch. The apiserver writes one event at a time;
/// further events wait in its socket.
const MAX_PARTS: usize = 256;

type ForwardedRequest = Request<Either<Incoming, Full<Bytes>>>;
type Sender = client::conn::http1::SendRequest<Either<Incoming, Full<Bytes>>>;

/// The connection to the apiserver that belongs to one client connection.
struct Upstream {
    sender: Mutex<Sender>,
    /// The request to forward once its fault is healed.
    late: Mutex<Option<(ForwardedRequest, HealSignal)>>,
}

/// The state that all connections share.
pub(crate) struct Relay {
    pub(crate) link: watch::Sender<LinkState>,
    pub(crate) rules: watch::Sender<Rules>,
    pub(crate) acceptor: watch::Sender<TlsAcceptor>,
    pub(crate) connector: TlsConnector,
    pub(crate) apiserver: SocketAddr,
}

impl Relay {
    /// Serves a client until the client, the apiserver or a cut ends the connection. `born_after`
    /// is the number of cuts before the connection was opened.
    pub(crate) async fn serve(&self, client: TcpStream, born_after: u64) -> Result<()> {
        let mut link = self.link.subscribe();
        let client = FaultStream::new(client, link.clone(), born_after)?.with_wire_delay();
        let cut = async move {
            let _ = link.wait_for(|link| link.cuts != born_after).await;
        };
        // Both sockets are dropped when either future ends.
        tokio::select! {
            biased;
            () = cut => Ok(()),
            ended = self.connect(client, born_after) => ended,
        }
    }

    async fn connect(&self, client: FaultStream, born_after: u64) -> Result<()> {
        let mut link = self.link.subscribe();
        // In a black hole, the client must not even see that the apiserver refuses connections.
        link.wait_for(|link| link.mode != LinkMode::BlackHole).await?;
        let apiserver = TcpStream::connect(self.apiserver)
            .await
            .context("failed to connect to the apiserver")?;
        let acceptor = self.acceptor.borrow().clone();
        let mut client = acceptor
            .accept(client)
            .await
            .context("failed to shake hands with the client")?;
        client.get_mut().0.start_responses();
        let name = ServerName::IpAddress(self.apiserver.ip().into());
        let apiserver = self
            .connector
            .connect(name, FaultStream::new(apiserver, link, born_after)?)
            .await
            .context("failed to shake hands with the apiserver")?;
        let (sender, connection) = client::conn::http1::handshake(TokioIo::new(apiserver)).await?;
        let mut connection = pin!(connection);
        let upstream = Upstream {
            sender: Mutex::new(sender),
            late: Mutex::default(),
        };
        let ended = {
            let service = service_fn(|request| self.respond(&upstream, request));
            let server = server::conn::http1::Builder::new();
            let mut downstream = pin!(server.serve_connection(TokioIo::new(client), service));
            tokio::select! {
                ended = &mut downstream => ended,
                // Forward what the apiserver has sent of its last response.
                _ = &mut connection => {
                    downstream.as_mut().graceful_shutdown();
                    return downstream.await.context("the apiserver ended the connection");
                }
            }
        };
        // The client's connection is closed now.
        if let Some((request, heal_signal)) = upstream.late.into_inner() {
            heal_signal.healed().await;
            let response = upstream.sender.into_inner().send_request(request);
            tokio::select! {
                response = response => drop(response.context("failed to forward a late request")?),
                _ = connection => {}
            }
        }
        ended.context("failed to serve the client")
    }

    async fn respond(&self, upstream: &Upstream, request: Request<Incoming>) -> Result<Response<Body>, Broken> {
        let arrival = Instant::now();
        let (mut head, body) = request.into_parts();
        let mut decision = None;
        self.rules.send_modify(|rules| decision = rules.decide(&head));
        let decision = decision.map(|(rule, fault)| (fault, HealSignal::of(rule, &self.rules)));
        delayed(self.link.subscribe(), arrival).await;
        // On a slow link, the fault may be healed before the request arrives.
        let decision = decision.filter(|(_, heal_signal)| !heal_signal.is_healed());
        match decision {
            Some((Fault::Respond(canned), _)) => return send_canned(&canned, body).await,
            Some((Fault::Cut, _)) => return Err(broken()),
            Some((Fault::BlackHole, heal_signal)) => {
                heal_signal.healed().await;
                return Err(broken());
            }
            Some((Fault::ForwardLate, heal_signal)) => {
                let body = body.collect().await?.to_bytes();
                let request = Request::from_parts(head, Either::Right(Full::new(body)));
                *upstream.late.lock() = Some((request, heal_signal));
                return Err(broken());
            }
            Some((Fault::DelayRequest(delay), _)) => sleep(delay).await,
            Some((Fault::LimitPageSize(count), _)) => {
                if let Some(smaller) = with_page_size(count, &head) {
                    head.uri = smaller.into();
                }
            }
            _ => {}
        }
        let is_watch = is_watch(&head);
        poll_fn(|ctx| upstream.sender.lock().poll_ready(ctx)).await?;
        let request = Request::from_parts(head, Either::Left(body));
        let response = upstream.sender.lock().send_request(request);
        let mut response = response.await?;
        match decision {
            Some((Fault::DropResponse, _)) => return Err(broken()),
            Some((Fault::LaterDate(by), _)) => shift_date(response.headers_mut(), by)?,
            Some((Fault::Body(how), heal_signal)) => {
                if matches!(how, BodyFault::TruncateAt(_)) {
                    // Otherwise the early end would count as a broken connection.
                    response.headers_mut().remove(CONTENT_LENGTH);
                }
                return Ok(response.map(|body| apply_fault(body, how, heal_signal)));
            }
            _ => {}
        }
        let delay = match decision {
            Some((Fault::DelayResponse(delay), _)) => Some(delay),
            _ => None,
        };
        Ok(response.map(|body| {
            if delay.is_some() || is_watch {
                in_parts(body, self.link.subscribe(), delay.unwrap_or_default())
            } else {
                body.map_err(Broken::from).boxed_unsync()
            }
        }))
    }
}

/// Makes the `Date` of a response later.
fn shift_date(headers: &mut HeaderMap, by: Duration) -> Result<(), Broken> {
    let date = headers.get(DATE).ok_or_else(broken)?;
    let date = DateTimeParser::new().parse_timestamp(date).map_err(|_| broken())?;
    let later = DateTimePrinter::new().timestamp_to_rfc9110_string(&(date + by));
    let later = later.map_err(|_| broken())?.try_into().map_err(|_| broken())?;
    headers.insert(DATE, later);
    Ok(())
}

async fn send_canned(canned: &CannedResponse, mut body: Incoming) -> Result<Response<Body>, Broken> {
    // Read the request first. A client that is still writing could see the connection break before
    // the response.
    while let Some(part) = body.frame().await {
        part?;
    }
    let infallible = |infallible: Infallible| match infallible {};
    Ok(canned.response().map(|body| body.map_err(infallible).boxed_unsync()))
}

/// Returns a body whose parts are each delayed by `delay` and then by the link's delay. The delays
/// of several parts do not add up.
fn in_parts(body: Incoming, link: watch::Receiver<LinkState>, delay: Duration) -> Body {
    struct Parts {
        body: Incoming,
        is_ended: bool,
        in_flight: VecDeque<(Instant, hyper::Result<Frame<Bytes>>)>,
    }
    let parts = Parts {
        body,
        is_ended: false,
        in_flight: VecDeque::new(),
    };
    let next = move |mut parts: Parts| {
        let link = link.clone();
        async move {
            loop {
                let first = parts.in_flight.front().map(|(arrival, _)| *arrival);
                tokio::select! {
                    biased;
                    () = delayed(link.clone(), first.unwrap_or_else(Instant::now)), if first.is_some() => {
                        let (_, part) = parts.in_flight.pop_front()?;
                        return Some((part.map_err(Broken::from), parts));
                    }
                    part = parts.body.frame(), if !parts.is_ended && parts.in_flight.len() < MAX_PARTS => match part {
                        Some(part) => parts.in_flight.push_back((Instant::now() + delay, part)),
                        None => parts.is_ended = true,
                    },
                    else => return None,
                }
            }
        }
    };
    StreamBody::new(stream::unfold(parts, next)).boxed_unsync()
}
