//! `kubectl portreeve validate` agrees with the apiserver: it accepts what the CRDs and the
//! webhooks accept, and names the same field otherwise.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::Write as _,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::TestRunner,
};
use serde_json::Value;

use super::{
    generated, rows,
    table::{Case, Place},
    versions,
};
use crate::fixtures::{daemon::PLUGIN, repository::root};

/// The number of random objects.
const RANDOM: usize = 200;

/// Runs the command on a text, and returns the exit code, the report and the log.
fn validate(text: &str) -> Result<(Option<i32>, String, String)> {
    let mut command = Command::new(&*PLUGIN);
    let streams = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut process = streams.args(["validate", "-"]).spawn()?;
    let mut input = process.stdin.take().context("no standard input")?;
    let text = text.to_owned();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = process.wait_with_output()?;
    writer.join().ok().context("the writer panicked")??;
    let text = |bytes| String::from_utf8(bytes);
    Ok((output.status.code(), text(output.stdout)?, text(output.stderr)?))
}

/// Validates the objects of all rows at once, and compares the report with the rows. The namespaces
/// number the objects.
fn ensure_agreement(cases: &[Case]) -> Result<()> {
    let mut documents = String::new();
    for (index, case) in cases.iter().enumerate() {
        let mut object = case.object.clone();
        object["metadata"]["namespace"] = format!("row-{index}").into();
        writeln!(documents, "---\n{object}")?;
    }
    let (code, report, log) = validate(&documents)?;
    let mut errors: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for line in report.lines() {
        let (_, rest) = line.split_once(" row-").with_context(|| line.to_owned())?;
        let (index, _) = rest.split_once('/').with_context(|| line.to_owned())?;
        errors.entry(index.parse()?).or_default().push(line);
    }
    let mut failures = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        let found = errors.get(&index);
        // Policies and quotas are objects of the cluster.
        let is_known = |place| matches!(place, Place::Definition | Place::Webhook);
        let expected = case.rejection.as_ref().filter(|it| is_known(it.place));
        let agrees = match (expected, found) {
            (None, None) => true,
            (Some(rejection), Some(lines)) => lines.iter().any(|line| line.contains(&rejection.path)),
            _ => false,
        };
        if !agrees {
            let object = case.object.to_string().chars().take(300).collect::<String>();
            failures.push(format!("{object}: {:?} but {found:?}", expected.map(|it| &it.path)));
        }
    }
    ensure!(failures.is_empty(), "{}\n{log}", failures.join("\n"));
    ensure!(code == Some(i32::from(!errors.is_empty())), "{code:?}: {log}");
    Ok(())
}

#[test]
fn the_command_agrees_with_the_apiserver_on_the_whole_table() -> Result<()> {
    ensure_agreement(&super::table()?)
}

/// Another test sends such objects to the apiserver.
#[test]
fn the_command_finds_the_broken_field_of_random_objects() -> Result<()> {
    let mut runner = TestRunner::deterministic();
    let random = || {
        let tree = generated::cases().new_tree(&mut runner);
        tree.map(|tree| tree.current())
            .map_err(|error| anyhow::anyhow!("{error}"))
    };
    let cases: Vec<Case> = std::iter::repeat_with(random).take(RANDOM).collect::<Result<_>>()?;
    ensure_agreement(&cases)
}

#[test]
fn lists_unknown_kinds_and_unreadable_files_are_reported() -> Result<()> {
    let crontab = rows::crontab("a", serde_json::json!({}));
    let foo: Value = serde_json::json!({
        "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo",
        "metadata": {"name": "b", "namespace": "default"}, "spec": {"deploymentName": "web", "replicas": 11},
    });
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": [crontab, foo]});
    let (code, report, log) = validate(&list.to_string())?;
    let expected = "-: Foo default/b: spec.replicas: 11 is greater than the maximum of 10\n";
    ensure!(code == Some(1) && report == expected, "{report}{log}");
    ensure!(log == "error: found 1 invalid of 2 checked objects in -\n", "{log}");

    let other = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: default}\n---\n";
    let (code, report, log) = validate(other)?;
    ensure!(code == Some(0) && report.is_empty(), "{report}{log}");
    let expected = "-: skipped Deployment default/web: no controller has a definition of apps/v1\n";
    ensure!(log == expected, "{log}");

    let newer = crontab
        .to_string()
        .replace("stable.example.com/v1", "stable.example.com/v9");
    let (code, report, log) = validate(&newer)?;
    ensure!(
        code == Some(1) && report.contains("unknown version \"v9\"; use v1 or v2"),
        "{report}{log}"
    );

    for (from, to) in [
        ("CronTab", "crontab"),
        ("CronTab", "CronTabb"),
        ("apiVersion", "version"),
    ] {
        let misspelt = crontab.to_string().replacen(from, to, 1);
        let (code, report, log) = validate(&misspelt)?;
        ensure!(
            code == Some(1) && report.contains("unknown kind or apiVersion"),
            "{misspelt}: {report}{log}"
        );
    }
    let mut with_status = crontab.clone();
    with_status["status"] = serde_json::json!({"active": "none"});
    let (code, report, log) = validate(&with_status.to_string())?;
    ensure!(code == Some(0), "the apiserver ignores a status: {report}{log}");

    let (code, report, log) = validate("a: b\nc: [d\n")?;
    ensure!(code == Some(1) && report.is_empty(), "{report}{log}");
    ensure!(log.starts_with("error: failed to parse -: line 2 column 4: "), "{log}");
    for empty in ["", "---\n# nothing\n---\n", "{apiVersion: v1, kind: List, items: []}"] {
        let (code, report, log) = validate(empty)?;
        ensure!(code == Some(1) && report.is_empty(), "{empty:?}: {report}{log}");
        ensure!(log == "error: found no object in -\n", "{empty:?}: {log}");
    }

    let output = Command::new(&*PLUGIN)
        .args(["validate", "/does/not/exist.yaml"])
        .output()?;
    let log = String::from_utf8(output.stderr)?;
    ensure!(
        output.status.code() == Some(1) && log.contains("failed to read /does/not/exist.yaml"),
        "{log}"
    );
    Ok(())
}

