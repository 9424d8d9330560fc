//! Requests that any client of the control socket may send: each is refused, or is a command that
//! is the same when it is asked for again.

#![no_main]

use arbitrary::Arbitrary;
use flowstone_daemon::fuzzing::request;
use libfuzzer_sys::fuzz_target;

const METHODS: [&str; 6] = ["GET", "PUT", "PATCH", "DELETE", "POST", "HEAD"];

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    method: u8,
    target: &'a [u8],
    body: &'a [u8],
}

fuzz_target!(|input: Input<'_>| {
    let method = METHODS[usize::from(input.method) % METHODS.len()];
    request(method, input.target, input.body);
});
