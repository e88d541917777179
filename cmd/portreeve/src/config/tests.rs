mod corpus;

use std::collections::BTreeSet;

use clap::ArgAction;
use expect_test::{Expect, expect};
use serde_json::{Value, json};

use super::{keys::ValueType, *};
use crate::{CONTROLLERS, options::command};

const FOLDER: &str = "/etc/portreeve";

fn settings(text: &str) -> Result<Vec<FileSetting>, Vec<Problem>> {
    rules::settings(text.as_bytes(), &command(CONTROLLERS), Path::new(FOLDER))
}

/// What files with these below their first two lines give, as the command line would, or what is wrong with them.
fn check(bodies: &[&str], expected: &Expect) {
    let whole = |body: &&str| format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{body}\n");
    let texts: Vec<_> = bodies.iter().map(whole).collect();
    check_whole(&texts, expected);
}

fn check_whole<T: AsRef<str>>(texts: &[T], expected: &Expect) {
    let told = |text: &T| match settings(text.as_ref()) {
        Ok(given) => {
            let line = |given: &FileSetting| format!("{} {} = {:?}\n", given.line, given.flag, given.values);
            given.iter().map(line).collect()
        }
        Err(problems) => lines(Path::new("portreeve.yaml"), &problems) + "\n",
    };
    expected.assert_eq(&texts.iter().map(told).collect::<String>());
}

/// What is in force with this file and these flags.
fn effective_config(file: Option<&str>, flags: &[&str]) -> Value {
    let mut command = command(CONTROLLERS);
    if let Some(file) = file {
        let given = settings(file).unwrap_or_else(|problems| panic!("{problems:?}"));
        command = given.iter().fold(command, rules::with);
    }
    let arguments = std::iter::once(&"portreeve").chain(flags);
    let matches = command.clone().try_get_matches_from(arguments).unwrap();
    render_effective(&command, &matches, Path::new("/work"))
}

#[test]
fn every_form_of_value_becomes_what_its_flag_takes() {
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
fn a_key_that_is_not_there_is_told_with_the_nearest() {
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
            portreeve.yaml:3: leaderElectLeaseDuraton: there is no such key, did you mean leaderElectLeaseDuration?
            portreeve.yaml:3: leader-elect: there is no such key, did you mean leaderElect?
            portreeve.yaml:3: leaderElection: there is no such key, did you mean leaderElect?
            portreeve.yaml:3: concurrentFoosSync: there is no such key, did you mean concurrentFooSyncs?
            portreeve.yaml:4: V: there is no such key, did you mean v?
            portreeve.yaml:3: somethingElse: there is no such key; `portreeve config-reference` prints all
            portreeve.yaml:3: merge keys are not read; write the keys out
            portreeve.yaml:3: config: it is no setting; give --config on the command line
            portreeve.yaml:4: listControllers: it is no setting; give --list-controllers on the command line
            portreeve.yaml:5: output: it is no setting; give --output on the command line
        "]],
    );
}

#[test]
fn a_value_of_another_type_is_told_with_the_way_out() {
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
            portreeve.yaml:3: concurrentFooSyncs: "16" is text; give a whole number, without the quotes
            portreeve.yaml:3: concurrentFooSyncs: "many" is not a whole number; give a whole number
            portreeve.yaml:3: concurrentFooSyncs: 1.5 is no whole number; give one without a fraction, exponent or leading zeros
            portreeve.yaml:3: concurrentFooSyncs: a list is not a whole number; give a whole number
            portreeve.yaml:3: concurrentFooSyncs: there is no value; give a whole number, or leave the key out
            portreeve.yaml:3: kubeApiQps: "5" is text; give a number, without the quotes
            portreeve.yaml:3: leaderElect: "true" is text; give true or false, without the quotes
            portreeve.yaml:3: leaderElect: "yes" is not true or false; give true or false
            portreeve.yaml:3: leaderElect: 1 is not true or false; give true or false
            portreeve.yaml:3: leaderElectLeaseDuration: 15 is a number; give a duration with its unit, such as 30s, 1m30s or 12h
            portreeve.yaml:3: leaderElectLeaseDuration: there are keys below it; give a duration, and every key on its own line
            portreeve.yaml:3: leaderElectResourceName: 5 is no text; put it in quotes
            portreeve.yaml:3: kubeconfig: there is no value; give a path, or leave the key out
            portreeve.yaml:3: controllers: "foo" is no list; give one, such as [a, b]
            portreeve.yaml:5: controllers: 5 is no text; put it in quotes
            portreeve.yaml:3: controllers: a list is not text; give text
            portreeve.yaml:3: kubeApiQps: "1e400" is not a number; give a number
            portreeve.yaml:3: gcMode: 5: give one of active, observe
            portreeve.yaml:3: loggingFormat: a list: give one of text, json
            portreeve.yaml:3: loggingFormat: there is no value; give one of text, json, or leave the key out
        "#]],
    );
}

