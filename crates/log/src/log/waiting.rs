//! Requests that wait for room.

use flowstone_block::{Errno, mutant};
use tracing::{info, warn};

use super::Log;
use super::append::Full;

impl Log {
    /// Reports that there is room again, and makes the requests that wait for it try again.
    pub fn announce_room(&self) {
        {
            let mut state = self.append_state();
            (state.writes.starved, state.trims.starved) = (false, false);
            let told = [state.writes.full.take(), state.trims.full.take()];
            if told.iter().any(Option::is_some) {
                info!("{}: there is room for writes again", self.name);
            }
        }
        self.wake_waiting();
    }

    /// Fails the requests that wait for room, when waiting is in vain.
    pub fn give_up_waiting(&self, errno: Errno) {
        let told = {
            let mut state = self.append_state();
            let state = &mut *state;
            let mut told = false;
            for (want, what) in [(&mut state.writes, "writes"), (&mut state.trims, "trims")] {
                if std::mem::take(&mut want.starved) {
                    if want.full.replace(Full { errno, at: self.clock.now() }).is_none() {
                        warn!("{}: no room for {what}: {errno}", self.name);
                    }
                    told = true;
                }
            }
            told
        };
        if told {
            self.wake_waiting();
        }
    }

    /// Ends copying for now: no write waits for the space it frees.
    pub fn end_copying(&self) {
        let held = self.append_state().rate.end();
        if held && !mutant("log.rate.leaves-writes-behind") {
            self.wake_waiting();
        }
    }
}
