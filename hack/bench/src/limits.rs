//! The reasons why rows miss their targets, as profiles have shown. Pure.

use crate::rows::Row;

/// Returns the known reason why a row misses one of its targets.
pub(crate) fn reason(row: Row) -> Option<&'static str> {
    let reason = match row {
        Row::Memory500 => {
            "with `--install-crds`, the daemon generates a definition of 120 kB at its start; memory that the allocator keeps of this counts."
        }
        Row::Next => "with daylight saving time, a search for `*/5` looks up the zone's offset twice.",
        Row::Foo1000 => {
            "a third of Portreeve's requests are events, which no other subject sends. The profile is flat: a quarter of the CPU time is \
             the kernel's, for sockets and waiting, a seventh is memory allocation, and 5 % is `memcpy`."
        }
        Row::FooMemory => {
            "the heap grows a little when Foos are removed while others are created, and stays the same after that."
        }
        Row::Shell => {
            "more than half of the resident memory is pages of the program, of whose code a third runs. Folding identical functions (lld, \
             `--icf=all`) would save 60 kB of 9.1 MB."
        }
        _ => return None,
    };
    Some(reason)
}
