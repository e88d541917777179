//! The `--leader-elect` flags, the rules between them, and the Lease and candidate names derived
//! from them.

use std::{collections::BTreeMap, time::Duration};

use portreeve_client::parse_duration;

use crate::elector::{ElectionTimings, JITTER};

/// The flags of leader election, to be flattened into a command line.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Leader election")]
#[group(skip)]
pub struct Args {
    /// Start a leader election client and gain leadership before running controllers. Enable this
    /// when running replicated components for high availability.
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub leader_elect: bool,
    /// How long a standby waits after the last renewal that it observed before it takes over the
    /// Lease. This is the longest time for which a leader can be stopped before it is replaced. In
    /// whole seconds.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    pub leader_elect_lease_duration: Duration,
    /// How long a leader keeps writing and retrying after the start of its last successful renewal
    /// before it gives up. Must be less than the lease duration.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub leader_elect_renew_deadline: Duration,
    /// The pause between two attempts to acquire or renew the Lease.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    pub leader_elect_retry_period: Duration,
    /// The name of the Lease. The Lease of a group has this name followed by a dash and the group's
    /// name.
    #[arg(long, value_name = "NAME", default_value = "portreeve", value_parser = lease_name)]
    pub leader_elect_resource_name: String,
    /// The namespace of the Lease that is used for locking during leader election. Defaults to that
    /// of the pod, and with --kubeconfig or --master to kube-system.
    #[arg(long, value_name = "NAMESPACE", value_parser = name)]
    pub leader_elect_resource_namespace: Option<String>,
    /// Start although another daemon leads with a Lease of this name in another namespace. Both
    /// then lead. Only with --kubeconfig or --master is that checked.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub leader_elect_ignore_others: bool,
    /// Groups of controllers that elect a leader separately, each with its own Lease, to spread
    /// work over replicas: crontab=a,foo=b. All other controllers share one Lease.
    #[arg(long, value_name = "CONTROLLER=GROUP", value_delimiter = ',', value_parser = membership)]
    pub leader_elect_groups: Vec<Membership>,
}

/// One item of `--leader-elect-groups`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Membership {
    /// A controller's name or alias.
    pub controller: String,
    /// The group whose Lease the controller shares.
    pub group: String,
}

/// Flag values that contradict each other. The texts start as in client-go, and then state the
/// values and a remedy.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Error {
    /// The Lease would become free before its holder gives up.
    #[error(
        "leaseDuration must be greater than renewDeadline: --leader-elect-lease-duration={lease:?} is not more than \
         --leader-elect-renew-deadline={renew:?}; set the lease duration to 1.5 times the renew deadline"
    )]
    Renew {
        /// `--leader-elect-lease-duration`.
        lease: Duration,
        /// `--leader-elect-renew-deadline`.
        renew: Duration,
    },
    /// A single failed renewal would lose the Lease.
    #[error(
        "renewDeadline must be greater than retryPeriod*JitterFactor: --leader-elect-renew-deadline={renew:?} is not more than \
         1.2 times --leader-elect-retry-period={retry:?}; set the retry period to a fifth of the deadline"
    )]
    Retry {
        /// `--leader-elect-renew-deadline`.
        renew: Duration,
        /// `--leader-elect-retry-period`.
        retry: Duration,
    },
    /// A duration is zero.
    #[error("{name} must be greater than zero: --{flag} is 0; set a positive duration, such as the default {default}")]
    Zero {
        /// The name of the field in client-go.
        name: &'static str,
        /// The flag.
        flag: &'static str,
        /// The default of the flag.
        default: &'static str,
    },
    /// The lease duration is not a whole number of seconds.
    #[error(
        "--leader-elect-lease-duration={0:?} has a fraction of a second, which a Lease cannot store; set whole seconds"
    )]
    Fraction(Duration),
}

