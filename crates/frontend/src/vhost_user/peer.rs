//! The process at the other end of a socket.

use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// The process that connected, if it is in our PID namespace. (`rustix` cannot say that it is not:
/// there the kernel gives 0.)
pub fn peer_pid(stream: &UnixStream) -> Option<u32> {
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
        assert_eq!(peer_pid(&stream), Some(std::process::id()));
    }
}