#[test]
fn warnings_of_webhooks_are_reported_and_are_no_errors() -> Result<()> {
    let fields = serde_json::json!({"startingDeadlineSeconds": 0});
    let (code, report, log) = validate(&rows::crontab("a", fields).to_string())?;
    ensure!(code == Some(0) && report.is_empty(), "{report}{log}");
    let expected = "-: CronTab a: warning: spec.startingDeadlineSeconds: with 0, no run ever starts in time\n";
    ensure!(log == expected, "{log}");
    Ok(())
}

#[test]
fn the_samples_are_valid_except_for_the_one_that_says_so() -> Result<()> {
    let controllers = std::fs::read_dir(root().join("controllers"))?.collect::<Result<Vec<_>, _>>()?;
    let samples = controllers
        .iter()
        .filter_map(|controller| std::fs::read_dir(controller.path().join("samples")).ok());
    let samples = samples.flatten().collect::<Result<Vec<_>, _>>()?;
    ensure!(samples.len() > 5, "found only {samples:?}");
    for sample in samples {
        let path = sample.path();
        let output = Command::new(&*PLUGIN).arg("validate").arg(&path).output()?;
        let is_valid = !path.ends_with("crontab-invalid.yaml");
        ensure!(output.status.success() == is_valid, "{}: {output:?}", path.display());
        let report = String::from_utf8(output.stdout)?;
        ensure!(
            is_valid || report.contains("spec.schedule: Invalid value: \"61 * * * *\""),
            "{report}"
        );
    }
    Ok(())
}

/// The definition contains v2, but does not serve it yet.
#[test]
fn v2_is_checked_by_its_definition_and_by_the_webhook() -> Result<()> {
    let schedule =
        |fields: Value| serde_json::json!({"schedules": [{"name": "default", "schedule": "@daily"}, fields]});
    let in_zone = schedule(serde_json::json!({"name": "a", "schedule": "@daily", "timeZone": "Mars/Olympus"}));
    let never = schedule(serde_json::json!({"name": "a", "schedule": "61 * * * *"}));
    let rejected = versions::rejected().into_iter().chain([
        (in_zone, "spec.schedules[a].timeZone: Invalid value"),
        (never, "spec.schedules[a].schedule: Invalid value"),
    ]);
    for (spec, expected) in rejected {
        let (code, report, log) = validate(&versions::v2(&spec).to_string())?;
        let path = expected.split_once(": ").map_or("", |(path, _)| path);
        ensure!(code == Some(1) && report.contains(path), "{spec}: {report}{log}");
    }
    let (code, report, log) = validate(&versions::v2(&serde_json::json!({})).to_string())?;
    ensure!(code == Some(0) && report.is_empty(), "{report}{log}");
    Ok(())
}

#[test]
fn the_readme_shows_the_sample_of_v2() -> Result<()> {
    let sample = include_str!("../../../controllers/crontab/samples/crontab.yaml");
    let start = sample.find("apiVersion: stable.example.com/v2").context("no v2")?;
    let readme = include_str!("../../../README.md");
    ensure!(
        readme.contains(&format!("```yaml\n{}```", &sample[start..])),
        "{sample}"
    );
    Ok(())
}

#[test]
fn the_documented_crontabs_are_valid() -> Result<()> {
    let page = concat!(
        include_str!("../../../docs/crontab.md"),
        include_str!("../../../docs/crontab-versions.md")
    );
    let blocks = page
        .split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split_once("```"));
    let crontabs: Vec<_> = blocks
        .map(|(block, _)| block)
        .filter(|block| block.contains("kind: CronTab"))
        .collect();
    ensure!(crontabs.len() == 2, "{crontabs:?}");
    for (crontab, version) in crontabs.iter().zip(["v1", "v2"]) {
        ensure!(
            crontab.contains(&format!("apiVersion: stable.example.com/{version}\n")),
            "{crontab}"
        );
        let (code, report, log) = validate(crontab)?;
        ensure!(code == Some(0) && report.is_empty(), "{report}{log}");
    }
    Ok(())
}
