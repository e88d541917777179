//! Each fault of requests and of servers, alone, in `make test-release`, where [`super::random`]
//! combines all of them. `make test` has two of its rounds.

mod pages;
mod requests;
mod servers;
