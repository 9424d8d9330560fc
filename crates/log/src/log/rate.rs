//! Throttles guest writes in proportion to cleaning: while copies are being made, guests may write
//! in proportion to the space that cleaning frees, and each block costs more the less space is
//! left. So writes slow down early and gradually, instead of stopping for a whole segment when none
//! is left.
//!
//! It holds writes only between [`begin`](CleaningRate::begin) and [`end`](CleaningRate::end):
//! while no copies are made, no write waits. Pure: numbers in, numbers out.

use flowstone_block::mutated;

/// Price of one block of credit for each block written.
const ONE: u64 = 256;
/// Price when the last segment that writes may open is full. At half of the room the price is one,
/// and cleaning keeps up.
const PRICE_MOST: u64 = 2 * ONE;
/// Maximum credit, in blocks: writes come in batches, and so do copies, in runs of 4 MiB.
const CREDIT_MOST: i64 = 1024 * ONE as i64;
/// Maximum debt. No credit is earned while a checkpoint is made or a victim is chosen.
const DEBT_MOST: i64 = 128 * ONE as i64;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct CleaningRate {
    /// Blocks of the segments that writes may still open, and the number from which on writes are
    /// free of charge.
    left: u64,
    free_from: u64,
    credit: i64,
    copying: bool,
    held: bool,
}

impl CleaningRate {
    /// Sets the number of blocks in segments that writes may still open. With `free_from` or more,
    /// writes are free of charge.
    pub fn set_room(&mut self, left: u64, free_from: u64) {
        (self.left, self.free_from) = (left, free_from);
    }

    /// Counts a segment opened by writes.
    pub fn opened(&mut self, blocks: u32) {
        self.left = self.left.saturating_sub(blocks.into());
    }

    /// Starts charging: copies are made from now on.
    pub fn begin(&mut self) {
        self.copying = true;
    }

    /// Stops charging: no copies are made. Returns whether writes wait.
    pub fn end(&mut self) -> bool {
        self.copying = false;
        std::mem::take(&mut self.held)
    }

    /// Credits work that frees `blocks / parts` blocks. Returns whether waiting writes may go on.
    pub fn won(&mut self, blocks: u64, parts: u64) -> bool {
        let credit = blocks.saturating_mul(ONE) / parts.max(1);
        self.credit = self.credit.saturating_add_unsigned(credit).min(CREDIT_MOST);
        self.credit > 0 && std::mem::take(&mut self.held)
    }

    /// Returns whether the credit is at its maximum.
    pub fn is_ahead(&self) -> bool {
        self.credit >= CREDIT_MOST
    }

    /// Returns whether a write may go on in a head with room for `head_room` blocks.
    pub fn admit(&mut self, head_room: u32) -> bool {
        let pays = mutated("log.rate.holds-when-nothing-is-copied", self.copying, true);
        let admitted = !pays || self.credit > 0 || self.price(head_room) == 0;
        self.held |= !admitted;
        admitted
    }

    /// Returns whether a write waits.
    #[cfg(test)]
    pub fn is_holding(&self) -> bool {
        self.held
    }

    /// Charges a write of `blocks` blocks in a head with room for `head_room` blocks.
    pub fn wrote(&mut self, blocks: u32, head_room: u32) {
        let price = self.price(head_room) * u64::from(blocks);
        self.credit = self.credit.saturating_sub(price as i64).max(-DEBT_MOST);
    }

    fn price(&self, head_room: u32) -> u64 {
        let missing = self.free_from.saturating_sub(self.left + u64::from(head_room));
        (PRICE_MOST * missing).checked_div(self.free_from).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 1000;

    /// Simulates a guest that writes as fast as it may beside a worker that makes `speed` blocks of
    /// copies while the guest could write one block, each of which frees `gain` percent of a block.
    /// Returns the room left at the end, the longest wait, and the blocks written.
    fn race(speed: u64, gain: u64, steps: u64) -> (u64, u64, u64) {
        let mut rate = CleaningRate::default();
        let (mut left, mut head, mut won) = (3 * SEGMENT, SEGMENT, 0);
        let (mut waited, mut longest, mut written) = (0, 0, 0);
        for step in 0..steps {
            rate.set_room(left, 3 * SEGMENT);
            rate.begin();
            // Copies in records of 100.
            if step % 100 == 0 {
                let blocks = 100 * speed * gain / 100;
                rate.won(blocks, 1);
                won += blocks;
            }
            if won >= SEGMENT {
                (won, left) = (won - SEGMENT, left + SEGMENT);
                rate.end();
            }
            if rate.admit(head as u32) && (head > 0 || left > 0) {
                if head == 0 {
                    (head, left) = (SEGMENT, left - SEGMENT);
                    rate.opened(SEGMENT as u32);
                }
                rate.wrote(1, head as u32);
                (head, written, waited) = (head - 1, written + 1, 0);
            } else {
                waited += 1;
                longest = longest.max(waited);
            }
        }
        (left + head, longest, written)
    }

    #[test]
    fn guests_that_outrun_cleaning_are_slowed_and_never_stopped() {
        // Copies free half a block for each block that the guest could write.
        let (left, longest, written) = race(1, 50, 200_000);
        assert!(left > SEGMENT / 2, "{left}");
        assert!(longest < 400, "{longest}");
        assert!((90_000..110_000).contains(&written), "{written}");
    }

    #[test]
    fn cleaning_that_keeps_up_costs_guests_nothing() {
        let (_, longest, written) = race(2, 100, 100_000);
        assert!(longest == 0 && written == 100_000, "{longest} {written}");
    }

    #[test]
    fn nobody_waits_when_nothing_is_copied_or_there_is_room() {
        let mut rate = CleaningRate::default();
        rate.set_room(0, 4000);
        rate.wrote(5000, 0);
        assert!(rate.admit(0));
        rate.begin();
        assert!(!rate.admit(0));
        assert!(!rate.won(200, 2), "the debt is larger");
        assert!(rate.won(200, 1) && rate.admit(0));
        rate.wrote(128, 0);
        assert!(!rate.admit(0) && rate.admit(4000));
        rate.set_room(4000, 4000);
        assert!(rate.admit(0));
        assert!(rate.end() && !rate.end());
    }

    #[test]
    fn the_last_room_is_dearest() {
        let mut rate = CleaningRate::default();
        rate.set_room(2000, 4000);
        assert_eq!((rate.price(0), rate.price(1000), rate.price(2000)), (ONE, ONE / 2, 0));
        rate.opened(3000);
        assert_eq!(rate.price(0), PRICE_MOST);
    }
}
