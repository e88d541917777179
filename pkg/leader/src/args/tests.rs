use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct TestCommand {
    #[command(flatten)]
    args: Args,
}

fn parse(flags: &[&str]) -> Result<Args, String> {
    let line = TestCommand::try_parse_from(std::iter::once(&"portreeve").chain(flags));
    line.map(|line| line.args).map_err(|error| error.to_string())
}

#[test]
fn defaults_match_kube_controller_manager_except_for_the_lease_name() {
    let args = parse(&[]).unwrap();
    assert!(args.leader_elect);
    assert_eq!(
        args.times(),
        Ok(ElectionTimings {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        })
    );
    assert_eq!(args.namespace_or("kube-system"), "kube-system");
    assert_eq!(args.lease_name(None), "portreeve");
    assert_eq!(args.lease_name(Some("a")), "portreeve-a");
    assert!(!parse(&["--leader-elect=false"]).unwrap().leader_elect);
    assert!(parse(&["--leader-elect"]).unwrap().leader_elect);
}

#[test]
fn inconsistent_timings_are_rejected_with_the_flags_to_change() {
    let table = [
        (
            &["15s", "15s", "2s"],
            "leaseDuration must be greater than renewDeadline",
        ),
        (
            &["15s", "10s", "9s"],
            "renewDeadline must be greater than retryPeriod*JitterFactor",
        ),
        (
            &["0", "10s", "2s"],
            "leaseDuration must be greater than zero: --leader-elect-lease-duration is 0",
        ),
        (&["15s", "0", "2s"], "renewDeadline must be greater than zero"),
        (&["15s", "10s", "0"], "retryPeriod must be greater than zero"),
        (
            &["15.5s", "10s", "2s"],
            "--leader-elect-lease-duration=15.5s has a fraction of a second",
        ),
    ];
    for ([lease, renew, retry], expected) in table {
        let flags = [
            format!("--leader-elect-lease-duration={lease}"),
            format!("--leader-elect-renew-deadline={renew}"),
            format!("--leader-elect-retry-period={retry}"),
        ];
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        let error = parse(&flags).unwrap().times().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(error.contains("--leader-elect-"), "{error}");
    }
}

#[test]
fn names_must_be_dns_labels() {
    for name in ["", "-a", "a-", "A", "a..b", &"a".repeat(64)] {
        let error = parse(&[&format!("--leader-elect-resource-name={name}")]).unwrap_err();
        assert!(error.contains("--leader-elect-resource-name"), "{error}");
        let error = parse(&[&format!("--leader-elect-resource-namespace={name}")]).unwrap_err();
        assert!(error.contains("--leader-elect-resource-namespace"), "{error}");
        assert!(
            parse(&[&format!("--leader-elect-groups=foo={name}")]).is_err(),
            "{name}"
        );
    }
    assert!(
        parse(&["--leader-elect-groups=foo"])
            .unwrap_err()
            .contains("CONTROLLER=GROUP")
    );
}

#[test]
fn lease_names_may_contain_dots() {
    assert!(parse(&["--leader-elect-resource-name=foo.example.com"]).is_ok());
}

#[test]
fn controllers_without_a_group_share_one_lease() {
    let args = parse(&["--leader-elect-groups=crontab=b,foo-controller=a,gc=a"]).unwrap();
    let names = |name: &'static str| match name {
        "crontab-controller" => vec![name, "crontab"],
        other => vec![other],
    };
    let groups = args.groups(&["foo-controller", "crontab-controller", "gc", "ttl"], names);
    let expected = [
        (None, vec!["ttl"]),
        (Some("a".to_owned()), vec!["foo-controller", "gc"]),
        (Some("b".to_owned()), vec!["crontab-controller"]),
    ];
    assert_eq!(groups, expected);
    assert_eq!(parse(&[]).unwrap().groups(&["a", "b"], names), [(None, vec!["a", "b"])]);
}

#[test]
fn identities_are_unique() {
    let (one, two) = (identity(), identity());
    assert_ne!(one, two);
    let (host, uuid) = one.rsplit_once('_').unwrap();
    assert!(!host.is_empty() && uuid.len() == 36, "{one}");
}
