//! The command line: help, version, lists and errors.

use std::net::TcpListener;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::fixtures::daemon::{printed, run};

/// Runs a command that must fail with a usage error, and returns its error output.
pub(crate) fn usage_error(args: &[&str]) -> Result<String> {
    let output = run(args)?;
    let error = String::from_utf8(output.stderr)?;
    ensure!(
        output.status.code() == Some(1),
        "{args:?} ended with {}: {error}",
        output.status
    );
    ensure!(output.stdout.is_empty(), "{args:?} printed to standard output");
    ensure!(!error.contains("panicked"), "{error}");
    Ok(error)
}

#[test]
fn help_groups_the_flags() -> Result<()> {
    let help = printed(&["--help"])?;
    let unindented = help.lines().filter(|line| !line.starts_with(' '));
    let headings: Vec<_> = unindented.filter_map(|line| line.strip_suffix(':')).collect();
    let mut expected = vec![
        "Commands",
        "Options",
        "Controllers",
        "Manager",
        "Leader election",
        "Apiserver",
        "Secure serving",
        "Authentication and authorization",
        "Admission webhooks",
        "Logs",
    ];
    let with_flags = portreeve_cli::CONTROLLERS
        .iter()
        .filter(|controller| !(controller.flags)().is_empty());
    expected.extend(with_flags.map(|controller| controller.name));
    ensure!(headings == expected, "{headings:?}");
    Ok(())
}

#[test]
fn the_version_flag_prints_the_version() -> Result<()> {
    let version = printed(&["--version"])?;
    ensure!(
        version == format!("portreeve v{}\n", env!("CARGO_PKG_VERSION")),
        "{version}"
    );
    Ok(())
}

#[test]
fn list_controllers_prints_a_table_or_json() -> Result<()> {
    let table = printed(&["--list-controllers"])?;
    let mut rows = table.lines().map(str::split_whitespace);
    ensure!(rows.any(|row| row.eq(["foo-controller", "foo", "on"])), "{table}");
    let list: Vec<Value> = serde_json::from_str(&printed(&["--list-controllers", "-o", "json"])?)?;
    ensure!(
        list.contains(&json!({"name": "foo-controller", "aliases": ["foo"], "onByDefault": true})),
        "{list:?}"
    );
    Ok(())
}

/// Checks that the error of a command has these words.
fn check(args: &[&str], words: &[&str]) -> Result<()> {
    let error = usage_error(args)?;
    for word in words {
        ensure!(error.contains(word), "the error of {args:?} lacks {word:?}: {error}");
    }
    Ok(())
}

#[test]
fn commands_of_the_plugin_name_it() -> Result<()> {
    for command in [
        &["validate", "-"][..],
        &["conversion", "enable", "--url=https://a"],
        &["migrate", "--to", "v1"],
        &["cron", "next", "0 * * * *"],
    ] {
        let output = run(command)?;
        let error = String::from_utf8(output.stderr)?;
        let name = command[0];
        ensure!(
            output.status.code() == Some(1) && error.contains(&format!("`kubectl portreeve {name}`")),
            "{command:?}: {error}"
        );
    }
    Ok(())
}

#[test]
fn usage_errors_name_the_mistake_and_a_fix() -> Result<()> {
    for (args, words) in [
        (&["--controllers=fooo"][..], &["--controllers", "fooo", "foo"][..]),
        (&["--controllers=foo-contoller"], &["foo-contoller", "foo-controller"]),
        (&["--kubeconfg=x"], &["--kubeconfg", "--kubeconfig"]),
        (
            &["--leader-elect-groups=fooo=a"],
            &["--leader-elect-groups", "fooo", "foo"],
        ),
        (
            &["--leader-elect-groups=crontab=a, foo=b"],
            &["--leader-elect-groups", "\" foo\""],
        ),
        (
            &["--leader-elect-groups=*=a"],
            &["--leader-elect-groups", "\"*\"", "is not the name of a controller"],
        ),
        (
            &["--leader-elect-groups=foo=a,foo-controller=b"],
            &["--leader-elect-groups", "foo-controller", "a and b"],
        ),
        (
            &["--leader-elect-groups=foo"],
            &["--leader-elect-groups", "CONTROLLER=GROUP"],
        ),
        // Shorter than the default deadline, so the daemon does not start.
        (
            &["--leader-elect-lease-duration=5s"],
            &[
                "leaseDuration must be greater than renewDeadline",
                "--leader-elect-renew-deadline=10s",
            ],
        ),
        (&["--secure-port=99999"], &["--secure-port", "99999"]),
        (
            &["--controller-shutdown-timeout=soon"],
            &["--controller-shutdown-timeout", "30s"],
        ),
        (
            &["--controller-stuck-timeout=never"],
            &["--controller-stuck-timeout", "30s"],
        ),
        (&["--watch-idle-timeout=0"], &["--watch-idle-timeout", "1s"]),
        (&["--concurrent-foo-syncs=0"], &["--concurrent-foo-syncs"]),
        (&["crds", "--controllers=bar"], &["bar"]),
        (&["nonsense"], &["nonsense"]),
        (&["-o", "json"], &["--list-controllers"]),
        (&["--secure-port=0"], &["in-cluster", "--kubeconfig", "--master"]),
        (
            &["--secure-port=0", "--kubeconfig=does-not-exist"],
            &["--kubeconfig", "does-not-exist"],
        ),
    ] {
        check(args, words)?;
    }
    Ok(())
}

#[test]
fn the_error_for_a_port_in_use_names_its_flag() -> Result<()> {
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let port = format!("--secure-port={}", taken.local_addr()?.port());
    let error = usage_error(&["--master=http://127.0.0.1:1", "--bind-address=127.0.0.1", &port])?;
    ensure!(error.contains("--secure-port") && error.contains("in use"), "{error}");
    Ok(())
}

/// Returns the error of a daemon that serves webhooks on this port, with another flag.
fn webhook_error(port: u16, flag: &str) -> Result<String> {
    let port = format!("--webhook-port={port}");
    usage_error(&["--master=http://127.0.0.1:1", "--bind-address=127.0.0.1", &port, flag])
}

#[test]
fn errors_of_the_webhook_listener_name_its_flags() -> Result<()> {
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let port = taken.local_addr()?.port();
    let error = webhook_error(port, "--secure-port=0")?;
    ensure!(error.starts_with("error: failed to serve webhooks: "), "{error}");
    ensure!(error.contains("--webhook-port") && error.contains("in use"), "{error}");

    let error = webhook_error(port, &format!("--secure-port={port}"))?;
    let expected = format!("error: --secure-port and --webhook-port are both {port}; use a port of its own for each\n");
    ensure!(error == expected, "{error}");

    let file = tempfile::NamedTempFile::new()?;
    let path = file.path().display();
    drop(taken);
    let flags = [
        "--master=http://127.0.0.1:1",
        "--bind-address=127.0.0.1",
        "--secure-port=0",
        &format!("--webhook-port={port}"),
        &format!("--webhook-client-ca-file={path}"),
    ];
    let error = usage_error(&flags)?;
    ensure!(
        error.starts_with("error: failed to set up the authentication of webhook clients: "),
        "{error}"
    );
    let cause = format!("failed to use --webhook-client-ca-file={path}: it contains no certificate");
    ensure!(error.contains(&cause), "{error}");
    Ok(())
}
