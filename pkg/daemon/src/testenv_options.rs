//! The flags of `portreeve testenv`.

use std::path::PathBuf;

use portreeve_reconcile::Descriptor;

use crate::logging::Logging;

/// The name of the command.
pub(crate) const NAME: &str = "testenv";

/// The flags of the command, beside those of its controllers.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// The kubeconfig of an administrator of the control plane
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: PathBuf,
    /// A list of controllers to run, in the syntax of the daemon's --controllers. '*' enables all
    /// of this command.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "*",
        allow_hyphen_values = true
    )]
    pub(crate) controllers: Vec<String>,
    /// The port of 127.0.0.1 on which to serve /settled, health, metrics and debug pages by HTTPS.
    /// 0 chooses a free one.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub(crate) port: u16,
    /// A file to write once the caches are synced: JSON with the address, the PEM certificate of
    /// the listener and the process id
    #[arg(long, value_name = "FILE")]
    pub(crate) ready_file: Option<PathBuf>,
    /// Accept an apiserver on another machine. The controllers delete objects without a Lease, also
    /// beside a kube-controller-manager.
    #[arg(long)]
    pub(crate) allow_remote: bool,
    #[command(flatten)]
    pub(crate) logging: Logging,
}

/// Adds the flags of the controllers to the command.
pub(crate) fn with_flags(command: clap::Command, known: &[Descriptor]) -> clap::Command {
    let own = known.iter().filter(|descriptor| descriptor.in_testenv);
    let flags: Vec<_> = own
        .flat_map(|descriptor| {
            let flags = (descriptor.flags)().into_iter();
            flags.map(|flag| flag.help_heading(descriptor.name))
        })
        .collect();
    command.mut_subcommand(NAME, |testenv| testenv.args(flags))
}
