//! A filter on the system calls of one thread, for tests of the calls that are made.

use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
use libc::{SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, sock_filter, sock_fprog};

/// Makes calls fail with `errno` if the lower half of an argument has `value` under `mask`.
pub struct Refusal {
    pub call: i64,
    pub argument: u32,
    pub mask: u32,
    pub value: u32,
    pub errno: i32,
}

impl Refusal {
    /// Installs the filter on this thread, permanently.
    pub fn install(&self) {
        // `struct seccomp_data`: the number of the call at 0, arguments of eight bytes from 16 on.
        let load = |at| step(BPF_LD | BPF_W | BPF_ABS, 0, at);
        let unless = |value, skip| step(BPF_JMP | BPF_JEQ | BPF_K, skip, value);
        let mut steps = [
            load(0),
            unless(self.call as u32, 4),
            load(16 + 8 * self.argument),
            step(BPF_ALU | BPF_AND | BPF_K, 0, self.mask),
            unless(self.value, 1),
            step(BPF_RET | BPF_K, 0, SECCOMP_RET_ERRNO | self.errno as u32),
            step(BPF_RET | BPF_K, 0, SECCOMP_RET_ALLOW),
        ];
        let program = sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        // SAFETY: the filter outlives the calls, which copy it; it changes no memory of ours.
        let installed = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &program) == 0
        };
        assert!(installed, "no filter: {}", std::io::Error::last_os_error());
    }
}

const fn step(code: u32, skip_unless: u8, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: skip_unless, k }
}
