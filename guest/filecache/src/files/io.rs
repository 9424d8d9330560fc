//! Operations on open files through the daemon. Each is done at the source before it is answered,
//! and then in the file's open copy, if any.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use flowstone_memory::mutated;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::{Errno, Result};

use crate::errno;
use crate::files::Files;
use crate::handles::Handle;
use crate::source;

impl Files {
    /// Reads from the copy of an open file. `None` if there is none, or it cannot be read: then the
    /// source has to be asked.
    pub fn read_copy(&self, number: u64, offset: u64, bytes: u32) -> Option<Result<Vec<u8>>> {
        let handle = self.handles.get(number).ok()?;
        let dirty = self.write_back.of(handle.node.identity);
        let copy = match &dirty {
            Some(dirty) => &dirty.copy,
            None => handle.copy.as_ref().filter(|copy| copy.is_current())?,
        };
        match read_fully(&copy.file, offset, bytes) {
            Ok(read) => {
                self.counters.read_bytes.add(read.len() as u64);
                Some(Ok(read))
            }
            Err(error) if dirty.is_some() => Some(Err(error)),
            Err(_) => {
                self.copies.drop_file(handle.node.identity);
                None
            }
        }
    }

    /// Reads from an open file. A short read means end of file.
    pub fn read(&self, number: u64, offset: u64, bytes: u32) -> Result<Vec<u8>> {
        let handle = self.handles.get(number)?;
        let read = read_fully(&*handle.file(&self.nodes)?, offset, bytes)?;
        self.counters.read_bytes.add(read.len() as u64);
        Ok(read)
    }

    /// Writes to an open file. `as_caller`: the write must clear bits that only the owner may set,
    /// above all the set-user-id bit; the source does so if the writer is not the superuser.
    pub fn write(&self, number: u64, offset: u64, from: &[u8], as_caller: bool) -> Result<usize> {
        let handle = self.handles.get(number)?;
        if let Some(written) = self.write_after_others(&handle, offset, from)? {
            return Ok(written);
        }
        let settled = self.settle(handle.node.identity);
        let _through = settled.map_err(|error| handle.told(error))?;
        let checks = mutated("guest.write-back.writes-into-a-conflict", true, false);
        if checks {
            handle.take_error()?;
        }
        let file = handle.file(&self.nodes)?;
        let acting = as_caller.then(|| handle.caller.act());
        let written = write_fully(&file, offset, from);
        if acting.is_some() {
            // The kernel would go on showing the bits.
            self.take_back_attributes(&handle.node);
        }
        drop(acting);
        self.changes.one_more();
        let written = written?;
        self.counters.written_bytes.add(written as u64);
        let identity = handle.node.identity;
        self.copies.retire(identity);
        self.write_to_open_copy(identity, &file, offset, &from[..written]);
        Ok(written)
    }

    /// Updates copies after a range has changed whose bytes are only at the source.
    fn changed(&self, handle: &Handle, offset: u64, bytes: u64) {
        self.copies.retire(handle.node.identity);
        self.patch_open_copy(handle.node.identity, offset, bytes);
    }

    /// Makes written data durable.
    #[expect(
        clippy::disallowed_methods,
        reason = "no image of a disk is a file of a guest's mount"
    )]
    pub fn sync(&self, number: u64, data_only: bool) -> Result<()> {
        let handle = self.handles.get(number)?;
        let file = handle.file(&self.nodes)?;
        self.sync_handle(&handle)?;
        if data_only { file.sync_data() } else { file.sync_all() }.map_err(errno)
    }

    /// Returns whether closing a descriptor needs no call to the source.
    pub fn flushes_nothing(&self, number: u64, owner: u64) -> bool {
        let Ok(handle) = self.handles.get(number) else { return false };
        let stays_here =
            self.write_back.closes_lazily() && handle.dirty.is_some() && handle.error().is_ok();
        let is_unlocked = self.locks.of(handle.node.identity, owner).is_none();
        (!handle.writes() || stays_here) && is_unlocked
    }

    /// Processes the close of a descriptor: releases its owner's locks, and makes the calls to a
    /// server that belong to a close, with their errors.
    pub fn flush(&self, number: u64, owner: u64) -> Result<()> {
        let handle = self.handles.get(number)?;
        self.locks.release(handle.node.identity, owner);
        if handle.dirty.is_some() && self.write_back.closes_lazily() {
            return handle.error();
        }
        self.close_handle(&handle)?;
        if !handle.writes() || self.source.is_local() {
            return Ok(());
        }
        // Closing a duplicate flushes as the last close does.
        source::close(rustix::io::dup(&*handle.file(&self.nodes)?)?)
    }

    /// Allocates or deallocates a range of an open file.
    pub fn allocate(&self, number: u64, offset: u64, bytes: u64, mode: i32) -> Result<()> {
        let handle = self.handles.get(number)?;
        let _through = self.settle(handle.node.identity)?;
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        let file = handle.file(&self.nodes)?;
        let acting = handle.caller.act();
        fallocate(&*file, mode, offset, bytes)?;
        drop(acting);
        // Some modes move the data behind the range.
        self.changed(&handle, offset, u64::MAX - offset);
        Ok(())
    }

    /// Returns the start of an open file's next data or hole.
    pub fn seek(&self, number: u64, offset: u64, to_data: bool) -> Result<u64> {
        let handle = self.handles.get(number)?;
        self.settle(handle.node.identity)?;
        let file = handle.file(&self.nodes)?;
        seek(&*file, if to_data { SeekFrom::Data(offset) } else { SeekFrom::Hole(offset) })
    }

    /// Copies bytes from one open file to another, at the server if it can.
    pub fn copy_bytes(&self, from: (u64, u64), to: (u64, u64), bytes: u64) -> Result<usize> {
        let handle = self.handles.get(to.0)?;
        let read = self.handles.get(from.0)?;
        let _through = self.settle(handle.node.identity)?;
        self.settle(read.node.identity)?;
        let source = read.file(&self.nodes)?;
        let target = handle.file(&self.nodes)?;
        let (mut start, mut end) = (from.1, to.1);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let acting = handle.caller.act();
        let copied = rustix::fs::copy_file_range(
            &*source,
            Some(&mut start),
            &*target,
            Some(&mut end),
            bytes,
        )?;
        drop(acting);
        self.changed(&handle, to.1, copied as u64);
        Ok(copied)
    }
}

fn read_fully(file: &File, offset: u64, bytes: u32) -> Result<Vec<u8>> {
    let mut into = vec![0; bytes as usize];
    let mut done = 0;
    while done < into.len() {
        match file.read_at(&mut into[done..], offset + done as u64).map_err(errno) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(Errno::INTR) => {}
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    into.truncate(done);
    Ok(into)
}

fn write_fully(file: &Arc<File>, offset: u64, from: &[u8]) -> Result<usize> {
    let mut done = 0;
    while done < from.len() {
        match file.write_at(&from[done..], offset + done as u64).map_err(errno) {
            Ok(0) => break,
            Ok(written) => done += written,
            Err(Errno::INTR) => {}
            Err(error) if done == 0 => return Err(error),
            // The caller gets the error at the next byte.
            Err(_) => break,
        }
    }
    Ok(done)
}
