//! Keeps a checksum of every sector written, and fails reads that return something else.
//!
//! Only sectors of known content are checked: written by a successful write while no other change
//! to the sector was in flight, and unchanged since the read was submitted.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};

use crc32c::crc32c;
use flowstone_block::{
    Channel, Completion, Errno, Extent, Layer, Op, QueueContext, Request, SECTOR_BYTES, Token,
    TokenSource, lock,
};
use slab::Slab;
use tracing::error;

/// Bytes of a request that are copied at a time.
const COPY_BYTES: usize = 16 << 10;

/// The state of a sector.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Checksum of its content, if that is known.
    checksum: Option<u32>,
    /// Counts submitted changes, so that a reader can see whether there was one meanwhile.
    version: u32,
    /// Writes in flight.
    writing: u16,
}

/// The state shared by all channels.
#[derive(Default)]
struct Knowledge {
    sectors: HashMap<u64, Known>,
    /// Discards and zeroings in flight: they may cover sectors that are not in the map yet.
    zeroing: Vec<Extent>,
}

/// The verifying layer.
pub struct Verify {
    base: Arc<dyn Layer>,
    knowledge: Arc<Mutex<Knowledge>>,
}

struct VerifyChannel {
    base: Box<dyn Channel>,
    knowledge: Arc<Mutex<Knowledge>>,
    submitted: Slab<Submitted>,
    tokens: TokenSource,
}

/// State of a request in flight.
struct Submitted {
    /// The state of its sectors at submission.
    known: Vec<Known>,
    /// The token that it had before.
    token: Token,
}

impl Verify {
    /// Checks the reads of `base`.
    pub fn new(base: Arc<dyn Layer>) -> Self {
        Self { base, knowledge: Arc::default() }
    }
}

impl Layer for Verify {
    pass_to_base!(geometry);

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        Ok(Box::new(VerifyChannel {
            base: self.base.channel(context)?,
            knowledge: Arc::clone(&self.knowledge),
            submitted: Slab::new(),
            tokens: TokenSource::new(),
        }))
    }
}

fn numbers(extent: Extent) -> std::ops::Range<u64> {
    extent.start().get()..extent.end().get()
}

/// Returns the checksum of each sector of a read or write, of copies that the guest cannot change.
fn checksums(request: &Request, extent: Extent) -> Vec<u32> {
    let bytes = extent.bytes() as usize;
    let mut checksums = Vec::with_capacity(bytes / SECTOR_BYTES as usize);
    // A guest chooses the size of a request, and not that of the copy.
    let mut copy = [0; COPY_BYTES];
    for at in (0..bytes).step_by(COPY_BYTES) {
        let copy = &mut copy[..COPY_BYTES.min(bytes - at)];
        request.copy_out(at, copy);
        checksums.extend(copy.chunks_exact(SECTOR_BYTES as usize).map(crc32c));
    }
    checksums
}

impl VerifyChannel {
    fn begin_read(&self, extent: Extent) -> Vec<Known> {
        let sectors = &lock(&self.knowledge).sectors;
        numbers(extent).map(|number| sectors.get(&number).copied().unwrap_or_default()).collect()
    }

    /// Forgets the old content. The new content will be known only if no other change is in flight
    /// now: two concurrent changes may reach the disk in any order.
    fn begin_write(&self, extent: Extent, request: &Request) -> Vec<Known> {
        let checksums = checksums(request, extent);
        let Knowledge { sectors, zeroing } = &mut *lock(&self.knowledge);
        let zeroed = |number| zeroing.iter().any(|extent| numbers(*extent).contains(&number));
        numbers(extent)
            .zip(checksums)
            .map(|(number, checksum)| {
                let known = sectors.entry(number).or_default();
                let alone = known.writing == 0 && !zeroed(number);
                known.version = known.version.wrapping_add(1);
                known.writing += 1;
                known.checksum = None;
                Known { checksum: alone.then_some(checksum), ..*known }
            })
            .collect()
    }

    /// Forgets the sectors instead of listing them as zero, since there may be many.
    fn begin_zero(&self, extent: Extent) {
        let Knowledge { sectors, zeroing } = &mut *lock(&self.knowledge);
        zeroing.push(extent);
        let forget = |known: &mut Known| {
            known.version = known.version.wrapping_add(1);
            known.checksum = None;
        };
        if extent.count().get() < sectors.len() as u64 {
            numbers(extent).filter_map(|n| sectors.get_mut(&n).map(forget)).count();
        } else {
            let within = sectors.iter_mut().filter(|(n, _)| numbers(extent).contains(n));
            within.for_each(|(_, known)| forget(known));
        }
    }

    fn end_zero(&self, extent: Extent) {
        let zeroing = &mut lock(&self.knowledge).zeroing;
        if let Some(at) = zeroing.iter().position(|other| *other == extent) {
            zeroing.swap_remove(at);
        }
    }

    fn end_write(&self, extent: Extent, mine: &[Known], succeeded: bool) {
        let sectors = &mut lock(&self.knowledge).sectors;
        for (number, mine) in numbers(extent).zip(mine) {
            let Some(known) = sectors.get_mut(&number) else {
                continue;
            };
            known.writing -= 1;
            if succeeded && known.version == mine.version {
                known.checksum = mine.checksum;
            }
        }
    }

    /// Returns the first sector whose content differs from the known one.
    fn find_wrong(&self, extent: Extent, before: &[Known], request: &Request) -> Option<u64> {
        let checksums = checksums(request, extent);
        let sectors = &lock(&self.knowledge).sectors;
        numbers(extent).zip(before).zip(checksums).find_map(|((number, before), checksum)| {
            let expected = before.checksum?;
            let now = sectors.get(&number)?;
            (now.version == before.version && expected != checksum).then_some(number)
        })
    }

    fn judge(&mut self, completion: &mut Completion) {
        let request = &mut completion.request;
        let Some(index) = self.tokens.index_of(request.token) else { return };
        let Submitted { known: before, token } = self.submitted.remove(index);
        request.token = token;
        match request.op {
            Op::Write(extent) => self.end_write(extent, &before, completion.outcome.is_ok()),
            Op::Discard(extent) | Op::WriteZeroes { extent, .. } => self.end_zero(extent),
            Op::Read(extent) if completion.outcome.is_ok() => {
                if let Some(sector) = self.find_wrong(extent, &before, request) {
                    let byte = sector * SECTOR_BYTES;
                    error!(sector, byte, "a read returned other data than was written");
                    completion.outcome = Err(Errno::IO);
                }
            }
            _ => {}
        }
    }
}

impl Channel for VerifyChannel {
    pass_to_base!(kick, next_look, retire);

    fn submit(&mut self, mut request: Box<Request>) {
        let known = match request.op {
            Op::Read(extent) => self.begin_read(extent),
            Op::Write(extent) => self.begin_write(extent, &request),
            Op::Discard(extent) | Op::WriteZeroes { extent, .. } => {
                self.begin_zero(extent);
                Vec::new()
            }
            Op::Flush => Vec::new(),
        };
        let entry = self.submitted.vacant_entry();
        let token = std::mem::replace(&mut request.token, self.tokens.token(entry.key()));
        entry.insert(Submitted { known, token });
        self.base.submit(request);
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        let before = done.len();
        self.base.reap(done);
        for completion in &mut done[before..] {
            self.judge(completion);
        }
    }
}
