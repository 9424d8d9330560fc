//! The process at the other end of a socket.

use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use flowstone_block::Peer;

/// Returns the process that connected, if it is in our PID namespace. To be called at once: the
/// kernel keeps only its PID.
pub fn peer_of(stream: &UnixStream) -> Option<Peer> {
    peer_pid(stream).map(peer_called)
}

/// Returns the process that has this PID now.
pub fn peer_called(pid: u32) -> Peer {
    let stat = std::fs::read(format!("/proc/{pid}/stat"));
    Peer { pid, start: stat.ok().and_then(|it| start_time(&String::from_utf8_lossy(&it))) }
}

/// Returns the start time from the text of `/proc/PID/stat`.
fn start_time(stat: &str) -> Option<u64> {
    stat_field(stat, 22)
}

/// Returns a field of `/proc/PID/stat`, from the third on, by its number in proc_pid_stat(5). The
/// second one, in brackets, may contain anything.
pub fn stat_field(stat: &str, number: usize) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

/// Returns the PID of the peer. (`rustix` cannot express a peer in another namespace, for which the
/// kernel gives 0.)
fn peer_pid(stream: &UnixStream) -> Option<u32> {
    let mut peer = MaybeUninit::<libc::ucred>::uninit();
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `peer` has room for the `bytes` that the call may write, and both live across it.
    let failed = unsafe {
        let (fd, to) = (stream.as_raw_fd(), peer.as_mut_ptr().cast());
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, to, &raw mut bytes)
    };
    if failed != 0 || bytes as usize != size_of::<libc::ucred>() {
        return None;
    }
    // SAFETY: the call has filled all of it.
    let peer = unsafe { peer.assume_init() };
    u32::try_from(peer.pid).ok().filter(|pid| *pid != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (stream, _other) = UnixStream::pair().unwrap();
        let peer = peer_of(&stream).unwrap();
        assert_eq!(peer.pid, std::process::id());
        assert!(peer.start > Some(0));
        assert_eq!(peer_called(u32::MAX).start, None, "there is none");
    }

    #[test]
    fn the_name_of_a_process_may_look_like_fields() {
        let stat = "7 (a) 1 2 (b) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 9 9";
        assert_eq!(start_time(stat), Some(4711));
        assert_eq!(start_time("7 (a) S 1"), None);
    }
}
