//! Requests that wait for room.

use flowstone_block::{Errno, mutant};
use tracing::{info, warn};

use super::Log;
use super::append::Full;

impl Log {
    /// Reports that there is room again, and makes the requests that wait for it try again.
    pub fn announce_room(&self) {
        if self.append_state().note_room() {
            info!("{}: there is room for writes again", self.name);
        }
        self.wake_waiting();
    }

    /// Fails the requests that wait for room, when waiting is in vain.
    pub fn give_up_waiting(&self, errno: Errno) {
        let full = Full { errno, at: self.clock.now() };
        let warn = |what: &str| warn!("{}: no room for {what}: {errno}", self.name);
        if self.append_state().refuse_waiting(full, warn) {
            self.wake_waiting();
        }
    }

    /// Ends copying for now: no write waits for the space it frees.
    pub fn end_copying(&self) {
        let held = self.append_state().rate_mut().end();
        if held && !mutant("log.rate.leaves-writes-behind") {
            self.wake_waiting();
        }
    }
}
