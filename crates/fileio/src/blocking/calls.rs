//! Tests of the system calls that are made: a seccomp filter on the thread inspects their
//! arguments.

use std::thread;

use flowstone_block::AlignedBuf;

use super::refusal::Refusal;
use super::*;
use crate::MemoryList;
use crate::descriptor::FileKind;
use crate::direct::{BOUNCE_BYTES_MAX, DirectLimits, HOST_IS_OUT_OF_MEMORY};

/// Error number of a call that the filter refuses: no file system returns it.
const REFUSED: Errno = Errno::ILSEQ;

fn file(direct: Option<DirectLimits>) -> Descriptors {
    Descriptors::new(tempfile::tempfile().unwrap(), direct, FileKind::Regular).unwrap()
}

/// Makes a write of `pieces` pieces on a thread that may make no `pwritev2` without `RWF_DSYNC`.
fn write(file: &Descriptors, durable: bool, pieces: usize, piece_bytes: usize) -> Outcome {
    let mut buffer = AlignedBuf::zeroed(pieces * piece_bytes + 1);
    // SAFETY: the buffer outlives the request; odd addresses, for files that want even ones.
    let odd = buffer[1..].chunks_mut(piece_bytes).map(|piece| unsafe { IoVec::of(piece) });
    let list: Vec<IoVec> = odd.collect();
    let bytes = (pieces * piece_bytes) as u64;
    let op = FileOp::Write { offset: FileOffset::new(0), bytes, durable };
    // SAFETY: the list outlives the request.
    let request = FileRequest::new(op, unsafe { MemoryList::new(&list) }, 0);
    let refusal = Refusal {
        call: libc::SYS_pwritev2,
        argument: 5,
        mask: libc::RWF_DSYNC as u32,
        value: 0,
        errno: libc::EILSEQ,
    };
    alone(move || {
        refusal.install();
        execute(file, &request).outcome
    })
}

/// Runs `work` on its own thread, since a filter stays with its thread.
fn alone<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join().unwrap())
}

/// The durability of write-through disks was tested down to the simulated disk only.
#[test]
fn a_durable_write_says_so_in_each_call_that_it_takes() {
    let limits = DirectLimits { offset_bytes: 512, memory_bytes: 4 };
    for (direct, pieces, bytes) in [
        (None, 1, 512),
        // More pieces than one call takes.
        (None, PIECES_PER_CALL_MAX * 2 + 9, 512),
        // Copied through a bounce buffer, part by part.
        (Some(limits), 3, BOUNCE_BYTES_MAX),
    ] {
        let file = file(direct);
        assert_eq!(write(&file, true, pieces, bytes), Ok(()), "{pieces} pieces");
        assert_eq!(write(&file, false, pieces, bytes), Err(REFUSED), "{pieces} pieces");
    }
}

#[test]
fn a_sync_is_made_through_the_description_for_syncs() {
    let file = file(None);
    let refuse = |descriptor: i32| {
        let (call, mask, errno) = (libc::SYS_fdatasync, u32::MAX, libc::EILSEQ);
        let refusal = Refusal { call, argument: 0, mask, value: descriptor as u32, errno };
        let request = FileRequest::new(FileOp::Datasync, MemoryList::EMPTY, 0);
        let file = &file;
        alone(move || {
            refusal.install();
            execute(file, &request).outcome
        })
    };
    assert_eq!(refuse(file.file.as_raw_fd()), Ok(()));
    assert_eq!(refuse(file.to_sync().as_raw_fd()), Err(REFUSED));
}

/// If there is no memory for a bounce buffer, the host was not asked: nothing was written, and no
/// sync has failed.
#[test]
fn a_write_without_memory_for_its_stand_in_is_told_apart_from_one_that_the_host_refused() {
    let file = file(Some(DirectLimits { offset_bytes: 512, memory_bytes: 4 }));
    let mut buffer = AlignedBuf::zeroed(513);
    // SAFETY: the buffer outlives the request.
    let list = [unsafe { IoVec::of(&mut buffer[1..]) }];
    let op = FileOp::Write { offset: FileOffset::new(0), bytes: 512, durable: true };
    // SAFETY: the list outlives the request.
    let request = FileRequest::new(op, unsafe { MemoryList::new(&list) }, 7);
    HOST_IS_OUT_OF_MEMORY.set(true);
    let FileCompletion { tag, outcome, asked } = execute(&file, &request);
    assert_eq!((tag, outcome, asked), (7, Err(Errno::NOMEM), false));
    HOST_IS_OUT_OF_MEMORY.set(false);
    assert!(execute(&file, &request).asked);
}
