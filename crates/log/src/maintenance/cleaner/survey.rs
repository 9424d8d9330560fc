//! Surveys a victim: finds its live blocks, and verifies them.

use flowstone_block::mutated;
use flowstone_log_format::{Entry, Header, SegmentId};
use flowstone_log_store::segments::Segment;

use super::Cleaner;
use super::pipe::Pipe;
use super::stage::Stage;
use crate::log::Log;
use crate::maintenance::writer::Move;

/// Blocks read between two credits for guests.
const EARN_BLOCKS: u32 = 32;

/// A victim under survey: its live blocks are read, and wait to be copied.
pub struct Survey {
    pub victim: SegmentId,
    pub segment: Segment,
    /// Block of its next record.
    pub block: u32,
    pub is_done: bool,
    pub stage: Stage,
    /// Blocks read since guests were last credited.
    pub staged: u32,
    /// Blocks that cannot be copied.
    pub unreadable: u32,
}

impl Survey {
    pub fn is_of(&self, victim: SegmentId, segment: &Segment) -> bool {
        let is_same_use = self.segment.incarnation == segment.incarnation;
        let is_same_use =
            mutated("log.clean.believes-a-survey-of-an-earlier-use", is_same_use, true);
        self.victim == victim && is_same_use
    }
}

/// Credits guest writes for live blocks of a victim that were read, or copied. Each is half of the
/// work.
pub fn earn(log: &Log, victim: &Segment, blocks: u32) {
    let gain = log.shape.data_blocks_most().saturating_sub(victim.live);
    let won = u64::from(blocks) * u64::from(gain);
    let go_on = log.append_state().rate_mut().won(won, 2 * u64::from(victim.live));
    let go_on = mutated("log.rate.tells-nobody", go_on, false);
    if go_on {
        log.wake_waiting();
    }
}

impl Cleaner {
    /// Starts the survey of a victim.
    pub fn survey(&mut self, pipe: &mut Pipe, victim: SegmentId, segment: Segment) -> Survey {
        pipe.ahead.begin(&mut pipe.transfers, self.log.shape, (victim, segment.incarnation));
        let mut stage = std::mem::take(&mut self.stage);
        // Room for two runs: sorting more blocks together makes longer sequential ranges.
        stage.begin(2 * pipe.run_bytes(self.log.shape));
        Survey { victim, segment, block: 0, is_done: false, stage, staged: 0, unreadable: 0 }
    }

    /// Surveys the next record of a victim. `false` if there is none, or no room for its live
    /// blocks.
    pub fn survey_record(&self, pipe: &mut Pipe, survey: &mut Survey) -> bool {
        let (shape, block) = (self.log.shape, survey.block);
        if survey.is_done || !survey.stage.has_room() {
            return false;
        }
        survey.is_done = true;
        let now = self.log.append_state().segments().get(survey.victim);
        if now.live == 0
            || now.incarnation != survey.segment.incarnation
            || !pipe.show(shape, block)
        {
            return false;
        }
        let mut entries = std::mem::take(&mut pipe.entries);
        let header = self.log.codec.decode(pipe.ahead.block(block), &mut entries);
        let is_next =
            |it: &Header| it.incarnation == survey.segment.incarnation && it.position == block;
        if let Some(header) = header.filter(is_next) {
            let mut at = block + 1;
            for entry in &entries {
                if let Entry::Data { lba, .. } | Entry::Moved { lba, .. } = *entry {
                    self.stage_if_live(pipe, survey, lba, at);
                }
                at += entry.payload_blocks();
            }
            survey.block += header.record_blocks();
            survey.is_done = survey.block >= shape.segment_blocks;
        }
        pipe.entries = entries;
        !survey.is_done
    }

    /// Stages the block at this place of the victim, if the map still refers to it.
    fn stage_if_live(&self, pipe: &mut Pipe, survey: &mut Survey, lba: u64, at: u32) {
        let map_entry = self.volume.map.get(lba);
        if map_entry.address() != self.log.shape.address(survey.victim, at) {
            return;
        }
        let is_here = pipe.show(self.log.shape, at);
        let content = if is_here { pipe.ahead.block(at) } else { &[] };
        let is_whole = || {
            let fits = crc32c::crc32c(content) == map_entry.checksum();
            mutated("log.clean.data-unchecked", fits, true)
        };
        if !is_here || !is_whole() {
            let what = "the checksum of a block does not fit (found while cleaning)";
            self.volume.report_damage(&self.log.name, lba, map_entry, what);
            survey.unreadable += 1;
            return;
        }
        survey.stage.push(Move { lba, old: map_entry }, content);
        survey.staged += 1;
        if survey.staged == EARN_BLOCKS {
            earn(&self.log, &survey.segment, std::mem::take(&mut survey.staged));
        }
    }
}
