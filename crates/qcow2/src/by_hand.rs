//! A qcow2 image without threads: runs the work of each thread in turns.

use std::time::Instant;

use flowstone_block::Outcome;
use flowstone_image::Upkeep;
use flowstone_image::runtime::trims::TrimWorker;

use super::maintenance::Maintenance;
use super::slow_path::SlowPathByHand;

/// See the module. Maintenance comes first: it makes the room that the others need.
pub struct ByHand {
    maintenance: Maintenance,
    slow_path: SlowPathByHand,
    trims: TrimWorker,
}

impl ByHand {
    pub fn new(mut maintenance: Maintenance, slow_path: SlowPathByHand, trims: TrimWorker) -> Self {
        maintenance.start();
        Self { maintenance, slow_path, trims }
    }

    /// Closes the image, which has been told to stop, as its thread would.
    pub fn run(self) -> Outcome {
        self.maintenance.run()
    }
}

impl Upkeep for ByHand {
    fn is_due(&self) -> bool {
        self.maintenance.is_due() || self.slow_path.is_due() || self.trims.is_due()
    }

    fn next(&self) -> Option<Instant> {
        self.maintenance.next()
    }

    fn turn(&mut self) {
        if self.maintenance.is_due() {
            self.maintenance.turn();
        } else if self.slow_path.is_due() {
            self.slow_path.turn();
        } else {
            self.trims.turn();
        }
    }
}
