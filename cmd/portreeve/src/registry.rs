//! The one list of controllers. A new one is a folder under controllers/ and a line here.

use portreeve_reconcile::Descriptor;

/// Every controller that this binary knows, in the order in which they start.
pub const CONTROLLERS: &[Descriptor] = &[
    portreeve_crontab::CRONTAB,
    portreeve_crontab::CRONJOB,
    portreeve_foo::DESCRIPTOR,
    portreeve_garbagecollector::DESCRIPTOR,
    portreeve_ttlafterfinished::DESCRIPTOR,
];

#[cfg(test)]
mod tests {
    #[test]
    fn no_name_stands_for_two_controllers() {
        assert_eq!(portreeve_manager::selection::check_registry(super::CONTROLLERS), Ok(()));
    }
}
