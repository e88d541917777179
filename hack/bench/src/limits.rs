//! What holds a row back that misses its target, as a profiler has shown it. Pure.

use crate::rows::Row;

/// The paragraph below the table of a row that misses one of its targets, when something is known about it.
pub(crate) fn limit(row: Row) -> Option<&'static str> {
    let limit = match row {
        Row::Memory500 => {
            "With `--install-crds` the daemon makes a definition of 120 kB out of types at its start; what an allocator keeps of that is \
             counted here."
        }
        Row::Next => {
            "What `*/5` does more in a zone with summer time than in UTC is to look up the zone's offset twice."
        }
        Row::Foo1000 => {
            "A third of all requests are events, which neither the floor nor the peers send; they wait for the end of the burst. The profile \
             is flat: a quarter of the CPU time is the kernel's, for sockets and for waiting, a seventh is memory allocation, 5 % `memcpy`, and \
             no other function has more than 2 %."
        }
        Row::FooMemory => {
            "Half of the memory is the program, the rest is heap, which the first Foos that are removed while others come make a \
             little larger, and which stays the same after that."
        }
        Row::Shell => {
            "More than half of the memory are pages of the program, of which those functions take most that the daemon runs, at its start or later; \
             the linker puts them side by side (`hack/image/order.ld`). A linker that folds identical functions (lld, `--icf=all`) takes \
             60 kB of 9.1 MB away."
        }
        _ => return None,
    };
    Some(limit)
}
