//! Copies the live blocks of a victim, in LBA order.

use std::time::Duration;

use flowstone_block::sync::atomic::Ordering;
use flowstone_block::{Outcome, mutated};
use flowstone_log_format::{Entry, Kind, LIFETIME_MAP, RecordBuilder};
use tracing::warn;

use super::Cleaner;
use super::pipe::{CopyRecord, Pipe};
use super::survey::{Survey, earn};
use crate::log::reserve::Step;
use crate::maintenance::candidates::Chosen;
use crate::maintenance::writer::{Move, Space, Streams, Writer};

/// Duration of one wait for guests, and maximum number of waits before the next record.
const AHEAD_WAIT: Duration = Duration::from_millis(1);
const AHEAD_WAITS: u32 = 20;

/// State of copying the live blocks of one segment.
struct Copies {
    pipe: Pipe,
    survey: Survey,
    /// Lifetime of the target stream.
    lifetime: u8,
    /// The next record of that stream, and its maximum number of blocks.
    builder: RecordBuilder,
    most: u32,
    moves: Vec<Move>,
    /// The next victim, and whether it has been searched for.
    next: Option<Survey>,
    has_chosen: bool,
}

impl Cleaner {
    /// Copies the live blocks of `victim` into the stream of a lifetime, while guest writes are
    /// throttled in proportion.
    pub fn clean_into(&mut self, writer: &mut Writer, lifetime: u8, victim: Chosen) -> Outcome {
        let start = self.log.clock.now();
        self.waited = Duration::ZERO;
        self.log.append_state().rate_mut().begin();
        let outcome = self.copy(writer, lifetime, victim);
        let took = self.log.clock.since(start).saturating_sub(self.waited);
        self.log.append_state().accounting_mut().cleaned(took, outcome.is_ok());
        outcome
    }

    fn copy(&mut self, writer: &mut Writer, lifetime: u8, victim: Chosen) -> Outcome {
        let (victim, segment) = victim;
        self.filling = Some(lifetime);
        let mut pipe = self.pipe.take().map_or_else(|| Pipe::new(&self.log), Ok)?;
        let builder = pipe.builder(self.log.shape);
        let run_bytes = pipe.run_bytes(self.log.shape);
        self.log.run_bytes.store(run_bytes, Ordering::Relaxed);
        let begun = self.next.take().filter(|it| it.is_of(victim, &segment));
        let survey = begun.unwrap_or_else(|| self.survey(&mut pipe, victim, segment));
        let (moves, next) = (Vec::new(), None);
        let mut copies =
            Copies { pipe, survey, lifetime, builder, most: 0, moves, next, has_chosen: false };
        let copied = self.copy_live(writer, &mut copies);
        // Even after a failure: no write to a stream may stay in flight.
        let outcome = copied.and(self.finish_writes(writer, &mut copies));
        if outcome.is_ok() {
            self.leave_the_rest(&copies.survey);
        }
        let Copies { mut pipe, mut survey, next, builder, .. } = copies;
        pipe.take_back(builder);
        survey.stage.clear();
        self.stage = survey.stage;
        (self.pipe, self.next) = (Some(pipe), next);
        outcome
    }

    fn copy_live(&mut self, writer: &mut Writer, copies: &mut Copies) -> Outcome {
        loop {
            while self.survey_record(&mut copies.pipe, &mut copies.survey) {}
            self.copy_staged(writer, copies)?;
            if copies.survey.is_done {
                return self.append_moves(writer, copies);
            }
        }
    }

    /// Surveys a record of the next victim, if there will be one, while copies are in flight. The
    /// victim is only read; the state of its blocks is checked again before they are copied.
    fn survey_next(&mut self, space: &Space, copies: &mut Copies) -> bool {
        if !copies.survey.is_done {
            return false;
        }
        if !std::mem::replace(&mut copies.has_chosen, true) {
            let next = match space.view().next_step() {
                Step::Clean => self.choose_victim_but(Some(copies.survey.victim)),
                _ => None,
            };
            let next = next.filter(|it| it.1.lifetime != LIFETIME_MAP);
            copies.next = next.map(|(next, it)| self.survey(&mut copies.pipe, next, it));
        }
        let Copies { pipe, next, .. } = copies;
        next.as_mut().is_some_and(|next| self.survey_record(pipe, next))
    }

    /// Returns the victim that has been surveyed in part, if it still qualifies.
    pub fn begun_victim(&self) -> Option<Chosen> {
        let next = self.next.as_ref()?;
        let state = self.log.append_state();
        let segment = state.segments().get(next.victim);
        let is_one =
            next.is_of(next.victim, &segment) && state.segments().is_worth_cleaning(&segment);
        is_one.then_some((next.victim, segment))
    }

    /// Assembles records of the staged blocks that are still live. The last one is written when it
    /// is full, or with the last block of the victim.
    fn copy_staged(&mut self, writer: &mut Writer, copies: &mut Copies) -> Outcome {
        let mut stage = std::mem::take(&mut copies.survey.stage);
        for (moved, content) in stage.in_order() {
            if self.volume.map.get(moved.lba) != moved.old {
                continue;
            }
            if copies.builder.payload() == 0 {
                copies.most = writer.streams.copies_that_fit(copies.lifetime);
            }
            let from = moved.old.address();
            let entry = Entry::Moved { lba: moved.lba, from, checksum: moved.old.checksum() };
            copies.builder.push(entry).copy_from_slice(content);
            copies.moves.push(moved);
            if copies.builder.payload() >= copies.most {
                self.append_moves(writer, copies)?;
            }
        }
        stage.clear();
        copies.survey.stage = stage;
        Ok(())
    }

