//! How an open log image cleans itself and puts its blocks in order.

use flowstone_image::Tell;

use crate::copy_memory::CopyMemory;
use crate::resort::ResortLimit;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct UpkeepOptions {
    /// Write budget of the re-sorting pass, which puts blocks in LBA order.
    pub resort: ResortLimit,
    /// When dead segments are deallocated.
    pub tell: Tell,
    /// Memory in which the cleaner gathers copies. Default: memory of its own.
    pub copy_memory: CopyMemory,
    /// Exponent of the age of segments in the choice of the next one to clean. Default:
    /// [`AGE_POWER`](crate::policy::AGE_POWER).
    pub age_power: Option<f64>,
    /// Number of lifetimes by which copies are kept apart. Default: all that the format has.
    pub copy_lifetimes: Option<u8>,
}
