//! A file behind a simulated write cache of a drive, to test the effects of a power cut.
//!
//! Of the data written, a part stays in this process until the next sync, a part goes to the file
//! at once, and some of it in torn pieces; all determined by a seed that is new in each process. A
//! `kill -9` of the daemon then corresponds to a power cut of a drive: everything synced is in the
//! file, and of the rest any subset.
//!
//! For every byte the newest content is in one place: held here, or in the file. A change that goes
//! to the file drops the held content of its range; a held change overrides the content of the
//! file. So a later write never ends up below an earlier one, and the order in which held changes
//! are written out does not matter. Where it would (space is allocated below a held punch, or the
//! other way round) the earlier change is written out first, which an undisturbed drive may do at
//! any time.
//!
//! All queues share one lock, even during I/O of the host: a tool for tests, not for speed.

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

pub use self::file::open_volatile;

/// Held bytes above which everything is written out, as a drive would have to.
const HELD_BYTES_MAX: u64 = 256 << 20;
/// Longest write of held data.
const WRITE_BYTES_MAX: usize = 1 << 20;
/// Most deferred allocations.
const ALLOCATIONS_MAX: usize = 64;
/// Write unit inside most drives, whatever they report.
const PAGE_BYTES: u64 = 4096;
/// Approximate number of pieces of a torn write.
const TORN_PIECES: u64 = 8;
/// Percentage of writes that are torn.
const TORN_PERCENT: u8 = 15;
/// Percentages of changes that go to the file at once; one is chosen per process. Half is the usual
/// one. With nearly none or nearly all, a single change that is missing or present exposes bugs
/// that even odds hardly ever do.
const AT_ONCE_PERCENT: [u8; 4] = [50, 50, 10, 90];

/// The write cache of one file.
struct Cache {
    file: Box<dyn FileIo>,
    writable: bool,
    /// Whether the file allocates space on writes: a device has a fixed size.
    is_regular: bool,
    state: Mutex<State>,
}

struct State {
    pieces: Pieces,
    /// Allocations deferred by the cache.
    allocations: Vec<Range<u64>>,
    random: Rng,
    at_once_percent: u8,
    /// Granularity at which writes are torn.
    tear_bytes: u64,
}

/// The treatment of a change before the next sync.
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
        // A panic under the lock leaves every piece either held or in the file.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes everything held to the file, and keeps the lock while the returned guard lives.
    fn write_back(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut file = BlockingFile::new(&*self.file)?;
        let mut state = self.state();
        state.write_out(&mut file)?;
        Ok(state)
    }

    /// Executes a request of the queue that owns `file`.
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
            // The range may hold cached data that reaches the file first.
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
        scatter(&buffer[..(end - at) as usize], memory, 0);
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
        if memory.is_empty() {
            return Ok(());
        }
        // A copy, so that a guest that changes its memory meanwhile is not seen twice.
        let mut data = AlignedBuf::zeroed(memory.iter().map(|piece| piece.bytes()).sum());
        gather(memory, 0, &mut data);
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
        // A device has a fixed size, and fails at once.
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
    /// Writes the cache back: closing a file keeps its data; only a kill is a power cut.
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

    /// Writes everything held to the file. Content whose write fails stays held.
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

    /// Performs deferred allocations that overlap `range`.
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

    /// Writes some pieces of the data to the file, and holds those between them.
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
