//! From flags to groups of controllers, each with its election.

use std::{collections::BTreeMap, sync::Arc};

use portreeve_leader::{Args, Elections, Membership, Settings, elector::ElectionTimings};
use portreeve_manager::{ControllerGroup, selection::Selection};
use portreeve_reconcile::{Clock, Descriptor};
use prometheus::Registry;

use crate::{AGENT, Error, Options};

/// Who is to be led together, by which Lease. Pure: nothing is started yet.
pub(crate) struct ElectionPlan {
    /// The name of each group's Lease, and its controllers.
    groups: Vec<(String, Vec<Descriptor>)>,
    namespace: String,
    identity: String,
    /// `None`: nobody is elected, and everything runs at once.
    times: Option<ElectionTimings>,
}

/// The names of the Leases that the flags ask for, and the controllers that each is for.
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
    /// Checks what the flags say.
    pub(crate) fn of(options: &Options, known: &[Descriptor], enabled: &[Descriptor]) -> Result<Self, Error> {
        let args = &options.election;
        let groups = leases(args, known, enabled)?;
        let times = args.times().map_err(Error::ElectionTimings)?;
        // A dry run writes nothing, a Lease neither.
        let elects = args.leader_elect && !options.manager.dry_run;
        Ok(Self {
            groups,
            namespace: args.leader_elect_resource_namespace.clone(),
            identity: portreeve_leader::identity(),
            times: elects.then_some(times),
        })
    }

    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// Starts the elections. They end with what is returned.
    pub(crate) async fn start(
        self,
        client: &portreeve_client::Args,
        requests: portreeve_client::Metrics,
        clock: &Arc<dyn Clock>,
        registry: &Registry,
    ) -> Result<(Vec<ControllerGroup>, Option<Elections>), Error> {
        let Some(times) = self.times else {
            let together = self.groups.into_iter().map(|(_, controllers)| ControllerGroup {
                controllers,
                election: None,
            });
            return Ok((together.collect(), None));
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
            requests,
            metrics: portreeve_leader::Metrics::register(registry).map_err(Error::Metrics)?,
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

/// Each controller is in one group at most, by a name that it has: whoever is in two groups by mistake would be led by two replicas at once.
fn check_members(items: &[Membership], known: &[Descriptor]) -> Result<(), Error> {
    let mut groups: BTreeMap<&str, &str> = BTreeMap::new();
    for Membership { controller, group } in items {
        let is_it = |one: &&Descriptor| one.name == controller || one.aliases.contains(&&**controller);
        let Some(found) = known.iter().find(is_it) else {
            return Err(match Selection::parse(&[controller], known) {
                Err(unknown) => Error::Groups(unknown),
                // What `--controllers` takes besides names.
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
