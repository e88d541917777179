//! A real control plane for tests: etcd and kube-apiserver as processes, with nothing mocked and nothing left behind.
//!
//! [`ControlPlane`] starts both from the binaries that `make control-plane` builds; [`Process`] supervises any program, such as the
//! daemon under test; [`FaultProxy`] stands before the apiserver and fails as a test wants; [`eventually`] waits for a condition with
//! a limit; [`Corpus`] shows bytes and mutations of them to what decodes them. Only tests and `hack/run` use this crate.
//!
//! There is no fake apiserver here and no controller manager. Whoever needs a Deployment's status or a Pod writes it.

mod access;
mod assets;
mod control_plane;
mod corpus;
mod credentials;
mod etcd;
mod eventually;
mod ports;
mod process;
mod proxy;
mod scratch;
mod server;

pub use access::Namespace;
pub use assets::server_binary;
pub use control_plane::{Builder, ControlPlane};
pub use corpus::Corpus;
pub use eventually::{PollResult, eventually};
pub use ports::free_port;
pub use process::Process;
pub use proxy::{BodyFault, CannedResponse, Fault, FaultProxy, Matcher, Repeat, RequestCounter};
pub use rustix::process::Signal;
pub use server::ServerProcess;
