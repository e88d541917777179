mod corpus;
mod defaults;

use std::collections::BTreeSet;

use clap::ArgAction;
use expect_test::{Expect, expect};
use portreeve_cli::CONTROLLERS;
use serde_json::{Value, json};

use super::{keys::ValueType, *};
use crate::options::command;

const FOLDER: &str = "/etc/portreeve";

fn settings(text: &str) -> Result<Vec<FileSetting>, Vec<Problem>> {
    rules::settings(text.as_bytes(), &command(CONTROLLERS), Path::new(FOLDER))
}

/// Checks the settings, or the mistakes, of files with these bodies after the two header lines.
fn check(bodies: &[&str], expected: &Expect) {
    let whole = |body: &&str| format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{body}\n");
    let texts: Vec<_> = bodies.iter().map(whole).collect();
    check_whole(&texts, expected);
}

fn check_whole<T: AsRef<str>>(texts: &[T], expected: &Expect) {
    let result = |text: &T| match settings(text.as_ref()) {
        Ok(given) => {
            let line = |given: &FileSetting| format!("{} {} = {:?}\n", given.line, given.flag, given.values);
            given.iter().map(line).collect()
        }
        Err(problems) => lines(Path::new("portreeve.yaml"), &problems) + "\n",
    };
    expected.assert_eq(&texts.iter().map(result).collect::<String>());
}

/// Returns the effective settings with this file and these flags.
fn effective_config(file: Option<&str>, flags: &[&str]) -> Value {
    let mut command = command(CONTROLLERS);
    if let Some(file) = file {
        let given = settings(file).unwrap_or_else(|problems| panic!("{problems:?}"));
        command = given.iter().fold(command, rules::with_default);
    }
    let arguments = std::iter::once(&"portreeve").chain(flags);
    let matches = command.clone().try_get_matches_from(arguments).unwrap();
    render_effective(&command, &matches, Path::new("/work"))
}

