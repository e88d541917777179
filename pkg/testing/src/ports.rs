//! Free TCP ports on the loopback interface.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};

/// A range below the kernel's ephemeral ports. A client that keeps dialling a stopped server on an
/// ephemeral port eventually gets that port as its source, connects to itself, and blocks the
/// server's restart.
const PORTS: Range<u16> = 20_000..30_000;
const ATTEMPTS: usize = 100;
/// The place of the next port in the range, which begins again at its end.
static NEXT: LazyLock<AtomicUsize> = LazyLock::new(|| AtomicUsize::new(fastrand::usize(..PORTS.len())));
/// The distance of two ports in succession. It has no factor in common with the length of the
/// range, so all ports are reached. Processes with the same one would try the same ports, one after
/// the other.
static STEP: LazyLock<usize> = LazyLock::new(|| 10 * fastrand::usize(..PORTS.len() / 10) + 3);

/// Returns a port on 127.0.0.1 on which no process listens. A process gets each port once, until it
/// has asked for 10,000.
///
/// Another process may take it before it is used, so a caller that starts a server must be able to
/// retry with another port.
///
/// # Errors
/// Returns an error if 100 ports in a row are taken.
pub fn free_port() -> Result<u16> {
    (0..ATTEMPTS)
        .filter_map(|_| {
            PORTS
                .clone()
                .nth(NEXT.fetch_add(*STEP, Ordering::Relaxed) % PORTS.len())
        })
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .with_context(|| format!("found no free port on 127.0.0.1 among {ATTEMPTS} of {PORTS:?}"))
}
