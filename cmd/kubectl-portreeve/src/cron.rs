//! `kubectl portreeve cron`: explains a schedule and prints its next runs, for authors of
//! schedules.

use clap::{Args, Subcommand, ValueEnum};
use jiff::{Timestamp, tz::TimeZone};
use portreeve_cron::{Dialect, DstPolicy, Schedule};

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    /// Print the next runs of a schedule, one RFC 3339 time per line, or `never` if there is none
    /// within five years
    Next(Next),
    /// Describe a schedule in a sentence
    Explain {
        #[command(flatten)]
        expression: Expression,
        /// The IANA name of the time zone, which the sentence then names
        #[arg(long, value_name = "ZONE", value_parser = zone)]
        tz: Option<TimeZone>,
    },
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Expression {
    /// The schedule: five fields, or a name such as @daily. H works as in a CronTab
    #[arg(value_name = "EXPR")]
    expression: String,
    /// The UID of the object, which determines the value of H
    #[arg(long, default_value = "")]
    uid: String,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Next {
    #[command(flatten)]
    expression: Expression,
    /// The IANA name of the time zone
    #[arg(long, value_name = "ZONE", default_value = "UTC", value_parser = zone)]
    tz: TimeZone,
    /// Print only runs after this time. Defaults to now
    #[arg(long, value_name = "RFC3339")]
    from: Option<Timestamp>,
    /// The number of runs to print
    #[arg(short, value_name = "N", default_value_t = 10)]
    n: u32,
    /// How to handle runs when the clock changes
    #[arg(long, value_name = "POLICY", default_value = "Once")]
    dst_policy: Policy,
    /// Print times in UTC rather than in the time zone
    #[arg(long)]
    utc: bool,
}

/// A [`DstPolicy`] with the names that a CronTab uses.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub(crate) enum Policy {
    /// Run once a day at a named hour, even if the clock skips or repeats it
    Once,
    /// Skip runs in a gap and repeat runs in an overlap, as CronJob does
    Kubernetes,
}

/// Accepts the names that the controllers accept. The apiserver rejects the empty one.
fn zone(name: &str) -> Result<TimeZone, portreeve_cron::Error> {
    if name.is_empty() {
        return Err(portreeve_cron::Error::Zone { name: name.to_owned() });
    }
    portreeve_cron::load_zone(name)
}

impl Expression {
    fn parse(&self) -> Result<Schedule, portreeve_cron::Error> {
        // TZ= is valid in a CronJob, H in a CronTab. This command accepts both.
        Schedule::parse(&self.expression, Dialect::CronTab { uid: &self.uid })
            .or_else(|error| Schedule::parse(&self.expression, Dialect::Kubernetes).map_err(|_| error))
    }
}

/// Returns the output of the command.
pub(crate) fn run(command: &Command, now: Timestamp) -> Result<String, portreeve_cron::Error> {
    match command {
        Command::Explain { expression, tz } => Ok(format!("{}\n", expression.parse()?.explain(tz.as_ref()))),
        Command::Next(next) => next.run(now),
    }
}

impl Next {
    fn run(&self, now: Timestamp) -> Result<String, portreeve_cron::Error> {
        let schedule = self.expression.parse()?;
        let policy = match self.dst_policy {
            Policy::Once => DstPolicy::Once,
            Policy::Kubernetes => DstPolicy::Kubernetes,
        };
        let mut at = self.from.unwrap_or(now);
        let mut lines = String::new();
        for _ in 0..self.n {
            let Some(next) = schedule.next(at, &self.tz, policy) else {
                break;
            };
            at = next;
            lines.push_str(&self.format_time(next));
            lines.push('\n');
        }
        if lines.is_empty() && self.n > 0 {
            lines.push_str("never\n");
        }
        Ok(lines)
    }

    fn format_time(&self, at: Timestamp) -> String {
        if self.utc || self.tz == TimeZone::UTC {
            return at.to_string();
        }
        at.to_zoned(self.tz.clone())
            .strftime("%Y-%m-%dT%H:%M:%S%:z")
            .to_string()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: Command,
    }

    fn output(arguments: &[&str]) -> String {
        let line = Line::try_parse_from(std::iter::once(&"cron").chain(arguments)).unwrap();
        let now = "2026-03-28T12:00:00Z".parse().unwrap();
        run(&line.command, now).unwrap_or_else(|error| error.to_string())
    }

    #[test]
    fn runs_are_printed_one_per_line() {
        let berlin = |more: &[&str]| output(&[&["next", "30 2 * * *", "--tz=Europe/Berlin", "-n=2"], more].concat());
        assert_eq!(berlin(&[]), "2026-03-29T03:00:00+02:00\n2026-03-30T02:30:00+02:00\n");
        assert_eq!(berlin(&["--utc"]), "2026-03-29T01:00:00Z\n2026-03-30T00:30:00Z\n");
        assert_eq!(
            berlin(&["--dst-policy=Kubernetes"]),
            "2026-03-30T02:30:00+02:00\n2026-03-31T02:30:00+02:00\n"
        );
        assert_eq!(
            output(&["next", "@daily", "--from=2026-01-01T00:00:00Z", "-n=1"]),
            "2026-01-02T00:00:00Z\n"
        );
        assert_eq!(output(&["next", "0 0 31 2 *"]), "never\n");
    }

    #[test]
    fn only_time_zones_that_the_controllers_accept_are_accepted() {
        for command in ["next", "explain"] {
            let parse = |zone: &str| {
                let tz = format!("--tz={zone}");
                Line::try_parse_from(["cron", command, "@daily", &tz])
            };
            for zone in ["UTC", "Europe/Berlin", "US/Central", "Etc/GMT+5"] {
                assert!(parse(zone).is_ok(), "{command} {zone}");
            }
            for zone in ["", "utc", "Europe/berlin", "Etc/Unknown", "Local", "Mars/Base"] {
                let error = parse(zone).err().map(|error| error.to_string()).unwrap_or_default();
                assert!(error.contains("unknown time zone"), "{command} {zone}: {error}");
            }
        }
    }

    #[test]
    fn schedule_is_explained_or_its_error_is_printed() {
        assert_eq!(output(&["explain", "*/5 * * * *"]), "Every 5 minutes, every day.\n");
        assert_eq!(
            output(&["explain", "60 * * * *"]),
            r#"invalid minute "60": must be from 0 to 59"#
        );
        assert_eq!(
            output(&["explain", "TZ=Asia/Tokyo @daily"]),
            "At 00:00, every day, in the time zone Asia/Tokyo.\n"
        );
        assert_eq!(
            output(&["explain", "@daily", "--tz=Europe/Berlin"]),
            "At 00:00, every day, in the time zone Europe/Berlin.\n"
        );
        assert_eq!(
            output(&["explain", "TZ=Asia/Tokyo @daily", "--tz=Europe/Berlin"]),
            "At 00:00, every day, in the time zone Asia/Tokyo.\n"
        );
    }
}
