//! Layers that stack between the front end and an image, most of them for tests and diagnosis.
//!
//! Two replace an image ([`Null`], [`Mem`]); the others wrap the layer below and change or observe
//! its requests. Each is selected on the command line, e.g. `--layer delay=0-5ms`, and [`Zeroes`],
//! which is for production use, by `--detect-zeroes`. [`Record`] is always present.

/// Passes calls on to the layer or channel below.
macro_rules! pass_to_base {
    ($($call:ident),+) => { $(pass_to_base!(@$call);)+ };
    (@geometry) => {
        fn geometry(&self) -> flowstone_block::Geometry {
            self.base.geometry()
        }
    };
    (@kick) => {
        fn kick(&mut self) {
            self.base.kick();
        }
    };
    (@next_look) => {
        fn next_look(&mut self) -> flowstone_block::NextLook {
            self.base.next_look()
        }
    };
    (@retire) => {
        fn retire(&mut self) -> bool {
            self.base.retire()
        }
    };
}

mod delay;
mod error;
mod log;
mod mem;
mod null;
mod record;
mod recorder;
mod spec;
mod stats;
mod verify;
mod zeroes;

pub use delay::{Delay, DelayRange};
pub use error::{ErrorRule, Errors};
pub use log::Log;
pub use mem::Mem;
pub use null::Null;
pub use record::Record;
pub use recorder::{Recorded, Recorder, Recording};
pub use spec::{LayerArgs, LayerSpec};
pub use stats::{LayerCounters, Passed, Stats};
pub use verify::Verify;
pub use zeroes::{DetectZeroes, ZeroCounters, Zeroes, ZeroesArgs};