#[test]
fn every_type_of_value_is_converted_for_its_flag() {
    check(
        &[
            "
controllers: ['*', -foo]
leaderElectGroups: []
leaderElect: false
concurrentFooSyncs: 7
kubeApiQps: 0.5
kubeApiBurst: 0x10
minResyncPeriod: 1m30s
kubeconfig: admin.conf
tlsCertFile: /srv/tls.crt
master: https://10.0.0.1:6443
loggingFormat: json
v: 4",
            "",
        ],
        &expect![[r#"
            4 controllers = ["*", "-foo"]
            5 leader_elect_groups = []
            6 leader_elect = ["false"]
            7 concurrent-foo-syncs = ["7"]
            8 kube_api_qps = ["0.5"]
            9 kube_api_burst = ["16"]
            10 min_resync_period = ["1m30s"]
            11 kubeconfig = ["/etc/portreeve/admin.conf"]
            12 tls_cert_file = ["/srv/tls.crt"]
            13 master = ["https://10.0.0.1:6443"]
            14 logging_format = ["json"]
            15 v = ["4"]
        "#]],
    );
    let json = r#"{"kind": "ControllerManagerConfiguration", "apiVersion": "portreeve.dev/v1alpha1", "v": 2}"#;
    check_whole(
        &[json],
        &expect![[r#"
        1 v = ["2"]
    "#]],
    );
}

#[test]
fn unknown_key_error_suggests_the_nearest_key() {
    check(
        &[
            "leaderElectLeaseDuraton: 15s",
            "leader-elect: true",
            "leaderElection:\n  leaderElect: true",
            "concurrentFoosSync: 1\nV: 1",
            "somethingElse: secret",
            "<<: {v: 1}",
            "config: x\nlistControllers: true\noutput: json",
        ],
        &expect![[r"
            portreeve.yaml:3: leaderElectLeaseDuraton: unknown key; did you mean leaderElectLeaseDuration?
            portreeve.yaml:3: leader-elect: unknown key; did you mean leaderElect?
            portreeve.yaml:3: leaderElection: unknown key; did you mean leaderElect?
            portreeve.yaml:3: concurrentFoosSync: unknown key; did you mean concurrentFooSyncs?
            portreeve.yaml:4: V: unknown key; did you mean v?
            portreeve.yaml:3: somethingElse: unknown key; `portreeve config-reference` lists all keys
            portreeve.yaml:3: merge keys are not supported; write the keys out
            portreeve.yaml:3: config: not a setting; use --config on the command line
            portreeve.yaml:4: listControllers: not a setting; use --list-controllers on the command line
            portreeve.yaml:5: output: not a setting; use --output on the command line
        "]],
    );
}

#[test]
fn type_error_says_how_to_fix_the_value() {
    check(
        &[
            "concurrentFooSyncs: \"16\"",
            "concurrentFooSyncs: many",
            "concurrentFooSyncs: 1.5",
            "concurrentFooSyncs: [1]",
            "concurrentFooSyncs:",
            "kubeApiQps: '5'",
            "leaderElect: 'true'",
            "leaderElect: yes",
            "leaderElect: 1",
            "leaderElectLeaseDuration: 15",
            "leaderElectLeaseDuration: {seconds: 15}",
            "leaderElectResourceName: 5",
            "kubeconfig: ~",
            "controllers: foo",
            "controllers:\n- foo\n- 5\n",
            "controllers: [[foo]]",
            "kubeApiQps: 1e400",
            "gcMode: 5",
            "loggingFormat: [json]",
            "loggingFormat:",
        ],
        &expect![[r#"
            portreeve.yaml:3: concurrentFooSyncs: "16" is a string; use an integer without quotes
            portreeve.yaml:3: concurrentFooSyncs: expected an integer, found "many"
            portreeve.yaml:3: concurrentFooSyncs: 1.5 is not an integer; write it without a fraction, exponent or leading zeros
            portreeve.yaml:3: concurrentFooSyncs: expected an integer, found a list
            portreeve.yaml:3: concurrentFooSyncs: no value; use an integer, or remove the key
            portreeve.yaml:3: kubeApiQps: "5" is a string; use a number without quotes
            portreeve.yaml:3: leaderElect: "true" is a string; use true or false without quotes
            portreeve.yaml:3: leaderElect: expected true or false, found "yes"
            portreeve.yaml:3: leaderElect: expected true or false, found 1
            portreeve.yaml:3: leaderElectLeaseDuration: 15 has no unit; use a duration such as 30s, 1m30s or 12h
            portreeve.yaml:3: leaderElectLeaseDuration: expected a duration, found a mapping; write all keys at the top level
            portreeve.yaml:3: leaderElectResourceName: 5 is not a string; put it in quotes
            portreeve.yaml:3: kubeconfig: no value; use a path, or remove the key
            portreeve.yaml:3: controllers: expected a list such as [a, b], found "foo"
            portreeve.yaml:5: controllers: 5 is not a string; put it in quotes
            portreeve.yaml:3: controllers: expected a string, found a list
            portreeve.yaml:3: kubeApiQps: expected a number, found "1e400"
            portreeve.yaml:3: gcMode: 5: expected one of active, observe
            portreeve.yaml:3: loggingFormat: a list: expected one of text, json
            portreeve.yaml:3: loggingFormat: no value; use one of text, json, or remove the key
        "#]],
    );
}

#[test]
fn invalid_value_has_the_error_of_its_flag() {
    check(
        &[
            "concurrentFooSyncs: 0",
            "v: 300",
            "securePort: 99999999999999999999",
            "leaderElectLeaseDuration: soon",
            "kubeApiQps: -1",
            "kubeApiQps: .inf",
            "loggingFormat: xml",
            "gcMode: off",
            "kubeconfig: ''",
            "bindAddress: localhost",
            "leaderElectGroups:\n- crontab=a\n- foo",
            "authorizationAlwaysAllowPaths: [/livez, metrics]",
            "master: admin:secret@nowhere",
        ],
        &expect![[r#"
            portreeve.yaml:3: concurrentFooSyncs: 0 is not in 1..=65535
            portreeve.yaml:3: v: 300 is not in 0..=255
            portreeve.yaml:3: securePort: 100000000000000000000 is not an integer; write it without a fraction, exponent or leading zeros
            portreeve.yaml:3: leaderElectLeaseDuration: "soon": expected a duration such as 30s, 1m30s or 12h
            portreeve.yaml:3: kubeApiQps: -1: expected 0 (no limit) or requests per second from 0.001 to 1000000
            portreeve.yaml:3: kubeApiQps: expected a number, found ".inf"
            portreeve.yaml:3: loggingFormat: "xml": expected one of text, json
            portreeve.yaml:3: gcMode: "off": expected one of active, observe
            portreeve.yaml:3: kubeconfig: expected a path
            portreeve.yaml:3: bindAddress: "localhost": expected an IP address without a port, such as 0.0.0.0 or ::
            portreeve.yaml:5: leaderElectGroups: "foo": give CONTROLLER=GROUP, such as crontab=a
            portreeve.yaml:3: authorizationAlwaysAllowPaths: "metrics": the path "metrics" must start with /, as in /metrics
            portreeve.yaml:3: master: expected a URL such as https://10.0.0.1:6443
        "#]],
    );
}

#[test]
fn all_mistakes_are_reported_together() {
    check(
        &["v: 1\ndryRum: true\nv: 2\nleaderElect: 3"],
        &expect![[r"
        portreeve.yaml:4: dryRum: unknown key; did you mean dryRun?
        portreeve.yaml:5: v: duplicate key, first set on line 3; remove one of them
        portreeve.yaml:6: leaderElect: expected true or false, found 3
    "]],
    );
}

#[test]
fn file_without_the_right_header_is_rejected() {
    check_whole(
        &[
            "",
            "# nothing\n",
            "v: 1\n",
            "apiVersion: v1\nkind: Config\nusers: []\n",
            "apiVersion: portreeve.dev/v2\nkind: ControllerManagerConfiguration\n",
            "apiVersion: 1\nkind: []\n",
            "- v: 1\n",
            "v\n",
        ],
        &expect![[r#"
            portreeve.yaml:1: apiVersion is missing; start the file with apiVersion: portreeve.dev/v1alpha1
            portreeve.yaml:1: kind is missing; start the file with kind: ControllerManagerConfiguration
            portreeve.yaml:1: apiVersion is missing; start the file with apiVersion: portreeve.dev/v1alpha1
            portreeve.yaml:1: kind is missing; start the file with kind: ControllerManagerConfiguration
            portreeve.yaml:1: apiVersion is missing; start the file with apiVersion: portreeve.dev/v1alpha1
            portreeve.yaml:1: kind is missing; start the file with kind: ControllerManagerConfiguration
            portreeve.yaml:1: apiVersion: unknown value "v1"; use portreeve.dev/v1alpha1
            portreeve.yaml:2: kind: unknown value "Config"; use ControllerManagerConfiguration
            portreeve.yaml:1: apiVersion: unknown value "portreeve.dev/v2"; use portreeve.dev/v1alpha1
            portreeve.yaml:1: apiVersion: expected portreeve.dev/v1alpha1
            portreeve.yaml:2: kind: expected ControllerManagerConfiguration
            portreeve.yaml:1: the file is not a mapping; write one key and value per line, such as leaderElect: true
            portreeve.yaml:1: the file is not a mapping; write one key and value per line, such as leaderElect: true
        "#]],
    );
}

#[test]
fn broken_or_unsupported_yaml_is_reported_with_its_line() {
    check(
        &[
            "---\nv: 1",
            "v: &four 4\nkubeApiBurst: *four",
            "v: !!int '5'\n",
            "[v]: 1",
            &["v: ", &"[".repeat(100), &"]".repeat(100)].concat(),
            "v: 1\n dryRun: true",
            "controllers: [foo",
            "leaderElectResourceName: \"portreeve",
            "controllers: [*, foo]",
            "controllers:\n- *",
            "controllers:\n\t- foo",
            "controllers:\n- foo\n\t- crontab",
        ],
        &expect![[r#"
            portreeve.yaml:4: a second document starts here; only one is allowed
            portreeve.yaml:3: aliases are not supported; replace the alias of this anchor with the value
            portreeve.yaml:3: this tag is not supported; remove it
            portreeve.yaml:3: a key must be a string, such as leaderElect
            portreeve.yaml:3: the file is too complex; write a flat mapping
            portreeve.yaml:4: invalid YAML: mapping values are not allowed in this context
            portreeve.yaml:3: invalid YAML: unclosed bracket '['
            portreeve.yaml:4: invalid YAML: invalid indentation in multiline quoted scalar
            portreeve.yaml:3: invalid YAML: an asterisk starts an alias; put it in quotes, such as "*"
            portreeve.yaml:4: invalid YAML: an asterisk starts an alias; put it in quotes, such as "*"
            portreeve.yaml:4: invalid YAML: a tab in the indentation; use spaces
            portreeve.yaml:5: invalid YAML: a tab in the indentation; use spaces
        "#]],
    );
}

#[test]
fn invalid_utf_8_is_reported_with_its_line() {
    let problems = rules::settings(
        b"apiVersion: v1\nkind: \xff\n",
        &command(CONTROLLERS),
        Path::new(FOLDER),
    )
    .unwrap_err();
    expect!["portreeve.yaml:2: invalid UTF-8; save the file as UTF-8"]
        .assert_eq(&lines(Path::new("portreeve.yaml"), &problems));
}

#[test]
fn flag_on_the_command_line_overrides_the_file() {
    let file = format!(
        "apiVersion: {API_VERSION}\nkind: {KIND}\ndryRun: true\nv: 4\ncontrollers: [foo]\nleaderElectGroups: [foo=a]\nminResyncPeriod: 1h\n"
    );
    let values = |flags: &[&str]| {
        let all = effective_config(Some(&file), flags);
        let all = &all["controllermanager.portreeve.dev"];
        [
            "dryRun",
            "v",
            "controllers",
            "leaderElectGroups",
            "minResyncPeriod",
            "controllerStartInterval",
        ]
        .map(|key| all[key].clone())
    };
    assert_eq!(
        values(&[]),
        [
            json!(true),
            json!(4),
            json!(["foo"]),
            json!(["foo=a"]),
            json!("1h"),
            json!("0s")
        ]
    );
    let flags = [
        "--dry-run=false",
        "-v=0",
        "--controllers=crontab,-foo",
        "--leader-elect-groups=foo=b,crontab=c",
        "--min-resync-period=0",
        "--controller-start-interval=1s",
    ];
    assert_eq!(
        values(&flags),
        [
            json!(false),
            json!(0),
            json!(["crontab", "-foo"]),
            json!(["foo=b", "crontab=c"]),
            json!("0"),
            json!("1s")
        ]
    );
}

#[test]
fn every_setting_has_a_key_and_every_switch_can_be_turned_off() {
    let command = command(CONTROLLERS);
    let keys = keys::keys(&command);
    let names: BTreeSet<_> = keys.iter().map(|key| &key.name).collect();
    assert_eq!(names.len(), keys.len(), "two flags have the same key");
    // Hidden flags are for tests.
    let flags = command.get_arguments().filter(|flag| !flag.is_hide_set()).count();
    assert_eq!(
        flags,
        keys.len() + 3,
        "config, list-controllers and output are not settings"
    );
    for key in keys {
        let settable = matches!(key.arg.get_action(), ArgAction::Set | ArgAction::Append);
        assert!(
            settable,
            "--{} takes no value: the command line cannot override the file",
            key.flag
        );
        assert!(
            key.value_type != ValueType::Boolean || key.arg.get_num_args() == Some((0..=1).into()),
            "--{}",
            key.flag
        );
    }
}

#[test]
fn effective_config_is_a_config_file_with_the_same_effect() {
    let everything = [
        "--controllers=crontab,-foo",
        "--leader-elect-groups=crontab=a,foo=b",
        "--authorization-always-allow-paths=/livez,/debug/*",
        "--kubeconfig=admin.conf",
        "--master=https://somebody:secret@10.0.0.1:6443",
        "--kube-api-qps=0.25",
        "--min-resync-period=0",
        "--leader-elect=false",
        "--install-crds",
        "--gc-mode=observe",
        "--bind-address=::",
        "--logging-format=json",
        "-v=6",
    ];
    for flags in [
        &[][..],
        &["--controllers=", "--authorization-always-allow-paths="],
        &everything,
    ] {
        let effective = effective_config(None, flags);
        assert!(!effective.to_string().contains("secret"), "{effective}");
        let file = effective["controllermanager.portreeve.dev"].to_string();
        assert_eq!(effective_config(Some(&file), &[]), effective);
    }
}
