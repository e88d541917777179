//! Shows on stderr how far a command is: as a bar on a terminal, otherwise as a line every few
//! seconds.

use std::{
    cell::Cell,
    io::Write as _,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The time between two lines.
const INTERVAL: Duration = Duration::from_secs(5);
const TEMPLATE: &str = "{msg} [{bar:40}] {human_pos}/{human_len} {eta}";

/// Prints what was done. Whether anybody reads it does not matter.
pub(super) fn report(line: &str) {
    writeln!(std::io::stderr(), "{line}").ok();
}

/// The progress of one step.
pub(super) struct Progress {
    what: String,
    bar: ProgressBar,
    last_line: Cell<Instant>,
}

impl Progress {
    /// Begins a step, such as "migrating to v2".
    pub(super) fn new(what: &str, total: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        // The template is a constant.
        let style = ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style);
        bar.set_message(what.to_owned());
        if bar.is_hidden() {
            report(what);
        }
        Self {
            what: what.to_owned(),
            bar,
            last_line: Cell::new(Instant::now()),
        }
    }

    /// Corrects the total.
    pub(super) fn set_total(&self, total: u64) {
        self.bar.set_length(total);
    }

    /// Sets how much is done.
    pub(super) fn set(&self, done: u64) {
        self.bar.set_position(done);
        if self.bar.is_hidden() && self.last_line.get().elapsed() >= INTERVAL {
            self.last_line.set(Instant::now());
            let total = self.bar.length().unwrap_or_default();
            report(&format!("{}: {done}/{total}", self.what));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_valid() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
    }
}
