//! Errors of a path are reported in one line with advice.

use std::fs::{self, File};
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use flowstone_block::{AlignedBuf, ErrorKind};
use flowstone_fileio::{
    Access, BlockingFile, DirectChoice, EngineChoice, FileIo, FileOffset, LockPatience,
    OpenOptions, create_sparse,
};
use flowstone_testkit::wait_until;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tempfile::tempdir;

fn refusal(path: &Path, access: Access) -> String {
    OpenOptions::new(access).open(path).err().expect("a refusal").to_string()
}

#[test]
fn a_missing_file_a_directory_and_a_fifo_are_refused_with_advice() {
    let dir = tempdir().unwrap();
    assert!(refusal(&dir.path().join("none"), Access::Write).contains("no such file"));
    assert!(refusal(dir.path(), Access::Read).contains("it is a directory"));
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    assert!(refusal(&fifo, Access::Write).contains("it is a special file"));
}

#[test]
fn a_second_writer_is_kept_out_and_an_inspector_is_not() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("disk.raw");
    create_sparse(&path, 1 << 20).unwrap();
    let first = OpenOptions::new(Access::Write).open(&path).unwrap();
    let second = OpenOptions::new(Access::Write).open(&path).err().expect("locked");
    assert_eq!(second.kind(), ErrorKind::Busy);
    let reader = OpenOptions::new(Access::Read).open(&path).err().expect("locked");
    assert_eq!(reader.kind(), ErrorKind::Busy);
    assert!(OpenOptions::new(Access::Inspect).open(&path).is_ok());
    drop(first);
    let one = OpenOptions::new(Access::Read).open(&path).unwrap();
    let other = OpenOptions::new(Access::Read).open(&path).unwrap();
    assert_eq!(one.size().unwrap(), other.size().unwrap());
}

/// Locks a file as a writer does.
fn locked(path: &Path) -> File {
    let file = File::options().read(true).write(true).open(path).unwrap();
    // SAFETY: `flock` is plain data, for which zeroes are a valid value: the whole file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    // SAFETY: the file is open, and the lock is there during the call.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }, 0);
    file
}

/// A socket that holds the file in a message in flight: no process has it open.
fn held_by_no_process(file: File) -> UnixStream {
    let (from, to) = UnixStream::pair().unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    assert!(message.push(SendAncillaryMessage::ScmRights(&files)));
    sendmsg(&from, &[IoSlice::new(b"x")], &mut message, SendFlags::empty()).unwrap();
    to
}

fn has_process(path: &Path) -> bool {
    let entries = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten();
    entries("/proc".into())
        .flat_map(|process| entries(process.path().join("fd")))
        .any(|file| fs::read_link(file.path()).is_ok_and(|it| it == path))
}

/// A daemon that replaced a killed one gave up after five seconds: the host's disk was so busy that
/// the kernel was not done with the requests of the killed one.
#[test]
fn a_lock_that_no_process_has_is_waited_for_and_one_that_a_process_has_is_not() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("disk.raw");
    create_sparse(&path, 1 << 20).unwrap();
    let lock_patience = LockPatience { time: Duration::from_millis(1), tell: |_| {} };
    let options = OpenOptions { lock_patience, ..OpenOptions::new(Access::Write) };
    let held = locked(&path);
    let refusal = options.open(&path).err().expect("locked");
    assert_eq!(refusal.kind(), ErrorKind::Busy);
    assert!(refusal.to_string().contains(&std::process::id().to_string()), "{refusal}");

    let held = held_by_no_process(held);
    // Until its exec a child of another test has what was open when it was forked.
    wait_until("no process has it", || !has_process(&path));
    // A process that has it open, or waits for it, does not hold the lock.
    let looks = File::open(&path).unwrap();
    std::thread::scope(|scope| {
        let opens = [(); 2].map(|()| scope.spawn(|| options.open(&path).map(drop)));
        std::thread::sleep(Duration::from_millis(300));
        assert!(opens.iter().all(|it| !it.is_finished()), "it is locked");
        drop(held);
        // One may see that the other has it by then, and be refused.
        let outcomes = opens.map(|it| it.join().unwrap().map_err(|error| error.kind()));
        assert!(outcomes.contains(&Ok(())), "{outcomes:?}");
        assert!(outcomes.iter().all(|it| matches!(it, Ok(()) | Err(ErrorKind::Busy))));
    });
    drop(looks);
}

