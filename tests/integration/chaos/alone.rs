//! Each fault of requests and of servers, alone. [`super::random`] combines all of them in each run
//! of `make test`; these tests, which show which one fails, are part of `make test-all`.

mod pages;
mod requests;
mod servers;
