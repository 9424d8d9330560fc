//! The `volatile` engine: a drive with a write cache, to test what a power cut leaves.
//!
//! Of what is written, a part stays in this process until the next sync, a part goes to the file
//! at once, and some of it does so in torn pieces; all by a seed that is new in each process. A
//! `kill -9` of the daemon is then what a power cut is to a drive: everything that was synced is
//! in the file, and of the rest any subset.
//!
//! For every byte the newest content is in one place: held here, or in the file. A change that
//! goes to the file makes what was held for its range forgotten; a change that is held covers
//! what the file has. So a later write never ends below an earlier one, and the order in which
//! held changes leave does not matter. Where it would (space is asked for below a held punch, or
//! the other way round) the earlier change leaves first, which an undisturbed drive may do at any
//! time.
//!
//! All queues share one lock, also while the host works: a tool for tests, not for speed.

mod pieces;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastrand::Rng;
use flowstone_block::{AlignedBuf, Errno, IoVec, Outcome};
use rustix::fs::{OFlags, fcntl_getfl};
use tracing::{info, warn};

use self::pieces::{Content, Pieces};
use crate::blocking;
use crate::descriptor::{Descriptors, FileKind, QueueFile};
use crate::direct::{gather, scatter};
use crate::{FileOffset, FileOp, FileRequest, MemoryList};

/// With more than this held, a drive would have to begin writing: all of it goes to the file.
const HELD_BYTES_MAX: u64 = 256 << 20;
/// Held data leaves in writes of at most this size.
const WRITE_BYTES_MAX: usize = 1 << 20;
/// More requests for space than this are not put off.
const ALLOCATIONS_MAX: usize = 64;
/// Smallest unit that a drive writes or does not write, and the one that most drives have inside.
const SECTOR_BYTES: u64 = 512;
const PAGE_BYTES: u64 = 4096;
/// A torn write falls into about so many pieces.
const TORN_PIECES: u64 = 8;
/// Share of writes that are torn, in percent.
const TORN_PERCENT: u8 = 15;
/// Share of changes that go to the file at once, in percent; one of them for each process. Half is
/// the rule. With nearly none or nearly all, the one change that is missing or there shows
/// mistakes that even odds hardly ever do.
const AT_ONCE_PERCENT: [u8; 4] = [50, 50, 10, 90];

/// The write cache of one file.
pub(crate) struct Volatile {
    file: Arc<QueueFile>,
    writable: bool,
    /// A write is torn at multiples of this.
    tear_bytes: u64,
    state: Mutex<State>,
}

pub(crate) struct State {
    pieces: Pieces,
    /// Space that was asked for and has not been yet of the host.
    allocations: Vec<Range<u64>>,
    random: Rng,
    at_once_percent: u8,
}

/// What is to become of a change before the next sync.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Held,
    AtOnce,
    Torn,
}

