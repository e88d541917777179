//! A real control plane for tests: etcd and kube-apiserver as processes, without mocks, and cleaned
//! up in every case.
//!
//! - [`ControlPlane`] starts both from the binaries that `make control-plane` builds.
//! - [`PooledPlane`] is one that the tests of a binary use one after the other.
//! - [`Process`] supervises any program, such as the daemon under test.
//! - [`Testenv`] runs `portreeve testenv`: the controllers that a control plane lacks.
//! - [`FaultProxy`] is a proxy for the apiserver that injects faults on request.
//! - [`eventually`] polls for a condition with a time limit.
//! - [`SlowClients`] hold connections of a listener without using them.
//! - [`WebhookServer`] is a webhook whose responses the test chooses.
//! - [`Corpus`] feeds recorded inputs and mutations of them to decoders.
//!
//! Authors of operators can use this crate too: docs/testing.md shows how. A test starts a control
//! plane with [`ControlPlane::pooled`], and on it the controllers with [`Testenv::start`]. After
//! what it does, [`Testenv::settled`] waits until nothing follows from it any more. With
//! [`FaultProxy::kubeconfig`], the operator under test meets faults that the test chooses. In this
//! repository, `hack/bench` and `hack/run` use the crate beside tests.
//!
//! There is no fake apiserver. Without a [`Testenv`] there are no controllers, and with one there
//! are none that run Pods: a test that needs a Pod or the status of a Deployment writes it.

mod access;
mod assets;
mod authority;
mod control_plane;
mod corpus;
mod credentials;
mod definitions;
mod etcd;
mod eventually;
mod pool;
mod ports;
mod process;
mod proxy;
mod scratch;
mod server;
mod slow_clients;
mod template;
mod testenv;
mod webhook_server;

pub use access::Namespace;
pub use assets::server_binary;
pub use authority::{Authority, IssuedCertificate};
pub use control_plane::{Builder, ControlPlane};
pub use corpus::Corpus;
pub use eventually::{LIMIT, PollResult, eventually};
pub use pool::PooledPlane;
pub use ports::free_port;
pub use process::Process;
pub use proxy::{BodyFault, CannedResponse, Fault, FaultProxy, Matcher, Repeat, RequestCounter};
pub use rustix::process::Signal;
pub use server::ServerProcess;
pub use slow_clients::{SlowClients, https_get};
pub use testenv::Testenv;
pub use webhook_server::WebhookServer;
