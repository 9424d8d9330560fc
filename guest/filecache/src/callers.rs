//! Callers, and acting for them: calls to the source are made with the caller's ids, so that the
//! server checks their permissions, and created files belong to the caller.
//!
//! FUSE passes the user and the group. Supplementary groups are read from the caller's status in
//! `/proc`; unreadable ones (another pid namespace) count as none, and such a caller never shares a
//! file that was registered for others.

use std::fs;
use std::marker::PhantomData;
use std::sync::LazyLock;

use flowstone_memory::mutated;

/// The ids of a calling process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups, if they are known.
    pub groups: Option<Box<[u32]>>,
}

/// Only the superuser can act for others. If another user runs the daemon, the kernel admits only
/// that user.
static CAN_ACT: LazyLock<bool> = LazyLock::new(|| rustix::process::geteuid().is_root());

impl Caller {
    /// Reads the ids of a request's sender.
    pub fn of(uid: u32, gid: u32, task: u32) -> Self {
        // The superuser of the guest needs no groups here; a server that squashes root ignores
        // them.
        let groups = if uid == 0 { Some(Box::default()) } else { groups_of(task) };
        Self { uid, gid, groups }
    }

    /// Makes this thread act for the caller until the guard is dropped.
    pub fn act(&self) -> Acting {
        let is_other = (self.uid, self.gid) != (0, 0);
        let acts = *CAN_ACT && is_other;
        let acts = mutated("guest.callers.act-as-root", acts, false);
        if acts {
            let has_groups = mutated("guest.callers.lose-their-groups", true, false);
            if has_groups {
                set_groups(self.groups.as_deref().unwrap_or_default());
            }
            set_ids(self.uid, self.gid);
        }
        Acting { acts, on_this_thread: PhantomData }
    }
}

/// Guard of acting for a caller on this thread. Dropped, it restores the daemon's ids.
pub struct Acting {
    acts: bool,
    on_this_thread: PhantomData<*const ()>,
}

impl Drop for Acting {
    fn drop(&mut self) {
        if self.acts {
            set_ids(0, 0);
            set_groups(&[]);
        }
    }
}

/// Sets the thread's ids. The superuser's file capabilities go and come with the user id.
fn set_ids(uid: u32, gid: u32) {
    // SAFETY: these two change the ids of this thread, and touch no memory. They report no error;
    // a superuser may set any.
    unsafe {
        libc::setfsgid(gid);
        libc::setfsuid(uid);
    }
}

/// Makes the system call directly: glibc's function of this name changes all threads.
fn set_groups(groups: &[u32]) {
    // SAFETY: the pointer and the length are those of a slice, which is only read.
    let result = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    debug_assert_eq!(result, 0, "a superuser may set groups");
}

fn groups_of(task: u32) -> Option<Box<[u32]>> {
    let status = fs::read_to_string(format!("/proc/{task}/status")).ok()?;
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"))?;
    groups.split_whitespace().map(|it| it.parse().ok()).collect()
}

const KILL: u64 = 1 << (libc::SIGKILL - 1);

/// Returns whether a signal is pending for a task, which then must not block. Unknown for a task in
/// another pid namespace (0).
pub fn is_interrupted(task: u32) -> bool {
    if task == 0 {
        return false;
    }
    let Ok(status) = fs::read_to_string(format!("/proc/{task}/status")) else { return true };
    let signals = |name| signals(&status, name);
    let ignored = signals("SigIgn:") | signals("SigBlk:");
    let waiting = signals("SigPnd:") | signals("ShdPnd:");
    waiting & (!ignored | KILL) != 0
}

/// Returns a signal set from a task's status.
fn signals(status: &str, name: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    u64::from_str_radix(mask.trim(), 16).unwrap_or_default()
}

/// Returns whether a task is being killed. (A signal that terminates a process is pending as
/// SIGKILL for each of its tasks.) Unknown for a task in another pid namespace (0).
pub fn is_killed(task: u32) -> bool {
    if task == 0 {
        return false;
    }
    let Ok(status) = fs::read_to_string(format!("/proc/{task}/status")) else { return true };
    signals(&status, "SigPnd:") & KILL != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_of_the_task() {
        let own = rustix::process::getgroups().unwrap();
        let own: Box<[u32]> = own.into_iter().map(rustix::process::Gid::as_raw).collect();
        assert_eq!(groups_of(std::process::id()), Some(own));
        assert_eq!(groups_of(u32::MAX), None, "there is no such task");
    }

    #[test]
    fn a_task_that_is_gone_waits_for_nothing() {
        assert!(!is_interrupted(std::process::id()));
        assert!(is_interrupted(u32::MAX));
        assert!(!is_interrupted(0), "of another namespace");
        assert!(!is_killed(std::process::id()));
        assert!(is_killed(u32::MAX));
        assert!(!is_killed(0), "of another namespace");
    }
}
