//! Shell scripts of the demo's guest.

/// Makes a file system on the whole disk.
pub const MAKE_FILE_SYSTEM: &str = "mkfs.ext4 -q /dev/vda";

/// Mounts it.
pub const MOUNT: &str = "mount -t ext4 /dev/vda /mnt";

/// Writes forty files of growing size, and their checksums.
pub const WRITE_FILES: &str = "mkdir /mnt/files
    cd /mnt/files
    for i in $(seq 40); do head -c $((i * 4801)) /dev/urandom >$i; done
    sha256sum * >/mnt/sums
    sync";

/// Checks the files' checksums.
pub const CHECK_FILES: &str = "cd /mnt/files; sha256sum -c /mnt/sums | grep -c OK";

/// Writes at random, then reads every block and compares its checksum.
pub fn fio_verified(folder: &str) -> String {
    format!(
        "fio --name=verified --directory={folder} --size=32M --bs=4k --rw=randwrite \
         --ioengine=libaio --iodepth=16 --direct=1 --verify=crc32c --verify_fatal=1 \
         --minimal >/tmp/fio"
    )
}

/// Reads and compares the same blocks again.
pub fn fio_verify_only(folder: &str) -> String {
    format!("{} --verify_only", fio_verified(folder))
}

/// The pattern of a database: small writes, each made durable before the next.
pub fn fsync_load(folder: &str) -> String {
    format!(
        "fio --name=fsync --directory={folder} --size=4M --bs=4k --rw=randwrite --fsync=1 \
         --number_ios=200 --minimal >/tmp/fio"
    )
}

/// Writes a file that will be deleted.
pub fn write_big_file(folder: &str) -> String {
    format!("dd if=/dev/urandom of={folder}/big bs=1M count=64 2>&1; sync")
}

/// Deletes it and trims.
pub fn trim(folder: &str) -> String {
    format!("rm {folder}/big; sync; fstrim {folder}; sync")
}

/// Makes a file system on the disk with the log image.
pub const PREPARE_LOG_DISK: &str =
    "mkfs.ext4 -q /dev/vdb; mkdir -p /log; mount -t ext4 /dev/vdb /log";

/// Unmounts.
pub const UNMOUNT: &str = "umount /mnt";

/// Unmounts both disks.
pub const UNMOUNT_BOTH: &str = "umount /mnt /log";

/// Checks the unmounted file systems completely.
pub const CHECK_FILE_SYSTEMS: &str = "e2fsck -fn /dev/vda; e2fsck -fn /dev/vdb";

/// The load during kills, on both disks: far more requests than are done between them.
pub const LOAD: &str = "fio --size=24M --bs=4k --rw=randwrite --ioengine=libaio --iodepth=16 \
    --direct=1 --verify=crc32c --verify_fatal=1 --minimal \
    --name=raw --directory=/mnt --name=log --directory=/log >/tmp/fio
    rm /mnt/raw* /log/log*";

/// Fails if the kernel has logged an error of the disk.
pub const NO_ERRORS_LOGGED: &str = "! dmesg | grep -iE 'I/O error|not a head|EXT4-fs error|hung'";