#[test]
fn a_value_that_the_flag_would_not_take_is_told_in_its_words() {
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
            portreeve.yaml:3: securePort: 100000000000000000000 is no whole number; give one without a fraction, exponent or leading zeros
            portreeve.yaml:3: leaderElectLeaseDuration: "soon": expected a duration such as 30s, 1m30s or 12h
            portreeve.yaml:3: kubeApiQps: -1: expected 0 (no limit) or requests per second from 0.001 to 1000000
            portreeve.yaml:3: kubeApiQps: ".inf" is not a number; give a number
            portreeve.yaml:3: loggingFormat: "xml": give one of text, json
            portreeve.yaml:3: gcMode: "off": give one of active, observe
            portreeve.yaml:3: kubeconfig: give a path
            portreeve.yaml:3: bindAddress: "localhost": expected an IP address without a port, such as 0.0.0.0 or ::
            portreeve.yaml:5: leaderElectGroups: "foo": give CONTROLLER=GROUP, such as crontab=a
            portreeve.yaml:3: authorizationAlwaysAllowPaths: "metrics": the path "metrics" must start with /, as in /metrics
            portreeve.yaml:3: master: expected a URL such as https://10.0.0.1:6443
        "#]],
    );
}

#[test]
fn every_mistake_is_told_at_once() {
    check(
        &["v: 1\ndryRum: true\nv: 2\nleaderElect: 3"],
        &expect![[r"
        portreeve.yaml:4: dryRum: there is no such key, did you mean dryRun?
        portreeve.yaml:5: v: it is given in line 3 already; keep one of the two
        portreeve.yaml:6: leaderElect: 3 is not true or false; give true or false
    "]],
    );
}

#[test]
fn what_is_no_config_file_is_told_as_such() {
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
            portreeve.yaml:1: apiVersion is missing; begin the file with apiVersion: portreeve.dev/v1alpha1
            portreeve.yaml:1: kind is missing; begin the file with kind: ControllerManagerConfiguration
            portreeve.yaml:1: apiVersion is missing; begin the file with apiVersion: portreeve.dev/v1alpha1
            portreeve.yaml:1: kind is missing; begin the file with kind: ControllerManagerConfiguration
            portreeve.yaml:1: apiVersion is missing; begin the file with apiVersion: portreeve.dev/v1alpha1
            portreeve.yaml:1: kind is missing; begin the file with kind: ControllerManagerConfiguration
            portreeve.yaml:1: apiVersion: "v1" is not known; give portreeve.dev/v1alpha1
            portreeve.yaml:2: kind: "Config" is not known; give ControllerManagerConfiguration
            portreeve.yaml:1: apiVersion: "portreeve.dev/v2" is not known; give portreeve.dev/v1alpha1
            portreeve.yaml:1: apiVersion: give portreeve.dev/v1alpha1
            portreeve.yaml:2: kind: give ControllerManagerConfiguration
            portreeve.yaml:1: the file is no mapping; give a key and its value on each line, such as leaderElect: true
            portreeve.yaml:1: the file is no mapping; give a key and its value on each line, such as leaderElect: true
        "#]],
    );
}

#[test]
fn yaml_that_is_broken_or_does_too_much_is_told_with_its_line() {
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
            portreeve.yaml:4: a second document begins here; give one
            portreeve.yaml:3: this anchor has an alias, and aliases are not read; write the value out
            portreeve.yaml:3: a value with this tag is not read; give it without a tag
            portreeve.yaml:3: a key must be text, such as leaderElect
            portreeve.yaml:3: this is too much for a config file; give a flat mapping
            portreeve.yaml:4: this is no YAML: mapping values are not allowed in this context
            portreeve.yaml:3: this is no YAML: unclosed bracket '['
            portreeve.yaml:4: this is no YAML: invalid indentation in multiline quoted scalar
            portreeve.yaml:3: this is no YAML: an asterisk begins an alias; put it in quotes, such as "*"
            portreeve.yaml:4: this is no YAML: an asterisk begins an alias; put it in quotes, such as "*"
            portreeve.yaml:4: this is no YAML: a tab; indent with spaces
            portreeve.yaml:5: this is no YAML: a tab; indent with spaces
        "#]],
    );
}

