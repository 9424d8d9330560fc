//! A file behind a drive's write cache, to test what a power cut leaves.
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

mod file;
mod pieces;

use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fastrand::Rng;
use flowstone_block::{AlignedBuf, Errno, Outcome, gather, scatter};
use flowstone_fileio::{Access, BlockingFile, FileIo, FileOffset, FileOp, FileRequest};
use tracing::{info, warn};

use self::pieces::{Content, Pieces};

pub use self::file::{VolatileFile, open_volatile};

/// With more than this held, a drive would have to begin writing: all of it goes to the file.
const HELD_BYTES_MAX: u64 = 256 << 20;
/// Held data leaves in writes of at most this size.
const WRITE_BYTES_MAX: usize = 1 << 20;
/// More requests for space than this are not put off.
const ALLOCATIONS_MAX: usize = 64;
/// The unit that most drives write inside, whatever they say.
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
struct Cache {
    file: Box<dyn FileIo>,
    writable: bool,
    /// Whether the file gets space when it is written: a device has the space that it has.
    is_regular: bool,
    state: Mutex<State>,
}

struct State {
    pieces: Pieces,
    /// Space that was asked for and has not been yet of the host.
    allocations: Vec<Range<u64>>,
    random: Rng,
    at_once_percent: u8,
    /// A write is torn at multiples of this.
    tear_bytes: u64,
}

/// What is to become of a change before the next sync.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Held,
    AtOnce,
    Torn,
}

impl Cache {
    fn new(file: Box<dyn FileIo>, access: Access, is_regular: bool) -> Self {
        let seed = fastrand::u64(..);
        let mut random = Rng::with_seed(seed);
        let at_once_percent = *random.choice(&AT_ONCE_PERCENT).expect("not empty");
        info!(
            "volatile file, seed {seed:#x}: {at_once_percent} % of what is written goes to the \
             file before a flush; if this process is killed, the rest is lost"
        );
        let state = State {
            pieces: Pieces::default(),
            allocations: Vec::new(),
            random,
            at_once_percent,
            tear_bytes: u64::from(file.block_bytes()),
        };
        Self { file, writable: access == Access::Write, is_regular, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What panics under the lock leaves every piece either held or in the file.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves all that is held to the file, and keeps others out while the answer lives.
    fn write_back(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut file = BlockingFile::new(&*self.file)?;
        let mut state = self.state();
        state.write_out(&mut file)?;
        Ok(state)
    }

    /// Carries out a request of the queue that owns `file`.
    fn execute(&self, file: &mut BlockingFile, request: FileRequest) -> Outcome {
        match request.op {
            FileOp::Read { offset, .. } => self.read(file, request, offset.get()),
            FileOp::Datasync => {
                self.state().write_out(file)?;
                file.carry_out(request)
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

    fn read(&self, file: &mut BlockingFile, request: FileRequest, at: u64) -> Outcome {
        let memory = request.memory.pieces();
        let end = at + memory.iter().map(|piece| piece.bytes() as u64).sum::<u64>();
        let state = self.state();
        let in_file = self.file.size().map_err(|error| errno_of(&error))?;
        let past_the_end = end > in_file && end <= state.size(in_file);
        if !past_the_end && !state.pieces.touch(&(at..end)) {
            return file.carry_out(request);
        }
        if end > state.size(in_file) {
            return Err(Errno::IO);
        }
        let mut buffer = AlignedBuf::zeroed((end - at) as usize);
        let from_file = end.min(in_file).saturating_sub(at) as usize;
        if from_file > 0 {
            let offset = FileOffset::new(at);
            let op = FileOp::Read { offset, bytes: from_file as u64 };
            file.transfer(op, &mut buffer[..from_file])?;
        }
        state.pieces.read(at, &mut buffer);
        scatter(&buffer, memory);
        Ok(())
    }

    fn write(
        &self,
        file: &mut BlockingFile,
        request: FileRequest,
        at: u64,
        durable: bool,
    ) -> Outcome {
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
            Fate::Torn => state.write_torn(file, at, &mut data)?,
            _ => state.pieces.put_data(at, &data),
        }
        if state.pieces.data_bytes() > HELD_BYTES_MAX {
            return state.write_out(file);
        }
        Ok(())
    }

    fn zero(
        &self,
        file: &mut BlockingFile,
        request: FileRequest,
        range: Range<u64>,
        content: Content,
    ) -> Outcome {
        let mut state = self.state();
        state.allocate_now(file, &range)?;
        if state.fate() == Fate::AtOnce {
            file.carry_out(request)?;
            state.pieces.forget(range);
        } else {
            state.pieces.put_zeroes(range, content);
        }
        Ok(())
    }

    fn allocate(
        &self,
        file: &mut BlockingFile,
        request: FileRequest,
        range: Range<u64>,
    ) -> Outcome {
        let mut state = self.state();
        for (range, content) in state.pieces.zeroes_in(&range) {
            state.zero_now(file, range, &content)?;
        }
        // A device has the space that it has, and says at once what it has not.
        if self.is_regular
            && state.fate() != Fate::AtOnce
            && state.allocations.len() < ALLOCATIONS_MAX
        {
            state.allocations.push(range);
            return Ok(());
        }
        file.carry_out(request)
    }
}

impl Drop for Cache {
    /// A file that is closed keeps what was written: only being killed is a power cut.
    fn drop(&mut self) {
        if let Err(error) = self.write_back() {
            warn!("what a volatile file held is lost: {error}");
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
    fn write_out(&mut self, file: &mut BlockingFile) -> Outcome {
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
    fn allocate_now(&mut self, file: &mut BlockingFile, range: &Range<u64>) -> Outcome {
        let meets = |it: &Range<u64>| it.start < range.end && range.start < it.end;
        while let Some(index) = self.allocations.iter().position(meets) {
            let Range { start, end } = self.allocations[index];
            let offset = FileOffset::new(start);
            file.run(FileOp::Allocate { offset, bytes: end - start })?;
            self.allocations.remove(index);
        }
        Ok(())
    }

    fn zero_now(
        &mut self,
        file: &mut BlockingFile,
        range: Range<u64>,
        content: &Content,
    ) -> Outcome {
        let (offset, bytes) = (FileOffset::new(range.start), range.end - range.start);
        let op = match content {
            Content::Punch => FileOp::Punch { offset, bytes },
            _ => FileOp::Zero { offset, bytes },
        };
        file.run(op)?;
        self.pieces.forget(range);
        Ok(())
    }

    fn write_now(
        &mut self,
        file: &mut BlockingFile,
        at: u64,
        data: &mut [u8],
        durable: bool,
    ) -> Outcome {
        let (offset, bytes) = (FileOffset::new(at), data.len() as u64);
        file.transfer(FileOp::Write { offset, bytes, durable }, data)?;
        self.pieces.forget(at..at + bytes);
        Ok(())
    }

    /// Some pieces of the write go to the file, and those between them are held.
    fn write_torn(&mut self, file: &mut BlockingFile, at: u64, mut data: &mut [u8]) -> Outcome {
        let tear_bytes = self.tear_bytes;
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

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
