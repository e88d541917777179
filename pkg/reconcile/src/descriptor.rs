//! The registry entry of a controller.

use crate::{BuildError, Context, Registrations, admission::Webhook};

/// The registry entry of a controller.
#[derive(Clone, Copy)]
pub struct Descriptor {
    /// The ID, such as `foo-controller`, for `--controllers`, logs, metrics and events. Never
    /// rename it; add an alias instead.
    pub name: &'static str,
    /// The targets of its log lines, which `-v` applies to, as to those of Portreeve: its crate.
    /// Use `module_path!()` in the root of the crate.
    pub log_target: &'static str,
    /// Other names that `--controllers` accepts. Never remove one.
    pub aliases: &'static [&'static str],
    /// Whether `*` in `--controllers` includes it.
    pub on_by_default: bool,
    /// Whether `portreeve testenv` runs it: it does what kube-controller-manager would, on a
    /// control plane without one.
    pub in_testenv: bool,
    /// The CRDs that it needs in the cluster, as YAML documents that end with a newline. They are
    /// generated from the types in advance: the code that derives schemas from types is large, and
    /// would stay in the daemon's memory.
    pub crds: &'static [&'static str],
    /// The admission policies and bindings for the objects of its CRDs, as YAML documents that end
    /// with a newline. `portreeve policies` prints them; the daemon does not install them.
    pub policies: &'static [&'static str],
    /// The permissions that it needs. `portreeve rbac`, `portreeve fence` and the manifests in
    /// deploy/ are generated from these rules.
    pub rules: &'static [Rule],
    /// Its admission webhooks; `Vec::new` for none. Every replica serves them, and `portreeve
    /// webhooks` prints their configurations.
    pub webhooks: fn() -> Vec<Webhook>,
    /// Its own flags, named as in Kubernetes: `--concurrent-foo-syncs`.
    pub flags: fn() -> Vec<clap::Arg>,
    /// Builds the controller. Must not block; informers and other tasks start in the background.
    pub build: fn(&Context<'_>) -> Result<Registrations, BuildError>,
}

/// The permissions of a role, with the fields of an RBAC `PolicyRule`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rule {
    /// API groups; the empty string is the core group.
    pub groups: &'static [&'static str],
    /// Resources, including subresources such as `foos/status`.
    pub resources: &'static [&'static str],
    /// Verbs.
    pub verbs: &'static [&'static str],
}
