//! Tests of `portreeve testenv`, as authors of operators use it.

mod controllers;
mod environment;
mod life;
mod unsettled;
