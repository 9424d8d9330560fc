//! What a log image promises, tested on a simulated disk: docs/format.md is the argument, these
//! are the attempts to refute it.

mod crash;
mod damage;
mod driver;
mod faults;
mod interleave;
mod kill;
mod oracle;
mod races;
mod resize;
mod soak;
mod space;
mod threads;
