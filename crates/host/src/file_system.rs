//! Local file systems: those that serve calls without waiting for a server.
//!
//! On a local file system io_uring passes a request to a device and returns. On FUSE, NFS and the
//! like it makes the call on the submitting thread (tried on Linux 6.18: reads and writes of a file
//! on FUSE wait in `io_uring_enter` for the server, buffered and direct), or on a worker of the
//! thread's ring, which all disks of that thread share and which counts against the limit on
//! processes. So a stopped server would stop other disks. Images there are served by threads of
//! their own, and guest memory there is refused.

use std::fs::File;

use rustix::fs::fstatfs;

/// Local file systems, from linux/magic.h, bcachefs and OpenZFS. Others may wait for a server.
const LOCAL: [u64; 19] = [
    0x0000_ef53, // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // btrfs
    0xca45_1a4e, // bcachefs
    0x2fc1_2fc1, // ZFS
    0xf2f5_2010, // F2FS
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0x9584_58f6, // hugetlbfs
    0x794c_7630, // overlayfs; what it lies on decides, and is local but for rare cases
    0x3153_464a, // JFS
    0x5265_4973, // ReiserFS
    0x0000_3434, // NILFS2
    0x2011_bab0, // exFAT
    0x0000_4d44, // FAT
    0x7366_746e, // NTFS
    0x73717368,  // squashfs
    0xe0f5_e1e2, // EROFS
    0x0000_9660, // ISO 9660
];

/// Returns whether a call on the file may wait for a server. Devices are reached through queues of
/// the kernel.
pub fn may_ask_a_server(file: &File) -> bool {
    let is_file = file.metadata().is_ok_and(|meta| meta.is_file());
    is_file && fstatfs(file).map_or(true, |told| !is_local(told.f_type as u64))
}

fn is_local(kind: u64) -> bool {
    LOCAL.contains(&(kind & 0xffff_ffff))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_to_be_local_may_ask_a_server() {
        // NFS, CIFS, SMB 2, FUSE, 9P, Ceph, and an unknown one.
        for remote in [0x6969, 0xff53_4d42, 0xfe53_4d42, 0x6573_5546, 0x0102_1997, 0x00c3_6400, 1] {
            assert!(!is_local(remote), "{remote:x}");
        }
        assert!(is_local(0xef53));
    }

    #[test]
    fn a_device_is_asked_through_the_kernel_wherever_its_name_lies() {
        assert!(!may_ask_a_server(&File::open("/dev/null").expect("every host has it")));
        let file = tempfile::tempfile_in("/dev/shm").expect("/dev/shm is there");
        assert!(!may_ask_a_server(&file));
    }
}
