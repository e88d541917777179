//! The executable from outside: command line, config file, manifests, log, endpoints, limits,
//! signals and exit codes.

mod blocked_stderr;
mod config;
mod logs;
mod manifests;
mod open_files;
mod serving;
mod signals;
mod usage;
