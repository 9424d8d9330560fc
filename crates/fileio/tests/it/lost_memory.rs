//! A write whose memory has been lost is not carried out: it would write zeroes.

use flowstone_block::{Errno, Guarded};
use flowstone_fileio::{
    Access, BlockingFile, DirectChoice, EngineChoice, FileIo, FileOffset, OpenOptions,
    create_sparse,
};
use rustix::mm::{MapFlags, ProtFlags, mmap};

const PAGE: usize = 4096;

/// A layer above had read the data (the cache copies it, zeroes are searched for in it), and so
/// replaced it with zeroes: these were written to the disk over other data.
#[test]
fn no_engine_writes_what_is_not_there_any_more() {
    let on_disk = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    for (folder, engine, direct, shift) in [
        (on_disk, EngineChoice::Uring, DirectChoice::Auto, 0),
        (on_disk, EngineChoice::Uring, DirectChoice::Auto, 1),
        (on_disk, EngineChoice::Uring, DirectChoice::Off, 0),
        (on_disk, EngineChoice::Sync, DirectChoice::Auto, 0),
        (on_disk, EngineChoice::Sync, DirectChoice::Auto, 1),
        (std::path::Path::new("/dev/shm"), EngineChoice::Auto, DirectChoice::Auto, 0),
    ] {
        let folder = tempfile::tempdir_in(folder).unwrap();
        let path = folder.path().join("disk.raw");
        create_sparse(&path, 1 << 20).unwrap();
        let options = OpenOptions { direct, engine, ..OpenOptions::new(Access::Write) };
        let file: Box<dyn FileIo> = Box::new(options.open(&path).unwrap());
        let mut file = BlockingFile::new(&*file).unwrap();
        let shared = tempfile::tempfile().unwrap();
        shared.set_len(2 * PAGE as u64).unwrap();
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping touches nothing of ours; it stays until the process ends.
        let (data, guard) = unsafe {
            let start = mmap(std::ptr::null_mut(), 2 * PAGE, access, flags, &shared, 0).unwrap();
            let guard = Guarded::new(start.cast(), 2 * PAGE, PAGE);
            (std::slice::from_raw_parts_mut(start.cast::<u8>().add(shift), PAGE), guard)
        };
        data.fill(7);
        file.write(FileOffset::new(0), data).unwrap();
        shared.set_len(0).unwrap();
        // SAFETY: within the mapping; volatile, since nothing else shows that it is read.
        assert_eq!(unsafe { data.as_ptr().read_volatile() }, 0, "somebody has looked");
        assert!(guard.is_broken());
        assert_eq!(file.write(FileOffset::new(0), data), Err(Errno::FAULT), "{engine:?} {shift}");
        let mut back = [0; PAGE];
        file.read(FileOffset::new(0), &mut back).unwrap();
        assert_eq!(back, [7; PAGE], "{engine:?} {shift}");
    }
}
