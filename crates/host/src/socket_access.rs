//! Access to a unix socket: the group and the mode of its file.

#![allow(rustdoc::broken_intra_doc_links, reason = "in help, brackets mean optional")]

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::str::FromStr;

use clap::Args;
use flowstone_block::{Errno, Error, Result};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags};

/// Default mode of a socket with a given group.
const MODE_FOR_A_GROUP: SocketMode = SocketMode(0o660);
/// Buffer sizes for the members of a group: initial, and at most.
const GROUP_ENTRY_BYTES: usize = 16 << 10;
const GROUP_ENTRY_BYTES_MAX: usize = 64 << 20;

/// The group and the mode that a socket is to have; what is not given is left to the system: the
/// process's group, and 0777 less the umask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub struct SocketAccess {
    /// Group of the socket, by name or number: libvirt's QEMU runs as another user, which must be
    /// in it [default: that of the daemon]
    #[arg(long = "socket-group", id = "socket_group", value_name = "GROUP")]
    pub group: Option<SocketGroup>,
    /// Mode of the socket, in octal; write permission allows connecting [default: 0660 with
    /// --socket-group, else 0777 less the umask]
    #[arg(long = "socket-mode", id = "socket_mode", value_name = "MODE")]
    pub mode: Option<SocketMode>,
}

/// A group, given by name or number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketGroup(u32);

/// The permissions of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketMode(u32);

impl SocketAccess {
    /// Access for the owner only.
    pub const OWNER: Self = Self { group: None, mode: Some(SocketMode(0o600)) };

    /// Takes settings not given here from `others`.
    pub fn or(self, others: Self) -> Self {
        Self { group: self.group.or(others.group), mode: self.mode.or(others.mode) }
    }

    /// Returns whether anything is to be changed.
    fn is_given(self) -> bool {
        self != Self::default()
    }

    /// Called before `socket` is bound, which then creates a file that only root can connect to: at
    /// no time may more processes connect than requested. (Linux takes the mode of a socket's file
    /// from the socket itself. The umask would also work, but applies to all threads.)
    pub(crate) fn close(self, socket: BorrowedFd<'_>) -> io::Result<()> {
        if self.is_given() {
            rustix::fs::fchmod(socket, Mode::empty())?;
        }
        Ok(())
    }

    /// Sets the access of the bound socket at `path`. The group comes first: the mode is never in
    /// force for another one.
    pub fn open(self, path: &Path, name: &str) -> Result<()> {
        if !self.is_given() {
            return Ok(());
        }
        let host = |errno: Errno| Error::host(name, errno, "choose a folder of your own");
        // A process that may write the folder can replace the socket; a link is not followed, and
        // only a socket is changed.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(host)?;
        let found = rustix::fs::fstat(&file).map_err(host)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
            let why = "another process has replaced the socket";
            return Err(Error::invalid(name, why, "choose a folder of your own"));
        }
        if let Some(SocketGroup(group)) = self.group {
            let group = Some(Gid::from_raw(group));
            rustix::fs::chownat(&file, "", None, group, AtFlags::EMPTY_PATH).map_err(|errno| {
                let what = format!("{name}: socket group {}", group.map_or(0, Gid::as_raw));
                Error::host(what, errno, "choose a group that you are in, or run as root")
            })?;
        }
        let mode = self.mode.unwrap_or(MODE_FOR_A_GROUP);
        // The mode of an `O_PATH` descriptor cannot be changed, but that of its name in /proc can.
        let name_of_file = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        rustix::fs::chmod(name_of_file, Mode::from_raw_mode(mode.0)).map_err(host)
    }
}

impl FromStr for SocketMode {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let digits = text.strip_prefix("0o").unwrap_or(text);
        let is_octal =
            !digits.is_empty() && digits.bytes().all(|digit| matches!(digit, b'0'..=b'7'));
        let mode = u32::from_str_radix(digits, 8).ok().filter(|mode| is_octal && *mode <= 0o777);
        mode.map(Self).ok_or_else(|| {
            format!(
                "`{text}` is not a mode of a socket; write an octal number up to 777, e.g. 0660"
            )
        })
    }
}

impl FromStr for SocketGroup {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            // All ones means "unchanged" in chown(2).
            let number = text.parse().ok().filter(|number| *number != u32::MAX);
            return number
                .map(Self)
                .ok_or_else(|| format!("`{text}` is not the number of a group"));
        }
        match group_number(text) {
            Ok(Some(number)) => Ok(Self(number)),
            Ok(None) => Err(format!("there is no group `{text}`; give its name or number")),
            Err(error) => Err(format!("group `{text}` cannot be looked up: {error}")),
        }
    }
}

/// Returns the number of the group called `name`, if there is one, from the system's group
/// databases.
fn group_number(name: &str) -> io::Result<Option<u32>> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    let mut bytes = GROUP_ENTRY_BYTES;
    loop {
        match lookup(&name, bytes) {
            Err(error) if error.raw_os_error() == Some(libc::ERANGE) => {
                if bytes >= GROUP_ENTRY_BYTES_MAX {
                    return Err(error);
                }
                bytes *= 4;
            }
            found => return found,
        }
    }
}

fn lookup(name: &CString, bytes: usize) -> io::Result<Option<u32>> {
    let mut entry = MaybeUninit::<libc::group>::uninit();
    let mut strings = vec![0; bytes];
    let mut found = std::ptr::null_mut();
    // SAFETY: `name` ends with a zero; `entry`, `found` and the `bytes` bytes of `strings` are ours
    // and live across the call.
    let failed = unsafe {
        libc::getgrnam_r(
            name.as_ptr(),
            entry.as_mut_ptr(),
            strings.as_mut_ptr(),
            strings.len(),
            &raw mut found,
        )
    };
    match (failed, found.is_null()) {
        // Some databases report an unknown name in this way (getgrnam(3)).
        (0 | libc::ENOENT | libc::ESRCH | libc::EPERM, true) => Ok(None),
        // SAFETY: `found` is not null, so it points to `entry`, which the call has filled.
        (0, false) => Ok(Some(unsafe { (*found).gr_gid })),
        (errno, _) => Err(io::Error::from_raw_os_error(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal_and_only_permissions() {
        for (text, mode) in [("0660", 0o660), ("770", 0o770), ("0o600", 0o600), ("0", 0)] {
            assert_eq!(text.parse(), Ok(SocketMode(mode)));
        }
        for text in ["", "0o", "668", "rw", "+660", "1777", "-1", "777777777777", "0x1ff", "é"] {
            let why = text.parse::<SocketMode>().unwrap_err();
            assert!(why.contains("octal number up to 777"), "{why}");
        }
    }

    #[test]
    fn groups_have_names_and_numbers() {
        assert_eq!("root".parse(), Ok(SocketGroup(0)));
        assert_eq!("107".parse(), Ok(SocketGroup(107)));
        for (text, expected) in [
            ("no such group", "there is no group `no such group`"),
            ("", "there is no group ``"),
            ("nul\0", "there is no group"),
            ("4294967295", "not the number of a group"),
            ("4294967296", "not the number of a group"),
        ] {
            let why = text.parse::<SocketGroup>().unwrap_err();
            assert!(why.contains(expected), "{why}");
        }
    }
}
