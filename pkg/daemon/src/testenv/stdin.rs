//! Notices that standard input is closed, which also happens when the parent process dies.

use std::{
    fs::File,
    future::pending,
    io::{self, Read},
    os::{fd::AsFd, unix::fs::FileTypeExt},
    thread,
};

use tokio::sync::oneshot;

/// Waits until the other end of standard input is closed. Never returns if it is no pipe and no
/// socket: a file, and /dev/null, is at its end from the start, and a terminal stops background
/// processes that read from it.
pub(crate) async fn closed() {
    let Some(input) = input() else {
        return pending().await;
    };
    let (end, ended) = oneshot::channel();
    // Not one of the runtime's threads, for which its end would wait. This thread ends with the
    // process.
    let reader = thread::Builder::new().name("stdin".to_owned());
    let reading = reader.spawn(move || {
        wait_for_end(input);
        // The receiver is gone if a signal came first.
        end.send(()).ok();
    });
    if let Err(error) = reading {
        tracing::warn!(%error, "failed to watch standard input; end this process with SIGTERM");
        return pending().await;
    }
    ended.await.ok();
}

/// Returns standard input, if it is a pipe or a socket.
fn input() -> Option<File> {
    let input = File::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
    let kind = input.metadata().ok()?.file_type();
    (kind.is_fifo() || kind.is_socket()).then_some(input)
}

fn wait_for_end(mut input: impl Read) {
    let mut ignored = [0; 1024];
    loop {
        match input.read(&mut ignored) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
