//! Cleaning I/O in flight: reads of victims, and writes of copies.

use std::collections::VecDeque;

use flowstone_block::{AlignedBuf, Errno, Outcome, Slab};
use flowstone_log_format::{Entry, Placed, RecordBuilder, Shape};

use super::read_ahead::ReadAhead;
use super::transfers::{Ticket, Transfers};
use crate::copy_memory::Lent;
use crate::log::Log;
use crate::maintenance::writer::{AppendStream, Move};

/// Minimum number of records in flight: one is assembled while the other is written.
const RECORDS_LEAST: usize = 2;
/// Maximum number of records in flight: those that fit into the queue beside the reads.
const RECORDS_MOST: usize = 96;

/// Reads of victims, and writes of copies in flight.
pub struct Pipe {
    pub transfers: Transfers,
    pub ahead: ReadAhead,
    /// In address order, in one segment.
    pub writes: VecDeque<(Ticket, CopyRecord)>,
    /// Buffers of records, and what more of them are cut from.
    spare: Vec<AlignedBuf>,
    slab: Option<Slab>,
    lent: Lent,
    /// Entries of the header that was decoded last.
    pub entries: Vec<Entry>,
}

/// A record of copies.
pub struct CopyRecord {
    pub placed: Placed,
    pub moves: Vec<Move>,
    /// State of its stream before the record was placed.
    pub before: AppendStream,
}

impl Pipe {
    /// Takes memory for at least the records and the read without which nothing can be copied: the
    /// host may have none later.
    pub fn new(log: &Log) -> Result<Self, Errno> {
        let transfers = Transfers::new(&log.store)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let (writes, spare, entries) = Default::default();
        let lent = log.copy_memory.get_or_init(Default::default).lend();
        let mut pipe = Self {
            transfers,
            ahead: ReadAhead::default(),
            writes,
            spare,
            slab: None,
            lent,
            entries,
        };
        // Besides those in flight: one that is assembled, and one that is about to be.
        let records = (pipe.records_most(log.shape) + 2) * record_bytes(log.shape);
        pipe.slab = new_slab(ReadAhead::BYTES + records);
        pipe.ahead = ReadAhead::new(pipe.slab.as_mut()).ok_or(Errno::NOMEM)?;
        for _ in 0..RECORDS_LEAST {
            let buffer = pipe.new_buffer(log.shape).ok_or(Errno::NOMEM)?;
            pipe.spare.push(buffer);
        }
        Ok(pipe)
    }

    /// Returns the bytes of copies that are written in a row.
    pub fn run_bytes(&self, shape: Shape) -> u64 {
        self.lent.run_bytes(shape.segment_bytes())
    }

    /// Returns the number of records of copies in flight at once: those of a run.
    pub fn records_most(&self, shape: Shape) -> usize {
        let records = self.run_bytes(shape) as usize / record_bytes(shape);
        records.clamp(RECORDS_LEAST, RECORDS_MOST)
    }

    /// Returns whether there is memory for another record. If the host has none, the run is
    /// shorter.
    pub fn has_memory(&mut self, shape: Shape) -> bool {
        if self.spare.is_empty() {
            let buffer = self.new_buffer(shape);
            self.spare.extend(buffer);
        }
        !self.spare.is_empty()
    }

    fn new_buffer(&mut self, shape: Shape) -> Option<AlignedBuf> {
        let bytes = record_bytes(shape);
        let cut = self.slab.as_mut().and_then(|slab| slab.cut(bytes));
        cut.or_else(|| new_buffer(bytes))
    }

    /// Returns an empty builder, to be [taken back](Self::take_back).
    pub fn builder(&mut self, shape: Shape) -> RecordBuilder {
        RecordBuilder::in_buffer(self.buffer(shape), shape.record_payload_max())
    }

    fn buffer(&mut self, shape: Shape) -> AlignedBuf {
        self.has_memory(shape);
        self.spare.pop().expect("one is assembled and, without memory for more, none is in flight")
    }

    /// Takes back the memory of a builder.
    pub fn take_back(&mut self, mut builder: RecordBuilder) {
        self.spare.push(builder.exchange_buffer(AlignedBuf::zeroed(0)));
    }

    /// Starts the write of a builder's record of a lifetime at this place.
    pub fn write(
        &mut self,
        log: &Log,
        builder: &mut RecordBuilder,
        lifetime: u8,
        placed: &Placed,
    ) -> Ticket {
        let bytes = builder.finish(log.codec, placed).len();
        let buffer = builder.exchange_buffer(self.buffer(log.shape));
        builder.clear();
        self.transfers.append(lifetime, placed.address, buffer, bytes)
    }

    /// Waits for the first record in flight; returns it with its outcome.
    pub fn finish_first(&mut self) -> Option<(CopyRecord, Outcome)> {
        let (ticket, record) = self.writes.pop_front()?;
        let (buffer, outcome) = self.transfers.wait(ticket);
        self.spare.push(buffer);
        Some((record, outcome))
    }

    /// Makes a block of the victim available. `false` if it cannot be read: it stays at its
    /// address, and nothing else must wait for it.
    pub fn show(&mut self, shape: Shape, block: u32) -> bool {
        self.ahead.show(&mut self.transfers, shape, block)
    }

    pub fn has_first_ended(&mut self) -> bool {
        self.writes.front().is_some_and(|(ticket, _)| self.transfers.has_ended(ticket))
    }
}

/// Asks the host for memory to cut buffers from.
fn new_slab(bytes: usize) -> Option<Slab> {
    #[cfg(test)]
    if super::refusal::is_on() {
        return None;
    }
    Slab::new(bytes).ok()
}

/// Asks the host for the memory of a record.
fn new_buffer(bytes: usize) -> Option<AlignedBuf> {
    #[cfg(test)]
    if !super::refusal::takes_one() {
        return None;
    }
    AlignedBuf::try_zeroed(bytes)
}

fn record_bytes(shape: Shape) -> usize {
    RecordBuilder::buffer_bytes(shape.record_payload_max())
}
