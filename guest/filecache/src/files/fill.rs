//! Copies files that deserve it, in the background: two at a time, after they are closed, so that
//! their bytes have already come from the server and are cached.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use flowstone_memory::mutated;
use rustix::fs::{Advice, OFlags, fadvise};
use rustix::io::{Errno, Result};

use crate::callers::Caller;
use crate::errno;
use crate::files::Files;
use crate::health::SourceState;
use crate::lock::lock;
use crate::nodes::Node;
use crate::source;
use crate::stamp::{Attributes, Identity};

/// Bytes copied at a time.
const CHUNK: usize = 1 << 20;
/// Delay before a file that has just changed is checked again.
const AGAIN: Duration = Duration::from_millis(2100);
/// Most checks of a file that keeps changing.
const LOOKS_MAX: u32 = 4;
/// Most files that wait to be copied; more are not worth remembering.
const QUEUE_MAX: usize = 4096;

/// The queue of files to be copied.
#[derive(Default)]
pub struct Fills {
    queue: Mutex<Queue>,
    bell: Condvar,
}

#[derive(Default)]
struct Queue {
    /// By the time before which none is due, and a number of its own.
    waiting: BTreeMap<(Instant, u64), Task>,
    /// The queued files: each is queued once.
    files: HashSet<Identity>,
    next: u64,
}

/// A file that is to be copied.
struct Task {
    node: Arc<Node>,
    caller: Caller,
    looks: u32,
}

impl Fills {
    /// Queues a file, on behalf of a caller who may read it.
    pub fn add(&self, node: Arc<Node>, caller: Caller) {
        self.put(node, caller, Instant::now(), 0);
    }

    fn put(&self, node: Arc<Node>, caller: Caller, not_before: Instant, looks: u32) {
        let mut queue = lock(&self.queue);
        if queue.waiting.len() < QUEUE_MAX && queue.files.insert(node.identity) {
            let number = queue.next;
            queue.next += 1;
            queue.waiting.insert((not_before, number), Task { node, caller, looks });
            self.bell.notify_one();
        }
    }

    /// Returns whether the queue is not empty.
    pub fn has_work(&self) -> bool {
        !lock(&self.queue).waiting.is_empty()
    }

    /// Waits until the next task is due, and takes it.
    fn next(&self) -> Task {
        let mut queue = lock(&self.queue);
        loop {
            let now = Instant::now();
            let wait = match queue.waiting.first_entry() {
                None => None,
                Some(first) if first.key().0 > now => Some(first.key().0 - now),
                Some(first) => {
                    let task = first.remove();
                    queue.files.remove(&task.node.identity);
                    return task;
                }
            };
            queue = match wait {
                None => self.bell.wait(queue).unwrap_or_else(std::sync::PoisonError::into_inner),
                Some(time) => {
                    let waited = self.bell.wait_timeout(queue, time);
                    waited.unwrap_or_else(std::sync::PoisonError::into_inner).0
                }
            };
        }
    }
}

impl Files {
    /// Copies queued files forever.
    pub fn fill_forever(&self) {
        let mut buffer = vec![0; CHUNK];
        loop {
            let task = self.fills.next();
            if self.hearing.state() != SourceState::Up {
                // The source is in trouble: try later.
                self.fills.put(task.node, task.caller, Instant::now() + AGAIN, task.looks);
                continue;
            }
            let is_to_come = self.copy(&task, &mut buffer).unwrap_or(false);
            if is_to_come && task.looks < LOOKS_MAX {
                self.fills.put(task.node, task.caller, Instant::now() + AGAIN, task.looks + 1);
            }
        }
    }

    /// Copies a file. Returns whether it has to be tried again, since it has just changed.
    fn copy(&self, task: &Task, buffer: &mut [u8]) -> Result<bool> {
        let Some(fill) = self.copies.begin_fill(task.node.identity) else { return Ok(false) };
        let asking = self.hearing.asks();
        let copied = self.copy_out(task, buffer);
        drop(asking);
        match &copied {
            // There is no room for a file that the policy holds, or the disk fails.
            Err(Failed::Here) => {
                self.copies.drop_file(task.node.identity);
                let tells =
                    mutated("guest.fill.takes-its-own-trouble-for-the-sources", false, true);
                if tells {
                    self.hearing.heard::<()>(&Err(Errno::IO));
                }
            }
            Err(Failed::Source(error)) => self.hearing.heard::<()>(&Err(*error)),
            Ok(_) => self.hearing.heard(&Ok(())),
        }
        let is_to_come = matches!(copied, Ok(None));
        let copied = copied.ok().flatten();
        if self.copies.end_fill(&fill, copied) {
            self.counters.fills.add(1);
        }
        Ok(is_to_come)
    }

