//! Generates the output of `portreeve crds`, `policies`, `rbac`, `fence`, `fence-anchor`,
//! `flowschema`, `webhooks` and `--list-controllers` from the descriptors.
//!
//! Architecture Invariant: pure.

mod fence;
mod fence_anchor;
mod flow_schema;
mod rbac;
mod webhooks;

use clap::Args;
use portreeve_reconcile::Descriptor;
use portreeve_serving::SecretArgs;
use serde_json::{Value, json};

pub(crate) use self::{fence::Action, fence_anchor::fence_anchor, webhooks::webhooks};

/// The Leases of the enabled controllers by name, each with its controllers.
type Leases = [(String, Vec<Descriptor>)];

/// The ServiceAccount of the replicas.
#[derive(Args, Clone, Debug)]
pub(crate) struct Account {
    /// The namespace of the ServiceAccount
    #[arg(long, default_value = "portreeve-system", value_parser = name)]
    pub(crate) namespace: String,
    /// The name of the ServiceAccount. It is part of the names of all printed objects, so that they
    /// are separate for each account
    #[arg(long, value_name = "NAME", default_value = "portreeve", value_parser = name)]
    pub(crate) service_account: String,
}

/// The reason why a manifest cannot be printed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The YAML cannot be written.
    #[error("failed to write YAML")]
    Write(#[source] serde_saphyr::ser_error::Error),
    /// The YAML of a controller's CRD is invalid, which is a bug of the controller.
    #[error("failed to read the CustomResourceDefinitions of a controller")]
    ReadDefinition(#[source] serde_saphyr::Error),
    /// A single policy cannot fence controllers that depend on several Leases.
    #[error(
        "cannot fence several groups in one process ({}): the apiserver knows which pod writes, but not for which controller, and \
        different pods may lead the groups. Run a separate Deployment and ServiceAccount for each group, and print a fence for \
        each: {}", members(.0), commands(.0)
    )]
    SeveralGroups(FenceGroups),
}

/// The groups and namespaces of a fence that was requested for several groups.
#[derive(Debug)]
pub struct FenceGroups {
    /// The Lease and the controllers of each group.
    leases: Vec<(String, Vec<&'static str>)>,
    namespace: String,
    lease_namespace: String,
    action: Action,
}

fn members(groups: &FenceGroups) -> String {
    let one = |(lease, controllers): &(String, Vec<_>)| format!("Lease {lease}: {}", controllers.join(", "));
    groups.leases.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Returns the commands that print a fence for each group in the same namespaces.
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

/// Returns the CustomResourceDefinitions of these controllers.
pub(crate) fn crds(controllers: &[Descriptor]) -> String {
    without_duplicates(controllers.iter().flat_map(|controller| controller.crds))
}

/// Returns the admission policies of these controllers and their bindings.
pub(crate) fn policies(controllers: &[Descriptor]) -> String {
    without_duplicates(controllers.iter().flat_map(|controller| controller.policies))
}

/// Returns the names of a controller's CRDs.
fn definition_names(controller: &Descriptor) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for yaml in controller.crds {
        let definitions: Vec<Value> = serde_saphyr::from_multiple(yaml).map_err(Error::ReadDefinition)?;
        let of_definitions = definitions.iter().filter_map(|crd| crd["metadata"]["name"].as_str());
        names.extend(of_definitions.map(str::to_owned));
    }
    Ok(names)
}

/// Joins YAML documents to one stream.
fn without_duplicates<'a>(documents: impl Iterator<Item = &'a &'static str>) -> String {
    let mut found: Vec<&str> = Vec::new();
    for document in documents {
        if !found.contains(document) {
            found.push(document);
        }
    }
    found.join("---\n")
}

/// Returns the output of `portreeve rbac`: the roles of an account's replicas and their bindings.
pub(crate) fn rbac(
    enabled: &[Descriptor],
    account: &Account,
    election: &portreeve_leader::Args,
    leases: &Leases,
    secret: &SecretArgs,
    install_crds: bool,
) -> Result<String, Error> {
    let leases = leases.iter().map(|(lease, _)| &**lease);
    let options = rbac::RoleOptions {
        install_crds,
        leases: leases.filter(|_| election.leader_elect).collect(),
        lease_namespace: election.namespace_or(&account.namespace),
        secret,
    };
    rbac::rbac(enabled, account, &options)
}

/// Returns the output of `portreeve fence`: the policy that rejects writes of replicas that do not
/// lead. Empty without leader election.
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
            let namespace = election.namespace_or(&account.namespace);
            fence::fence(controllers, account, &fence::LeaseRef { namespace, name }, action)
        }
        several => {
            let names = |controllers: &[Descriptor]| controllers.iter().map(|controller| controller.name).collect();
            let several = several
                .iter()
                .map(|(lease, controllers)| (lease.clone(), names(controllers)));
            Err(Error::SeveralGroups(FenceGroups {
                leases: several.collect(),
                namespace: account.namespace.clone(),
                lease_namespace: election.namespace_or(&account.namespace).to_owned(),
                action,
            }))
        }
    }
}

/// Returns the output of `portreeve flowschema`: the FlowSchema for requests of leader election.
/// Empty without leader election.
pub(crate) fn flow_schema(account: &Account, election: &portreeve_leader::Args) -> Result<String, Error> {
    if !election.leader_elect {
        return Ok(String::new());
    }
    flow_schema::flow_schema(account, election.namespace_or(&account.namespace))
}

/// A name with characters that are not allowed.
#[derive(Debug, thiserror::Error)]
#[error("use only lower case letters, digits, dashes and dots")]
struct InvalidName;

/// Checks that the name of an object has no characters with a meaning in CEL, because it becomes
/// part of CEL expressions.
fn name(text: &str) -> Result<String, InvalidName> {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    if text.is_empty() || !text.bytes().all(is_allowed) {
        return Err(InvalidName);
    }
    Ok(text.to_owned())
}

fn yaml(documents: &[Value]) -> Result<String, Error> {
    // Do not fold long strings.
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

/// Returns the known controllers as a table, for people.
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

/// Returns the known controllers as JSON, for programs.
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
    use portreeve_cli::CONTROLLERS;

    #[test]
    fn controllers_are_listed_for_people_and_for_programs() {
        expect![[r"
            NAME                                          ALIASES                   DEFAULT
            clusterrole-aggregation-controller            clusterrole-aggregation   off
            crontab-controller                            crontab                   on
            cronjob-controller                            cronjob                   off
            foo-controller                                foo                       on
            garbage-collector-controller                  garbagecollector          off
            namespace-controller                          namespace                 off
            persistentvolume-protection-controller        pv-protection             off
            persistentvolumeclaim-protection-controller   pvc-protection            off
            root-ca-certificate-publisher-controller      root-ca-cert-publisher    off
            serviceaccount-controller                     serviceaccount            off
            ttl-after-finished-controller                 ttl-after-finished        off
        "]]
        .assert_eq(&table(CONTROLLERS));
        assert_eq!(list(CONTROLLERS)[3]["name"], "foo-controller");
    }
}
