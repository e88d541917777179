//! Turns the command line of `portreeve testenv` into that of a daemon, and runs it.

use std::ffi::{OsStr, OsString};

use clap::{ArgMatches, ValueEnum, parser::ValueSource};
use portreeve_manager::selection::Selection;
use portreeve_reconcile::Descriptor;
use tracing_appender::non_blocking::WorkerGuard;

use crate::{
    error::Error as DaemonError,
    options::Config,
    run,
    testenv::{Error, ReadyFile, Settings},
    testenv_options::{Args, NAME},
};

/// The settings that differ from the daemon's. Its listener is opened separately.
const SETTINGS: [&str; 5] = [
    "--leader-elect=false",
    "--retry-qps=0",
    "--controller-shutdown-timeout=500ms",
    "--secure-port=0",
    "--bind-address=127.0.0.1",
];
/// What everybody on this machine may read. The apiserver decides on everything else.
const OPEN: &str = "--authorization-always-allow-paths=\
                    /healthz,/livez,/readyz,/readyz/*,/metrics,/settled,/debug/controllers,/debug/controllers/*";
/// The flag of the time for which other apiservers may accept objects in a deleted namespace. An
/// apiserver for tests has no others.
const GRACE: &str = "namespace-deletion-grace";

/// Runs the controllers until standard input is closed or a signal arrives.
pub(crate) fn execute(
    args: &Args,
    flags: &ArgMatches,
    known: &[Descriptor],
    log: &mut Option<WorkerGuard>,
) -> Result<(), DaemonError> {
    let own = own(known);
    check_controllers(&args.controllers, &own).map_err(DaemonError::Testenv)?;
    // The flags are those of this command.
    let flags = flags.subcommand_matches(NAME).unwrap_or(flags);
    let config = Config::parse(command_line(args, flags, &own), &own).map_err(DaemonError::TestenvFlags)?;
    let ready_file = args.ready_file.as_deref().map(ReadyFile::create).transpose();
    let settings = Settings {
        port: args.port,
        allow_remote: args.allow_remote,
        ready_file: ready_file.map_err(DaemonError::Testenv)?,
    };
    match run::until_ended(config, own, Some(settings), log) {
        // What was in progress may be cut off: nobody takes over.
        Err(DaemonError::Manager(portreeve_manager::Error::DrainTimeout { .. })) => Ok(()),
        ended => ended,
    }
}

/// Returns the controllers of the command, which are on by default in it.
fn own(known: &[Descriptor]) -> Vec<Descriptor> {
    let own = known.iter().filter(|descriptor| descriptor.in_testenv);
    let on = |descriptor: &Descriptor| Descriptor {
        on_by_default: true,
        ..*descriptor
    };
    own.map(on).collect()
}

fn check_controllers(items: &[String], own: &[Descriptor]) -> Result<(), Error> {
    let Err(unknown) = Selection::parse(items, own) else {
        return Ok(());
    };
    let known: Vec<_> = own.iter().map(|descriptor| descriptor.name).collect();
    Err(Error::Controllers {
        unknown: unknown.names().collect::<Vec<_>>().join(", "),
        known: known.join(", "),
    })
}

/// Returns the command line of a daemon with the settings of this command.
fn command_line(args: &Args, flags: &ArgMatches, own: &[Descriptor]) -> Vec<OsString> {
    let flag = |name: &str, value: &dyn AsRef<OsStr>| {
        let mut flag = OsString::from(format!("--{name}="));
        flag.push(value);
        flag
    };
    let mut line = vec![OsString::from("portreeve"), OPEN.into()];
    line.extend(SETTINGS.map(OsString::from));
    line.push(flag("kubeconfig", &args.kubeconfig));
    line.push(flag("controllers", &args.controllers.join(",")));
    line.push(flag("v", &args.logging.v.to_string()));
    let format = args.logging.logging_format.to_possible_value();
    line.extend(format.map(|format| flag("logging-format", &format.get_name())));
    for arg in own.iter().flat_map(|descriptor| (descriptor.flags)()) {
        let (id, Some(name)) = (arg.get_id().as_str(), arg.get_long()) else {
            continue;
        };
        if flags.value_source(id) == Some(ValueSource::CommandLine) {
            let values: Vec<_> = flags.get_raw(id).into_iter().flatten().collect();
            line.push(flag(name, &values.join(OsStr::new(","))));
        } else if name == GRACE {
            line.push(flag(name, &"0s"));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use portreeve_cli::CONTROLLERS;

    use super::*;
    use crate::options::Command;

    /// Returns the daemon's command line for these flags.
    fn line(flags: &[&str]) -> Result<String, String> {
        let arguments = ["portreeve", "testenv", "--kubeconfig=/k"];
        let config = Config::parse(arguments.iter().chain(flags), CONTROLLERS).map_err(|error| error.to_string())?;
        let Some(Command::Testenv(args)) = &config.options.command else {
            return Err("another command".to_owned());
        };
        let own = own(CONTROLLERS);
        check_controllers(&args.controllers, &own).map_err(|error| error.to_string())?;
        let line = command_line(args, config.flags.subcommand_matches(NAME).unwrap(), &own);
        let config = Config::parse(&line, &own).map_err(|error| error.to_string())?;
        let enabled = config.enabled(&own).map_err(|error| error.to_string())?;
        let names: Vec<_> = enabled.iter().map(|descriptor| descriptor.name).collect();
        let line: Vec<_> = line.iter().map(|arg| arg.to_string_lossy()).collect();
        Ok(format!("{}\n{}", line.join(" "), names.join(" ")))
    }

    #[test]
    fn all_controllers_that_a_control_plane_for_tests_lacks_run_without_a_grace() {
        let line = line(&[]).unwrap();
        for words in [
            "--leader-elect=false",
            "--retry-qps=0",
            "--namespace-deletion-grace=0s",
            "--kubeconfig=/k",
            "cronjob-controller",
            "garbage-collector-controller",
            "namespace-controller",
            "ttl-after-finished-controller",
        ] {
            assert!(line.contains(words), "{words}: {line}");
        }
        assert!(!line.contains("foo-controller"), "{line}");
    }

    #[test]
    fn controllers_can_be_left_out_and_keep_their_flags() {
        let line = line(&[
            "--controllers=*,-cronjob,-ttl-after-finished",
            "--namespace-deletion-grace=2s",
            "--gc-ignore-resources=pods,events",
            "-v=4",
        ])
        .unwrap();
        let (flags, names) = line.split_once('\n').unwrap();
        assert!(flags.contains("--namespace-deletion-grace=2s"), "{flags}");
        assert!(
            flags.contains("--gc-ignore-resources=pods,events --") || flags.ends_with("pods,events"),
            "{flags}"
        );
        assert!(flags.contains("--v=4"), "{flags}");
        assert!(
            names.contains("namespace-controller") && !names.contains("cronjob"),
            "{names}"
        );
    }

    #[test]
    fn names_of_other_controllers_are_errors_that_list_its_own() {
        let error = line(&["--controllers=foo,gone"]).unwrap_err();
        assert!(
            error.starts_with("unknown controllers in --controllers: foo, gone; testenv runs "),
            "{error}"
        );
        assert!(error.contains("namespace-controller"), "{error}");
        let error = line(&["--concurrent-foo-syncs=1"]).unwrap_err();
        assert!(error.contains("--concurrent-foo-syncs"), "{error}");
    }
}
