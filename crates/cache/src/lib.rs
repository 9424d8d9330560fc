//! Which blocks a cache shared by all disks keeps: replacement policies behind one interface, pure, without
//! any data. docs/cache.md has their sources and what they reach on traces.

mod entries;
mod policy;

pub use policy::adaptive::Adaptive;
pub use policy::lru::Lru;
pub use policy::multicache::{MultiCache, Scale};
pub use policy::s3fifo::{S3Fifo, Shape};
pub use policy::{Access, BlockId, Outcome, Policy, VmShare};
