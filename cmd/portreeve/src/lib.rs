//! The list of controllers. To add one, create a folder under controllers/ and add a line here.

use portreeve_reconcile::Descriptor;

/// Every controller of this binary, in the order in which they start.
pub const CONTROLLERS: &[Descriptor] = &[
    portreeve_clusterroleaggregation::DESCRIPTOR,
    portreeve_crontab::CRONTAB,
    portreeve_crontab::CRONJOB,
    portreeve_foo::DESCRIPTOR,
    portreeve_garbagecollector::DESCRIPTOR,
    portreeve_namespace::DESCRIPTOR,
    portreeve_volumeprotection::VOLUME_PROTECTION,
    portreeve_volumeprotection::CLAIM_PROTECTION,
    portreeve_rootca::DESCRIPTOR,
    portreeve_serviceaccount::DESCRIPTOR,
    portreeve_ttlafterfinished::DESCRIPTOR,
];

#[cfg(test)]
mod tests {
    #[test]
    fn names_of_controllers_are_unique() {
        assert_eq!(portreeve_manager::selection::check_registry(super::CONTROLLERS), Ok(()));
    }
}
