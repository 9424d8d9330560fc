//! Any bytes as superblock, record header and map root, with and without fitting checksums: refused
//! or understood, and what is understood comes back the same when it is written again.
#![no_main]

use flowstone_log::fuzzing::decode;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| decode(bytes));