    /// Makes a copy; `None` if the file is too new, or has changed meanwhile.
    fn copy_out(
        &self,
        task: &Task,
        buffer: &mut [u8],
    ) -> std::result::Result<Option<(File, Attributes)>, Failed> {
        let acting = task.caller.act();
        let anchor = self.nodes.anchor(&task.node)?;
        let seen = source::stat(&anchor)?;
        if !self.is_settled(&task.node, &seen) {
            return Ok(None);
        }
        let file = source::reopen(anchor, OFlags::RDONLY)?;
        drop(acting);
        let before = source::stat(&file)?;
        if !self.is_settled(&task.node, &before) {
            return Ok(None);
        }
        let copy = self.copies.new_file().map_err(|_| Failed::Here)?;
        copy_range_with(&file, &copy, 0, before.stamp.size, buffer).map_err(
            |failed| match failed {
                Unfinished::Read(error) => Failed::Source(error),
                Unfinished::Write(_) => Failed::Here,
            },
        )?;
        if !self.source.is_local() {
            // Reads use the copy from now on: the source's pages would hold the same bytes twice.
            let _ = fadvise(&file, 0, None, Advice::DontNeed);
        }
        let after = source::stat(&file)?;
        let size = copy.metadata().map_err(|_| Failed::Here)?.len();
        let is_same = after.stamp == before.stamp;
        let is_same = mutated("guest.fill.keeps-what-changed", is_same, true);
        let is_whole = is_same && size == before.stamp.size;
        Ok(is_whole.then_some((copy, before)))
    }

    /// Returns whether a change from now on would give a file another stamp.
    fn is_settled(&self, node: &Node, seen: &Attributes) -> bool {
        let news = node.told(seen.stamp);
        if news.changed {
            self.take_back_attributes(node);
        }
        news.is_settled
    }
}

/// The reason why a file was not copied, by side: a failing disk of ours says nothing about the
/// source.
enum Failed {
    Source(Errno),
    Here,
}

impl From<Errno> for Failed {
    fn from(error: Errno) -> Self {
        Self::Source(error)
    }
}

/// The side on which a copy failed.
#[derive(Debug, PartialEq, Eq)]
enum Unfinished {
    Read(Errno),
    Write(Errno),
}

impl Unfinished {
    fn error(self) -> Errno {
        let (Self::Read(error) | Self::Write(error)) = self;
        error
    }
}

impl Files {
    /// Copies bytes of a copy to a file of the source, which has answered just before: a read error
    /// of our disk does not count against the source.
    pub(super) fn copy_to_source(&self, copy: &File, to: &File, range: (u64, u64)) -> Result<()> {
        copy_range_with(copy, to, range.0, range.1, &mut buffer_for(range)).map_err(|failed| {
            let is_ours = matches!(failed, Unfinished::Read(_));
            let is_ours =
                mutated("guest.write-back.takes-its-own-trouble-for-the-sources", is_ours, false);
            if is_ours {
                self.hearing.heard(&Ok(()));
            }
            failed.error()
        })
    }
}

/// Copies bytes from one file to another, up to the end of the first one.
pub fn copy_range(from: &File, to: &File, start: u64, end: u64) -> Result<()> {
    let buffer = &mut buffer_for((start, end));
    copy_range_with(from, to, start, end, buffer).map_err(Unfinished::error)
}

fn buffer_for((start, end): (u64, u64)) -> Vec<u8> {
    vec![0; usize::try_from(end.saturating_sub(start)).unwrap_or(CHUNK).min(CHUNK)]
}

fn copy_range_with(
    from: &File,
    to: &File,
    start: u64,
    end: u64,
    buffer: &mut [u8],
) -> std::result::Result<(), Unfinished> {
    let mut at = start;
    while at < end {
        let wanted = usize::try_from(end - at).map_or(buffer.len(), |it| it.min(buffer.len()));
        let read = match from.read_at(&mut buffer[..wanted], at).map_err(errno) {
            Err(Errno::INTR) => continue,
            read => read.map_err(Unfinished::Read)?,
        };
        if read == 0 {
            break;
        }
        let written = to.write_all_at(&buffer[..read], at);
        written.map_err(|error| Unfinished::Write(errno(error)))?;
        at += read as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_and_one_that_cannot_be_written_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("it");
        std::fs::write(&path, "text").unwrap();
        let (reads, writes) = (File::open(&path).unwrap(), File::create(folder.path().join("new")));
        let writes = writes.unwrap();
        let copy = |from, to| copy_range_with(from, to, 0, 4, &mut [0; 4]);
        assert_eq!(copy(&reads, &writes), Ok(()));
        assert_eq!(copy(&reads, &reads), Err(Unfinished::Write(Errno::BADF)));
        assert_eq!(copy(&writes, &writes), Err(Unfinished::Read(Errno::BADF)));
    }
}
