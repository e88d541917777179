//! Converts the flags to groups of controllers, each with its election.

use std::{collections::BTreeMap, sync::Arc};

use portreeve_client::{Connection, Outage};
use portreeve_leader::{Args, Elections, Heartbeat, Membership, Settings, elector::ElectionTimings};
use portreeve_manager::{ControllerGroup, selection::Selection};
use portreeve_reconcile::{Clock, Descriptor};

use crate::{
    client::AGENT,
    error::Error,
    metrics::Metrics,
    options::Options,
    other_leaders::{self, OtherLeader},
};

/// The groups of controllers and their Leases, before any election has started.
pub(crate) struct ElectionPlan {
    /// The Lease name and the controllers of each group.
    groups: Vec<(String, Vec<Descriptor>)>,
    namespace: String,
    identity: String,
    /// `None` disables leader election, and all groups run at once.
    times: Option<ElectionTimings>,
}

/// Returns the Lease names that the flags define, each with its controllers.
pub(crate) fn leases(
    args: &Args,
    known: &[Descriptor],
    enabled: &[Descriptor],
) -> Result<Vec<(String, Vec<Descriptor>)>, Error> {
    check_members(&args.leader_elect_groups, known)?;
    let groups = args.groups(enabled, |controller| {
        std::iter::once(controller.name)
            .chain(controller.aliases.iter().copied())
            .collect()
    });
    let named = groups
        .into_iter()
        .map(|(group, controllers)| (args.lease_name(group.as_deref()), controllers));
    Ok(named.collect())
}

impl ElectionPlan {
    /// Validates the flags and creates the plan.
    pub(crate) fn of(options: &Options, known: &[Descriptor], enabled: &[Descriptor]) -> Result<Self, Error> {
        let args = &options.election;
        let groups = leases(args, known, enabled)?;
        let times = args.times().map_err(Error::ElectionTimings)?;
        // A dry run writes nothing, not even a Lease.
        let elects = args.leader_elect && !options.manager.dry_run;
        Ok(Self {
            groups,
            namespace: args
                .namespace_or(&other_leaders::default_namespace(&options.client))
                .to_owned(),
            identity: portreeve_leader::identity(),
            times: elects.then_some(times),
        })
    }

    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// Checks that nobody leads with Leases of the same names elsewhere, unless the flags say that
    /// this does not matter. In a pod, the deployment decides that.
    pub(crate) async fn ensure_only_leader(
        &self,
        options: &Options,
        connection: &Connection,
        clock: &dyn Clock,
    ) -> Result<(), Error> {
        let is_checked = !options.election.leader_elect_ignore_others && !other_leaders::is_in_cluster(&options.client);
        if self.times.is_none() || !is_checked {
            return Ok(());
        }
        let client = connection.client("leader-election").map_err(Error::Connection)?;
        let names: Vec<_> = self.groups.iter().map(|(lease, _)| &**lease).collect();
        match other_leaders::find(client, &self.namespace, &names, clock.now()).await {
            None => Ok(()),
            Some(OtherLeader { lease, holder }) => Err(Error::OtherLeader { lease, holder }),
        }
    }

    /// Starts the elections. They run as long as the returned [`Elections`] exist.
    pub(crate) async fn start(
        self,
        client: &portreeve_client::Args,
        metrics: &Metrics,
        outage: Outage,
        clock: &Arc<dyn Clock>,
        worker: &Heartbeat,
    ) -> Result<(Vec<ControllerGroup>, Option<Elections>), Error> {
        let Some(times) = self.times else {
            let groups = self.groups.into_iter().map(|(_, controllers)| ControllerGroup {
                controllers,
                election: None,
            });
            return Ok((groups.collect(), None));
        };
        let clock = Arc::clone(clock);
        let settings = Settings {
            client: client.clone(),
            agent: AGENT.to_owned(),
            program: "portreeve",
            identity: self.identity,
            namespace: self.namespace,
            leases: self.groups.iter().map(|(lease, _)| lease.clone()).collect(),
            times,
            wall: Arc::new(move || clock.now()),
            worker: worker.clone(),
            requests: metrics.client.clone(),
            outage,
            metrics: metrics.elections.clone(),
        };
        let elections = Elections::start(settings).await.map_err(Error::Elections)?;
        let groups = self
            .groups
            .into_iter()
            .zip(elections.all())
            .map(|((_, controllers), election)| ControllerGroup {
                controllers,
                election: Some(election.clone()),
            });
        Ok((groups.collect(), Some(elections)))
    }
}

/// Checks that each controller is in at most one group and that all names exist. A controller in
/// two groups could be led by two replicas at once.
fn check_members(items: &[Membership], known: &[Descriptor]) -> Result<(), Error> {
    let mut groups: BTreeMap<&str, &str> = BTreeMap::new();
    for Membership { controller, group } in items {
        let has_name =
            |descriptor: &&Descriptor| descriptor.name == controller || descriptor.aliases.contains(&&**controller);
        let Some(found) = known.iter().find(has_name) else {
            return Err(match Selection::parse(&[controller], known) {
                Err(unknown) => Error::Groups(unknown),
                // The item is valid in `--controllers` but is not a name, for example `*`.
                Ok(_) => Error::Group(controller.clone()),
            });
        };
        if let Some(other) = groups.insert(found.name, group).filter(|other| other != group) {
            return Err(Error::TwoGroups {
                controller: found.name,
                groups: [other.to_owned(), group.clone()],
            });
        }
    }
    Ok(())
}
