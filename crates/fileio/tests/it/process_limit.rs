//! A host that can start no more threads, neither for us nor for the kernel's side of our ring.

use std::process::Command;

use flowstone_block::AlignedBuf;
use flowstone_fileio::{
    Access, BlockingFile, DirectChoice, EngineChoice, FileOffset, FileOp, HostFile, OpenOptions,
    create_sparse,
};
use rustix::process::{Resource, Rlimit, setrlimit};

const CHILD: &str = "FLOWSTONE_TEST_PROCESS_LIMIT";
const BLOCK: usize = 4096;
/// An unused user ID: its processes are counted separately.
const USER: libc::uid_t = 54_321;

/// At `TasksMax=` the kernel cannot create the worker that a sync in a ring needs, and answers
/// ECANCELED. That was taken for a failed sync, after which a disk promises nothing until the
/// daemon restarts. The limits apply to a whole process: this test runs itself in another one.
#[test]
fn a_sync_that_the_ring_had_no_thread_for_is_done_all_the_same() {
    if std::env::var_os(CHILD).is_some() {
        return sync_without_threads();
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([
        "--exact",
        "process_limit::a_sync_that_the_ring_had_no_thread_for_is_done_all_the_same",
    ]);
    let output = child.arg("--nocapture").env(CHILD, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let erred = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{erred}");
    assert!(said.contains("synced without a thread"), "it ran something else: {said}");
}

fn sync_without_threads() {
    let (file, _folder) = new_file();
    let mut file = BlockingFile::new(&file).unwrap();
    allow_no_threads();
    let mut block = AlignedBuf::zeroed(BLOCK);
    for durable in [false, true] {
        let write = FileOp::Write { offset: FileOffset::new(0), bytes: BLOCK as u64, durable };
        file.transfer(write, &mut block).unwrap();
        file.sync().unwrap();
    }
    println!("synced without a thread");
}

fn new_file() -> (HostFile, tempfile::TempDir) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("disk.raw");
    create_sparse(&path, 1 << 20).unwrap();
    let (direct, engine) = (DirectChoice::Off, EngineChoice::Uring);
    let options = OpenOptions { direct, engine, ..OpenOptions::new(Access::Write) };
    (options.open(&path).unwrap(), folder)
}

/// Root is exempt from the limit, so it changes to another user.
fn allow_no_threads() {
    if rustix::process::geteuid().is_root() {
        // SAFETY: it changes who this process is, and no memory.
        assert_eq!(unsafe { libc::setuid(USER) }, 0);
    }
    setrlimit(Resource::Nproc, Rlimit { current: Some(1), maximum: Some(1) }).unwrap();
    assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "the limit does not hold here");
}
