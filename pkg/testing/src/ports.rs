//! Free TCP ports on the loopback interface.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

use anyhow::{Context, Result};

/// Below the ports that the kernel hands out to clients. A client that keeps dialling a stopped server is sooner or later given the
/// very port that it dials, connects to itself, and the server cannot come back.
const PORTS: Range<u16> = 20_000..30_000;
const ATTEMPTS: usize = 100;

/// A port on 127.0.0.1 that nobody listens on now. Somebody else may take it before it is used: whoever starts a server must be
/// ready to try again with another one.
///
/// # Errors
/// When a hundred ports in a row are taken.
pub fn free_port() -> Result<u16> {
    (0..ATTEMPTS)
        .map(|_| fastrand::u16(PORTS))
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .with_context(|| format!("found no free port on 127.0.0.1 among {ATTEMPTS} of {PORTS:?}"))
}
