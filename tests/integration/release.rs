//! Tests of what a release ships, with programs that take minutes to build: the image's binary, the
//! chart and the overlays, the alert rules, and the update from a former version. `make test`
//! leaves this module out, and `make test-all` runs it.

mod beside_kubernetes;
mod cert_manager;
mod definition;
mod image;
mod manifests;
mod monitoring;
mod policies;
mod probes;
mod rolling_update;