#[test]
fn what_is_no_text_is_told_with_its_line() {
    let problems = rules::settings(
        b"apiVersion: v1\nkind: \xff\n",
        &command(CONTROLLERS),
        Path::new(FOLDER),
    )
    .unwrap_err();
    expect!["portreeve.yaml:2: this is no UTF-8; save the file in that encoding"]
        .assert_eq(&lines(Path::new("portreeve.yaml"), &problems));
}

#[test]
fn a_flag_on_the_command_line_wins_over_the_file() {
    let file = format!(
        "apiVersion: {API_VERSION}\nkind: {KIND}\ndryRun: true\nv: 4\ncontrollers: [foo]\nleaderElectGroups: [foo=a]\nminResyncPeriod: 1h\n"
    );
    let of = |flags: &[&str]| {
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
        of(&[]),
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
        of(&flags),
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
fn every_setting_of_the_command_line_has_a_key_and_every_switch_can_be_turned_off() {
    let command = command(CONTROLLERS);
    let keys = keys::keys(&command);
    let names: BTreeSet<_> = keys.iter().map(|key| &key.name).collect();
    assert_eq!(names.len(), keys.len(), "two flags have one key");
    let flags = command.get_arguments().count();
    assert_eq!(
        flags,
        keys.len() + 3,
        "config, list-controllers and output are no settings"
    );
    for key in keys {
        let settable = matches!(key.arg.get_action(), ArgAction::Set | ArgAction::Append);
        assert!(
            settable,
            "--{} takes no value: the command line cannot win over the file",
            key.flag
        );
        assert!(
            key.form != ValueType::Boolean || key.arg.get_num_args() == Some((0..=1).into()),
            "--{}",
            key.flag
        );
    }
}

#[test]
fn what_is_in_force_is_a_config_file_that_gives_the_same() {
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
        let told = effective_config(None, flags);
        assert!(!told.to_string().contains("secret"), "{told}");
        let file = told["controllermanager.portreeve.dev"].to_string();
        assert_eq!(effective_config(Some(&file), &[]), told);
    }
}

#[test]
fn what_is_in_force_has_every_default() {
    expect![[r#"
        {
          "controllermanager.portreeve.dev": {
            "apiVersion": "portreeve.dev/v1alpha1",
            "authorizationAlwaysAllowPaths": [
              "/healthz",
              "/readyz",
              "/livez"
            ],
            "bindAddress": "0.0.0.0",
            "concurrentCronJobSyncs": 16,
            "concurrentCrontabSyncs": 16,
            "concurrentFooSyncs": 5,
            "concurrentGcSyncs": 20,
            "concurrentTtlAfterFinishedSyncs": 5,
            "controllerShutdownTimeout": "10s",
            "controllerStartInterval": "0s",
            "controllerStuckTimeout": "5m",
            "controllers": [
              "*"
            ],
            "dryRun": false,
            "gcIgnoreResources": [
              "events",
              "events.events.k8s.io"
            ],
            "gcMaxDeletionsPerMinute": 0,
            "gcMode": "active",
            "installCrds": false,
            "kind": "ControllerManagerConfiguration",
            "kubeApiBurst": 30,
            "kubeApiQps": 0.0,
            "kubeconfig": "/work/admin.conf",
            "leaderElect": true,
            "leaderElectGroups": [],
            "leaderElectLeaseDuration": "15s",
            "leaderElectRenewDeadline": "10s",
            "leaderElectResourceName": "portreeve",
            "leaderElectResourceNamespace": "kube-system",
            "leaderElectRetryPeriod": "2s",
            "loggingFormat": "text",
            "minResyncPeriod": "12h",
            "queueStuckTimeout": "5m",
            "securePort": 10257,
            "v": 0,
            "watchIdleTimeout": "90s"
          }
        }"#]]
    .assert_eq(&format!("{:#}", effective_config(None, &["--kubeconfig=admin.conf"])));
}
