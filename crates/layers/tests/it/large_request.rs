//! Memory that a request of a guest costs beside its own.

use super::*;

const PIECES: u64 = 126;
const PIECE_BYTES: usize = 4 << 20;

/// Returns the largest amount of memory that this process has had, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}

/// Its 504 MiB were copied at once to be checked, in memory whose lack ends the daemon.
#[test]
fn the_largest_write_of_a_guest_is_verified_in_little_memory() {
    let layer = Verify::new(Arc::new(Null::new(SectorCount::new(1 << 30))));
    let mut channel = layer.channel(&QueueContext::alone(QueueDepth(4)).unwrap()).unwrap();
    let mut piece = vec![7u8; PIECE_BYTES];
    let all = extent(0, PIECES * PIECE_BYTES as u64 / 512);
    let mut request = Request::new(Op::Write(all), 0);
    for _ in 0..PIECES {
        // SAFETY: the memory is there for as long as the channel.
        request.memory.push(unsafe { IoVec::of(&mut piece) });
    }
    let before = peak_mib();
    channel.submit(request);
    channel.kick();
    let grown = peak_mib() - before;
    assert!(grown < 300, "{grown} MiB");
}