impl Args {
    /// Returns the election timings after checking them against each other.
    ///
    /// # Errors
    ///
    /// Returns an error where client-go's `NewLeaderElector` does, and when the lease duration is
    /// not in whole seconds.
    pub fn times(&self) -> Result<ElectionTimings, Error> {
        let (lease, renew) = (self.leader_elect_lease_duration, self.leader_elect_renew_deadline);
        let retry = self.leader_elect_retry_period;
        let durations = [
            (lease, "leaseDuration", "leader-elect-lease-duration", "15s"),
            (renew, "renewDeadline", "leader-elect-renew-deadline", "10s"),
            (retry, "retryPeriod", "leader-elect-retry-period", "2s"),
        ];
        if let Some((_, name, flag, default)) = durations.into_iter().find(|(time, ..)| time.is_zero()) {
            return Err(Error::Zero { name, flag, default });
        }
        if lease <= renew {
            return Err(Error::Renew { lease, renew });
        }
        if renew <= retry.mul_f64(JITTER) {
            return Err(Error::Retry { renew, retry });
        }
        if lease.subsec_nanos() > 0 {
            return Err(Error::Fraction(lease));
        }
        Ok(ElectionTimings {
            lease_duration: lease,
            renew_deadline: renew,
            retry_period: retry,
        })
    }

    /// Returns the namespace of the Leases, which is `default` if no flag sets it.
    pub fn namespace_or<'a>(&'a self, default: &'a str) -> &'a str {
        self.leader_elect_resource_namespace.as_deref().unwrap_or(default)
    }

    /// Returns the name of a group's Lease, or the plain Lease name for controllers without a
    /// group.
    pub fn lease_name(&self, group: Option<&str>) -> String {
        let name = &self.leader_elect_resource_name;
        group.map_or_else(|| name.clone(), |group| format!("{name}-{group}"))
    }

    /// Splits `controllers` into their groups and keeps their order within each. Controllers
    /// without a group come first. `names` returns a controller's name and aliases.
    pub fn groups<'a, C: Copy>(
        &self,
        controllers: &[C],
        names: impl Fn(C) -> Vec<&'a str>,
    ) -> Vec<(Option<String>, Vec<C>)> {
        let mut groups: BTreeMap<Option<String>, Vec<C>> = BTreeMap::new();
        for controller in controllers {
            let names = names(*controller);
            let membership = self
                .leader_elect_groups
                .iter()
                .find(|item| names.contains(&&*item.controller));
            let group = membership.map(|membership| membership.group.clone());
            groups.entry(group).or_default().push(*controller);
        }
        groups.into_iter().collect()
    }
}

/// Returns a unique identity for this process: the pod or host name and a UUID. `$POD_NAME` takes
/// precedence over the host name, because the ValidatingAdmissionPolicy compares the identity with
/// the pod name in the writer's token.
pub fn identity() -> String {
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    let pod = std::env::var("POD_NAME").ok().filter(|name| !name.is_empty());
    format!("{}_{}", pod.unwrap_or_else(host), uuid::Uuid::new_v4())
}

/// An invalid value of a flag, by what the flag expects.
#[derive(Debug, thiserror::Error)]
enum InvalidFlag {
    #[error("give at most 63 lower case letters, digits and dashes, without a dash at either end")]
    Label,
    #[error("give at most 180 characters")]
    LeaseName,
    #[error("give CONTROLLER=GROUP, such as crontab=a")]
    Membership,
}

fn membership(text: &str) -> Result<Membership, InvalidFlag> {
    let (controller, group) = text
        .split_once('=')
        .filter(|(controller, group)| !controller.is_empty() && !group.is_empty())
        .ok_or(InvalidFlag::Membership)?;
    Ok(Membership {
        controller: controller.to_owned(),
        group: name(group)?,
    })
}

/// Parses the name of a Lease, which consists of DNS labels separated by dots. The limit of 180
/// characters leaves room for a group name.
fn lease_name(text: &str) -> Result<String, InvalidFlag> {
    let labels = text.split('.').map(name).collect::<Result<Vec<_>, _>>()?;
    if text.len() > 180 {
        return Err(InvalidFlag::LeaseName);
    }
    Ok(labels.join("."))
}

/// Parses a DNS label.
fn name(text: &str) -> Result<String, InvalidFlag> {
    let allowed = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    let dashed = text.starts_with('-') || text.ends_with('-');
    if text.is_empty() || text.len() > 63 || dashed || !text.chars().all(allowed) {
        return Err(InvalidFlag::Label);
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests;