#[test]
fn qemu_and_we_keep_each_other_from_writing() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("disk.raw");
    create_sparse(&path, 1 << 20).unwrap();
    let qemu_io = |flags: &[&str]| {
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw"]).args(flags).arg(&path);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn()
    };
    let Ok(mut writer) = qemu_io(&[]) else { return flowstone_testkit::skip("no qemu-io here") };
    // Its prompt shows that it has opened the image.
    let mut prompt = [0; 8];
    writer.stdout.as_mut().unwrap().read_exact(&mut prompt).unwrap();
    for access in [Access::Read, Access::Write] {
        let refused = OpenOptions::new(access).open(&path).err().expect("qemu-io writes");
        assert_eq!(refused.kind(), ErrorKind::Busy, "{access:?}");
    }
    writer.kill().unwrap();
    writer.wait().unwrap();
    for access in [Access::Read, Access::Write] {
        let ours = OpenOptions::new(access).open(&path).unwrap();
        let output = qemu_io(&["-c", "write 0 512"]).unwrap().wait_with_output().unwrap();
        assert!(!output.status.success(), "qemu-io writes while we have {access:?}");
        drop(ours);
    }
}

#[test]
fn creating_over_an_existing_file_changes_nothing() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("disk.raw");
    fs::write(&path, b"precious").unwrap();
    let error = create_sparse(&path, 1 << 20).unwrap_err().to_string();
    assert!(error.contains("exists already"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
}

#[test]
fn data_ranges_skip_holes() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("disk.raw");
    create_sparse(&path, 8 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(
        &File::options().write(true).open(&path).unwrap(),
        &[7; 4096],
        4 << 20,
    )
    .unwrap();
    let file = OpenOptions::new(Access::Inspect).open(&path).unwrap();
    let range = file.next_data(FileOffset::new(0)).unwrap().unwrap();
    assert_eq!(range.start.get(), 4 << 20);
    assert!(file.next_data(range.end).unwrap().is_none());
    assert!(file.allocated_bytes().unwrap() < 1 << 20);
}

/// A lock belongs to an inode, and one device may have several nodes.
#[test]
fn a_device_has_one_writer_by_whatever_node() {
    let dir = tempdir().unwrap();
    let backing = dir.path().join("backing");
    create_sparse(&backing, 1 << 20).unwrap();
    let Some(device) = LoopDevice::of(&backing) else { return };
    let number = fs::metadata(&device.0).unwrap().rdev();
    let other = dir.path().join("other-node");
    let kind = rustix::fs::FileType::BlockDevice;
    rustix::fs::mknodat(rustix::fs::CWD, &other, kind, 0o600.into(), number).unwrap();

    let first = OpenOptions::new(Access::Write).open(&device.0).unwrap();
    for node in [&device.0, &other] {
        let refused = OpenOptions::new(Access::Write).open(node).err().expect("a refusal");
        assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
    }
    assert!(first.discards_to_zeroes(), "a loop device punches its file");
    drop(first);
    let again = OpenOptions::new(Access::Write).open(&other).unwrap();
    assert_eq!(again.size().unwrap(), 1 << 20);
}

/// A loop device has no write streams: the kernel refuses a write that names one.
#[test]
fn a_device_without_write_streams_is_written_all_the_same() {
    let dir = tempdir().unwrap();
    let backing = dir.path().join("backing");
    create_sparse(&backing, 1 << 20).unwrap();
    let Some(device) = LoopDevice::of(&backing) else { return };
    let (direct, engine) = (DirectChoice::On, EngineChoice::Uring);
    let file = OpenOptions { direct, engine, ..OpenOptions::new(Access::Write) }.open(&device.0);
    let file = file.unwrap();
    assert_eq!(file.write_streams(), 0);
    let mut writer = BlockingFile::new(&file).unwrap();
    writer.set_write_stream(1);
    let mut memory = AlignedBuf::zeroed(4096);
    memory.fill(7);
    writer.write(FileOffset::new(4096), &mut memory).unwrap();
    let mut back = AlignedBuf::zeroed(4096);
    writer.read(FileOffset::new(4096), &mut back).unwrap();
    assert!(back[..] == memory[..]);
}

/// A loop device, detached when dropped.
struct LoopDevice(PathBuf);

impl LoopDevice {
    /// `None`, with a message, if this user may not make one.
    fn of(file: &Path) -> Option<Self> {
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
        match made {
            Ok(made) if made.status.success() => {
                Some(Self(String::from_utf8_lossy(&made.stdout).trim().into()))
            }
            Ok(made) => {
                flowstone_testkit::skip(format_args!(
                    "{}",
                    String::from_utf8_lossy(&made.stderr).trim()
                ));
                None
            }
            Err(error) => {
                flowstone_testkit::skip(format_args!("no losetup: {error}"));
                None
            }
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}
