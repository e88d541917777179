//! CronTabs in two versions on a real apiserver, which calls the conversion of a daemon.

mod apply;
mod environment;
mod invalid;
mod kubernetes;
mod lossless;
mod outage;
mod status;
mod watch;
mod wrong;