    /// Waits while cleaning is ahead of guests and these write: it goes on as their writes use up
    /// the credit.
    fn let_guests_go_first(&mut self) {
        for _ in 0..AHEAD_WAITS {
            let (is_ahead, clock) = {
                let state = self.log.append_state();
                (state.rate().is_ahead(), state.accounting().clock())
            };
            let writes = std::mem::replace(&mut self.guest_clock, clock) != clock;
            if !is_ahead || !writes || self.log.inbox.is_stopping() {
                return;
            }
            let start = self.log.clock.now();
            self.log.clock.sleep(AHEAD_WAIT);
            self.waited += self.log.clock.since(start);
        }
    }

    /// Marks a segment as damaged whose remaining blocks cannot be copied; they stay in it.
    fn leave_the_rest(&self, survey: &Survey) {
        let Survey { victim, unreadable, .. } = *survey;
        let mut state = self.log.append_state();
        if state.segments().get(victim).live > 0 {
            state.segments_mut().mark_damaged(victim);
            drop(state);
            warn!(
                "{}: segment {victim} keeps blocks that cannot be copied ({unreadable} unreadable)",
                self.log.name
            );
        }
    }

    /// Starts the write of the assembled copies.
    fn append_moves(&mut self, writer: &mut Writer, copies: &mut Copies) -> Outcome {
        if copies.moves.is_empty() {
            return Ok(());
        }
        let (lifetime, payload) = (copies.lifetime, copies.builder.payload());
        let replayable = writer.streams.of(lifetime).is_some_and(|stream| stream.replayable);
        let link = if replayable { copies.survey.segment.incarnation.bits() } else { 0 };
        // Only between two runs: a run is written without a break.
        if copies.pipe.writes.is_empty() {
            self.let_guests_go_first();
        }
        // All records of a segment are written and applied to the map before it is sealed.
        let stays = writer.streams.stays_in_segment(lifetime, payload);
        let stays = mutated("log.clean.seals-before-copies-are-in", stays, true);
        let shape = self.log.shape;
        let most = if stays { copies.pipe.records_most(shape) - 1 } else { 0 };
        let must_wait = |pipe: &mut Pipe| {
            let writes = pipe.writes.len();
            if writes > most {
                return true;
            }
            let lacks_memory = writes > 0 && !pipe.has_memory(shape);
            mutated("log.copies.runs-on-without-memory", lacks_memory, false)
        };
        while must_wait(&mut copies.pipe) {
            if copies.pipe.has_first_ended() || !self.survey_next(&writer.space, copies) {
                self.finish_first(&mut writer.streams, copies)?;
            }
        }
        let (placed, before) = writer.place(lifetime, Kind::Relocated, link, payload)?;
        let Copies { pipe, builder, moves, .. } = copies;
        let ticket = pipe.write(&self.log, builder, lifetime, &placed);
        let mut moves = std::mem::take(moves);
        let maps_early = mutated("log.clean.maps-copies-on-their-way", false, true);
        if maps_early {
            let birth = copies.survey.segment.birth;
            let moves = std::mem::take(&mut moves);
            writer.streams.apply_moves(lifetime, placed.address, &moves, birth);
        }
        pipe.writes.push_back((ticket, CopyRecord { placed, moves, before }));
        pipe.ahead.go_on(&mut pipe.transfers, self.log.shape);
        if writer.streams.is_full(lifetime) {
            self.filling = None;
        }
        while copies.pipe.has_first_ended() {
            self.finish_first(&mut writer.streams, copies)?;
        }
        Ok(())
    }

    fn finish_writes(&mut self, writer: &mut Writer, copies: &mut Copies) -> Outcome {
        let mut outcome = Ok(());
        while !copies.pipe.writes.is_empty() {
            if copies.pipe.has_first_ended() || !self.survey_next(&writer.space, copies) {
                outcome = outcome.and(self.finish_first(&mut writer.streams, copies));
            }
        }
        outcome
    }

    /// Waits for the first record in flight, and applies its copies to map entries that have not
    /// changed meanwhile. So copies enter the map in address order: replay of the stream ends at
    /// the first missing one.
    fn finish_first(&mut self, streams: &mut Streams, copies: &mut Copies) -> Outcome {
        let Some((record, outcome)) = copies.pipe.finish_first() else { return Ok(()) };
        let (lifetime, segment) = (copies.lifetime, copies.survey.segment);
        if let Err(errno) = outcome {
            // The records behind it are lost with it, and their blocks stay in the victim.
            while let Some((behind, outcome)) = copies.pipe.finish_first() {
                let is_behind = outcome.is_ok();
                let maps =
                    mutated("log.clean.maps-copies-behind-a-failed-record", false, is_behind);
                if maps {
                    streams.apply_moves(
                        lifetime,
                        behind.placed.address,
                        &behind.moves,
                        segment.birth,
                    );
                }
            }
            streams.abandon(lifetime, record.before);
            return Err(errno);
        }
        streams.appended(&record.placed);
        let copied = record.placed.header.payload_blocks;
        streams.apply_moves(lifetime, record.placed.address, &record.moves, segment.birth);
        self.log.append_state().accounting_mut().copied(copied);
        earn(&self.log, &segment, copied);
        let pins = record.placed.header.link == 0;
        let pins = mutated("log.clean.does-not-pin-victims", pins, false);
        if pins {
            // Replay would not find the copies.
            self.log.append_state().segments_mut().pin(copies.survey.victim);
        }
        Ok(())
    }
}
