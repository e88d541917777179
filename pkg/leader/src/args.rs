//! `--leader-elect` and its kin: the flags, the rules between them, and the names that follow from them.

use std::{collections::BTreeMap, time::Duration};

use portreeve_client::parse_duration;

use crate::elector::{ElectionTimings, JITTER};

/// The flags of leader election. Flatten them into a command line.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Leader election")]
#[group(skip)]
pub struct Args {
    /// Start a leader election client and gain leadership before running controllers. Enable this when running replicated components for
    /// high availability.
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub leader_elect: bool,
    /// The duration that non-leader candidates will wait after observing a leadership renewal until
    /// attempting to acquire leadership of a led but unrenewed leader slot. This is effectively the
    /// maximum duration that a leader can be stopped before it is replaced by another candidate. In
    /// whole seconds.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    pub leader_elect_lease_duration: Duration,
    /// The duration that the acting leader will retry refreshing leadership, and continue to write,
    /// before giving up. This must be less than the lease duration.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub leader_elect_renew_deadline: Duration,
    /// The duration the clients should wait between tries to acquire or renew the Lease.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    pub leader_elect_retry_period: Duration,
    /// The name of the Lease that is used for locking during leader election. For a group, a dash
    /// and the group's name follow it.
    #[arg(long, value_name = "NAME", default_value = "portreeve", value_parser = lease_name)]
    pub leader_elect_resource_name: String,
    /// The namespace of the Lease that is used for locking during leader election.
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system", value_parser = name)]
    pub leader_elect_resource_namespace: String,
    /// Groups of controllers that each have their own Lease, so that the work spreads over
    /// replicas, such as crontab=a,foo=b. Controllers without a group share one Lease.
    #[arg(long, value_name = "CONTROLLER=GROUP", value_delimiter = ',', value_parser = membership)]
    pub leader_elect_groups: Vec<Membership>,
}

/// One item of `--leader-elect-groups`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Membership {
    /// A controller's name or alias.
    pub controller: String,
    /// The group that it is led with.
    pub group: String,
}

/// Flags that do not go together. The texts are client-go's, with the values and the way out.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Error {
    /// The Lease would be free before its holder gives up.
    #[error(
        "leaseDuration must be greater than renewDeadline: --leader-elect-lease-duration={lease:?} is not more than \
         --leader-elect-renew-deadline={renew:?}; give it half as much again"
    )]
    Renew {
        /// `--leader-elect-lease-duration`.
        lease: Duration,
        /// `--leader-elect-renew-deadline`.
        renew: Duration,
    },
    /// A single failure would lose the Lease.
    #[error(
        "renewDeadline must be greater than retryPeriod*JitterFactor: --leader-elect-renew-deadline={renew:?} is not more than \
         1.2 times --leader-elect-retry-period={retry:?}; a fifth of the deadline is a good period"
    )]
    Retry {
        /// `--leader-elect-renew-deadline`.
        renew: Duration,
        /// `--leader-elect-retry-period`.
        retry: Duration,
    },
    /// A time is zero.
    #[error("{name} must be greater than zero: --{flag} is 0; its default is {default}")]
    Zero {
        /// The field, as client-go calls it.
        name: &'static str,
        /// The flag.
        flag: &'static str,
        /// What is usual.
        default: &'static str,
    },
    /// A Lease counts in seconds.
    #[error(
        "--leader-elect-lease-duration={0:?} has a fraction of a second, which a Lease cannot say; give whole seconds"
    )]
    Fraction(Duration),
}

impl Args {
    /// The times, once they are known to go together.
    ///
    /// # Errors
    ///
    /// Fails where client-go's `NewLeaderElector` does, and on a lease duration that a Lease cannot say.
    pub fn times(&self) -> Result<ElectionTimings, Error> {
        let (lease, renew) = (self.leader_elect_lease_duration, self.leader_elect_renew_deadline);
        let retry = self.leader_elect_retry_period;
        let zeroes = [
            (lease, "leaseDuration", "leader-elect-lease-duration", "15s"),
            (renew, "renewDeadline", "leader-elect-renew-deadline", "10s"),
            (retry, "retryPeriod", "leader-elect-retry-period", "2s"),
        ];
        if let Some((_, name, flag, default)) = zeroes.into_iter().find(|(time, ..)| time.is_zero()) {
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

    /// The name of a group's Lease; of those who are in none, the Lease's plain name.
    pub fn lease_name(&self, group: Option<&str>) -> String {
        let name = &self.leader_elect_resource_name;
        group.map_or_else(|| name.clone(), |group| format!("{name}-{group}"))
    }

    /// The groups in which `controllers` are led, each with its members in their order; those in none come first. `names` gives a
    /// controller's names.
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

/// What a candidate calls itself: where it runs, and something that no other process has. `$POD_NAME` comes before the host's name: it is
/// what the server's fence compares with the token.
pub fn identity() -> String {
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    let pod = std::env::var("POD_NAME").ok().filter(|name| !name.is_empty());
    format!("{}_{}", pod.unwrap_or_else(host), uuid::Uuid::new_v4())
}

fn membership(text: &str) -> Result<Membership, String> {
    let (controller, group) = text
        .split_once('=')
        .filter(|(controller, group)| !controller.is_empty() && !group.is_empty())
        .ok_or("give CONTROLLER=GROUP, such as crontab=a")?;
    Ok(Membership {
        controller: controller.to_owned(),
        group: name(group)?,
    })
}

/// The name of a Lease: labels with dots between them. A group's name has to fit behind it.
fn lease_name(text: &str) -> Result<String, String> {
    let labels = text.split('.').map(name).collect::<Result<Vec<_>, _>>()?;
    if text.len() > 180 {
        return Err("give at most 180 letters".to_owned());
    }
    Ok(labels.join("."))
}

/// A label of DNS.
fn name(text: &str) -> Result<String, String> {
    let allowed = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    let dashed = text.starts_with('-') || text.ends_with('-');
    if text.is_empty() || text.len() > 63 || dashed || !text.chars().all(allowed) {
        return Err("give lower case letters, digits and dashes, at most 63, with no dash at the ends".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests;
