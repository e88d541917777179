//! `portreeve crds`, `rbac` and `fence`, and `--list-controllers`: what the descriptors say, as text. Pure.

mod fence;
mod rbac;

use clap::Args;
use portreeve_reconcile::Descriptor;
use serde_json::{Value, json};

pub(crate) use self::fence::Action;

/// The Leases of the enabled controllers by name, each with those that depend on it.
type Leases = [(String, Vec<Descriptor>)];

/// The account that the replicas act as.
#[derive(Args, Clone, Debug)]
pub(crate) struct Account {
    /// The namespace of the ServiceAccount
    #[arg(long, default_value = "portreeve-system", value_parser = name)]
    pub(crate) namespace: String,
    /// The name of the ServiceAccount. The names of the printed objects contain it, so that each
    /// account has its own objects.
    #[arg(long, value_name = "NAME", default_value = "portreeve", value_parser = name)]
    pub(crate) service_account: String,
}

/// Why a manifest is not printed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be written.
    #[error("failed to write YAML")]
    Write(#[source] serde_saphyr::ser_error::Error),
    /// One policy cannot fence controllers that depend on several Leases.
    #[error(
        "no policy can fence several groups in one process ({}): the apiserver is told which pod writes, not for which controller, and \
        each group may be led by another pod. Run a Deployment with a ServiceAccount of its own for each group, and print a fence for \
        each: {}", members(.0), commands(.0)
    )]
    SeveralGroups(FenceGroups),
}

/// Several groups for which one fence was asked for, and where.
#[derive(Debug)]
pub struct FenceGroups {
    /// Each group's Lease, and the controllers that depend on it.
    leases: Vec<(String, Vec<&'static str>)>,
    namespace: String,
    lease_namespace: String,
    action: Action,
}

fn members(groups: &FenceGroups) -> String {
    let one = |(lease, controllers): &(String, Vec<_>)| format!("Lease {lease}: {}", controllers.join(", "));
    groups.leases.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// What prints a fence for each group, in the namespaces that were asked for.
fn commands(groups: &FenceGroups) -> String {
    let FenceGroups {
        namespace,
        lease_namespace,
        ..
    } = groups;
    let action = match groups.action {
        Action::Deny => "",
        Action::Audit => " --action=Audit",
    };
    let one = |(lease, controllers): &(String, Vec<_>)| {
        let controllers = controllers.join(",");
        format!(
            "`portreeve fence --controllers={controllers} --namespace={namespace} --service-account={lease} \
             --leader-elect-resource-namespace={lease_namespace} --leader-elect-resource-name={lease}{action}`"
        )
    };
    groups.leases.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The definitions of these controllers, one YAML document each, sorted by name.
pub(crate) fn crds(controllers: &[Descriptor]) -> Result<String, Error> {
    let mut definitions: Vec<_> = controllers.iter().flat_map(|controller| (controller.crds)()).collect();
    definitions.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    definitions.dedup_by(|a, b| a.metadata.name == b.metadata.name);
    let documents: Vec<_> = definitions.iter().map(|definition| json!(definition)).collect();
    yaml(&documents)
}

/// `portreeve rbac`: what the replicas of an account may do.
pub(crate) fn rbac(
    enabled: &[Descriptor],
    account: &Account,
    election: &portreeve_leader::Args,
    leases: &Leases,
    install_crds: bool,
) -> Result<String, Error> {
    let leases = leases.iter().map(|(lease, _)| &**lease);
    let needs = rbac::RoleOptions {
        install_crds,
        leases: leases.filter(|_| election.leader_elect).collect(),
        lease_namespace: &election.leader_elect_resource_namespace,
    };
    rbac::rbac(enabled, account, &needs)
}

/// `portreeve fence`: what the apiserver refuses to replicas that do not lead. Nothing without an election.
pub(crate) fn fence(
    account: &Account,
    election: &portreeve_leader::Args,
    leases: &Leases,
    action: Action,
) -> Result<String, Error> {
    match leases {
        _ if !election.leader_elect => Ok(String::new()),
        [] => Ok(String::new()),
        [(name, controllers)] => {
            let namespace = &election.leader_elect_resource_namespace;
            fence::fence(controllers, account, &fence::LeaseRef { namespace, name }, action)
        }
        several => {
            let names = |controllers: &[Descriptor]| controllers.iter().map(|it| it.name).collect();
            let several = several.iter().map(|(lease, of)| (lease.clone(), names(of)));
            Err(Error::SeveralGroups(FenceGroups {
                leases: several.collect(),
                namespace: account.namespace.clone(),
                lease_namespace: election.leader_elect_resource_namespace.clone(),
                action,
            }))
        }
    }
}

/// The name of an object. It ends up inside of expressions, so nothing else will do.
fn name(text: &str) -> Result<String, String> {
    let is_good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    if text.is_empty() || !text.bytes().all(is_good) {
        return Err("give lower case letters, digits, dashes and dots".to_owned());
    }
    Ok(text.to_owned())
}

fn yaml(documents: &[Value]) -> Result<String, Error> {
    // A sentence is a line, however long.
    let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
    let mut text = String::new();
    for document in documents {
        if !text.is_empty() {
            text.push_str("---\n");
        }
        text.push_str(&serde_saphyr::to_string_with_options(document, options).map_err(Error::Write)?);
    }
    Ok(text)
}

/// The known controllers as a table, for people.
pub(crate) fn table(known: &[Descriptor]) -> String {
    let rows = known.iter().map(|controller| {
        let default = if controller.on_by_default { "on" } else { "off" };
        [
            controller.name.to_owned(),
            controller.aliases.join(","),
            default.to_owned(),
        ]
    });
    let header = ["NAME", "ALIASES", "DEFAULT"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(header).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let (name, aliases) = (width(0), width(1));
    let lines = rows
        .iter()
        .map(|row| format!("{:name$}   {:aliases$}   {}", row[0], row[1], row[2]));
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

/// The known controllers as JSON, for programs.
pub(crate) fn list(known: &[Descriptor]) -> Value {
    let entry = |controller: &Descriptor| {
        json!({
            "name": controller.name,
            "aliases": controller.aliases,
            "onByDefault": controller.on_by_default,
        })
    };
    known.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::CONTROLLERS;

    #[test]
    fn controllers_are_listed_for_people_and_for_programs() {
        expect![[r"
            NAME                            ALIASES              DEFAULT
            crontab-controller              crontab              on
            cronjob-controller              cronjob              off
            foo-controller                  foo                  on
            garbage-collector-controller    garbagecollector     off
            ttl-after-finished-controller   ttl-after-finished   off
        "]]
        .assert_eq(&table(CONTROLLERS));
        assert_eq!(list(CONTROLLERS)[2]["name"], "foo-controller");
    }
}
