//! Free TCP ports on the loopback interface.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

use anyhow::{Context, Result};

/// A range below the kernel's ephemeral ports. A client that keeps dialling a stopped server on an
/// ephemeral port eventually gets that port as its source, connects to itself, and blocks the
/// server's restart.
const PORTS: Range<u16> = 20_000..30_000;
const ATTEMPTS: usize = 100;

/// Returns a port on 127.0.0.1 on which no process listens.
///
/// Another process may take it before it is used, so a caller that starts a server must be able to
/// retry with another port.
///
/// # Errors
/// Returns an error if 100 random ports in a row are taken.
pub fn free_port() -> Result<u16> {
    (0..ATTEMPTS)
        .map(|_| fastrand::u16(PORTS))
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .with_context(|| format!("found no free port on 127.0.0.1 among {ATTEMPTS} of {PORTS:?}"))
}