impl Volatile {
    pub fn new(files: &Arc<Descriptors>) -> io::Result<Self> {
        let seed = fastrand::u64(..);
        let mut random = Rng::with_seed(seed);
        let at_once_percent = *random.choice(&AT_ONCE_PERCENT).expect("not empty");
        info!(
            "volatile engine, seed {seed:#x}: {at_once_percent} % of what is written goes to the \
             file before a flush; if this process is killed, the rest is lost"
        );
        Ok(Self {
            file: QueueFile::new(files)?,
            writable: is_writable(&files.file)?,
            tear_bytes: files.direct.map_or(0, |limits| limits.offset_bytes).max(SECTOR_BYTES),
            state: Mutex::new(State {
                pieces: Pieces::default(),
                allocations: Vec::new(),
                random,
                at_once_percent,
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What panics under the lock leaves every piece either held or in the file.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Size of a file of `bytes` bytes with what is held.
    pub fn size(&self, bytes: u64) -> u64 {
        self.state().size(bytes)
    }

    /// Moves all that is held to the file, and keeps others out while the answer lives.
    pub fn write_back(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        state.write_out(&self.file)?;
        Ok(state)
    }

    /// Carries out a request of the queue that owns `file`.
    pub fn execute(&self, file: &QueueFile, request: &FileRequest) -> Outcome {
        match request.op {
            FileOp::Read { offset, .. } => self.read(file, request, offset.get()),
            FileOp::Datasync => {
                self.state().write_out(file)?;
                blocking::execute(file, request)
            }
            _ if !self.writable => Err(Errno::BADF),
            FileOp::Write { offset, durable, .. } => {
                self.write(file, request, offset.get(), durable)
            }
            FileOp::Punch { offset, bytes } | FileOp::Discard { offset, bytes } => {
                self.zero(file, request, offset.get()..offset.get() + bytes, Content::Punch)
            }
            // What is held may be data by the time it gets to the file.
            FileOp::Clear { offset, bytes } | FileOp::Zero { offset, bytes } => {
                self.zero(file, request, offset.get()..offset.get() + bytes, Content::Zero)
            }
            FileOp::Allocate { offset, bytes } => {
                self.allocate(file, request, offset.get()..offset.get() + bytes)
            }
        }
    }

    fn read(&self, file: &QueueFile, request: &FileRequest, at: u64) -> Outcome {
        let memory = request.memory.pieces();
        let end = at + memory.iter().map(|piece| piece.bytes() as u64).sum::<u64>();
        let state = self.state();
        let in_file = file.shared.size().map_err(|error| errno_of(&error))?;
        let past_the_end = end > in_file && end <= state.size(in_file);
        if !past_the_end && !state.pieces.touch(&(at..end)) {
            return blocking::execute(file, request);
        }
        if end > state.size(in_file) {
            return Err(Errno::IO);
        }
        let mut buffer = AlignedBuf::zeroed((end - at) as usize);
        let from_file = end.min(in_file).saturating_sub(at) as usize;
        if from_file > 0 {
            let offset = FileOffset::new(at);
            let op = FileOp::Read { offset, bytes: from_file as u64 };
            transfer(file, op, &mut buffer[..from_file])?;
        }
        state.pieces.read(at, &mut buffer);
        scatter(&buffer, memory);
        Ok(())
    }

    fn write(&self, file: &QueueFile, request: &FileRequest, at: u64, durable: bool) -> Outcome {
        let memory = request.memory.pieces();
        // A copy, so that a guest that changes its memory meanwhile is not seen twice.
        let mut data = AlignedBuf::zeroed(memory.iter().map(|piece| piece.bytes()).sum());
        gather(memory, &mut data);
        if data.is_empty() || memory.is_empty() {
            return Ok(());
        }
        let mut state = self.state();
        match state.fate() {
            fate if durable || fate == Fate::AtOnce => {
                state.write_now(file, at, &mut data, durable)?;
            }
            Fate::Torn => state.write_torn(file, at, &mut data, self.tear_bytes)?,
            _ => state.pieces.put_data(at, &data),
        }
        if state.pieces.data_bytes() > HELD_BYTES_MAX {
            return state.write_out(file);
        }
        Ok(())
    }

    fn zero(
        &self,
        file: &QueueFile,
        request: &FileRequest,
        range: Range<u64>,
        content: Content,
    ) -> Outcome {
        let mut state = self.state();
        state.allocate_now(file, &range)?;
        if state.fate() == Fate::AtOnce {
            blocking::execute(file, request)?;
            state.pieces.forget(range);
        } else {
            state.pieces.put_zeroes(range, content);
        }
        Ok(())
    }

    fn allocate(&self, file: &QueueFile, request: &FileRequest, range: Range<u64>) -> Outcome {
        let mut state = self.state();
        for (range, content) in state.pieces.zeroes_in(&range) {
            state.zero_now(file, range, &content)?;
        }
        // A device has the space that it has, and says at once what it has not.
        let can_wait = file.shared.kind == FileKind::Regular;
        if can_wait && state.fate() != Fate::AtOnce && state.allocations.len() < ALLOCATIONS_MAX {
            state.allocations.push(range);
            return Ok(());
        }
        blocking::execute(file, request)
    }
}

impl Drop for Volatile {
    /// A file that is closed keeps what was written: only being killed is a power cut.
    fn drop(&mut self) {
        if let Err(error) = self.write_back() {
            warn!("what the volatile engine held is lost: {error}");
        }
    }
}

impl State {
    fn size(&self, in_file: u64) -> u64 {
        let ends = self.allocations.iter().map(|range| range.end);
        ends.chain([in_file, self.pieces.data_end()]).max().unwrap_or(in_file)
    }

    fn fate(&mut self) -> Fate {
        if self.random.u8(0..100) < TORN_PERCENT {
            Fate::Torn
        } else if self.random.u8(0..100) < self.at_once_percent {
            Fate::AtOnce
        } else {
            Fate::Held
        }
    }

    /// Moves everything held to the file. What fails stays held.
    fn write_out(&mut self, file: &QueueFile) -> Outcome {
        self.allocate_now(file, &(0..u64::MAX))?;
        while let Some((range, content)) = self.pieces.first(WRITE_BYTES_MAX) {
            match content {
                Content::Data(data) => {
                    let mut buffer = AlignedBuf::zeroed(data.len());
                    buffer.copy_from_slice(&data);
                    self.write_now(file, range.start, &mut buffer, false)?;
                }
                zeroes => self.zero_now(file, range, &zeroes)?,
            }
        }
        Ok(())
    }

    /// Asks the host for the space that is wanted anywhere in `range`.
    fn allocate_now(&mut self, file: &QueueFile, range: &Range<u64>) -> Outcome {
        let meets = |it: &Range<u64>| it.start < range.end && range.start < it.end;
        while let Some(index) = self.allocations.iter().position(meets) {
            let Range { start, end } = self.allocations[index];
            let offset = FileOffset::new(start);
            transfer(file, FileOp::Allocate { offset, bytes: end - start }, &mut [])?;
            self.allocations.remove(index);
        }
        Ok(())
    }

    fn zero_now(&mut self, file: &QueueFile, range: Range<u64>, content: &Content) -> Outcome {
        let (offset, bytes) = (FileOffset::new(range.start), range.end - range.start);
        let op = match content {
            Content::Punch => FileOp::Punch { offset, bytes },
            _ => FileOp::Zero { offset, bytes },
        };
        transfer(file, op, &mut [])?;
        self.pieces.forget(range);
        Ok(())
    }

    fn write_now(&mut self, file: &QueueFile, at: u64, data: &mut [u8], durable: bool) -> Outcome {
        let (offset, bytes) = (FileOffset::new(at), data.len() as u64);
        transfer(file, FileOp::Write { offset, bytes, durable }, data)?;
        self.pieces.forget(at..at + bytes);
        Ok(())
    }

    /// Some pieces of the write go to the file, and those between them are held.
    fn write_torn(
        &mut self,
        file: &QueueFile,
        at: u64,
        mut data: &mut [u8],
        tear_bytes: u64,
    ) -> Outcome {
        let unit = if self.random.bool() { tear_bytes } else { tear_bytes.max(PAGE_BYTES) };
        let longest = (data.len() as u64 / unit * 2 / TORN_PIECES).max(1);
        let (mut start, mut to_file) = (at, self.random.bool());
        while !data.is_empty() {
            let cut = (start / unit + self.random.u64(1..=longest)) * unit;
            let bytes = (cut - start).min(data.len() as u64) as usize;
            let (piece, rest) = std::mem::take(&mut data).split_at_mut(bytes);
            if to_file {
                self.write_now(file, start, piece, false)?;
            } else {
                self.pieces.put_data(start, piece);
            }
            (start, to_file, data) = (start + bytes as u64, !to_file, rest);
        }
        Ok(())
    }
}

/// One request of our own to the host.
fn transfer(file: &QueueFile, op: FileOp, memory: &mut [u8]) -> Outcome {
    let count = usize::from(!memory.is_empty());
    // SAFETY: the request has completed when this call returns.
    let list = [unsafe { IoVec::of(memory) }];
    // SAFETY: as above.
    let memory = unsafe { MemoryList::new(&list[..count]) };
    blocking::execute(file, &FileRequest { op, memory, tag: 0 })
}

fn is_writable(file: &File) -> io::Result<bool> {
    Ok(fcntl_getfl(file)?.intersects(OFlags::WRONLY | OFlags::RDWR))
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
