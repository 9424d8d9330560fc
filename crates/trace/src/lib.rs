//! Block traces: the requests of a disk, in order.
//!
//! | format | told by | what is read |
//! |---|---|---|
//! | CSV: `timestamp_us,op,offset_bytes,length_bytes[,class[,durable]]` | anything else | all |
//! | fio's I/O log, version 2 or 3 | its first line | reads, writes, trims, syncs |
//! | blkparse's text | lines that begin `MAJOR,MINOR CPU` | requests that are queued (Q) |
//!
//! Each may be compressed with zstd. An error names the line. Of a trace that was cut, the rest is
//! read.

mod blkparse;
mod csv;
mod event;
mod fio;
mod frames;
mod lines;
mod read;

pub use csv::{Totals, Writer};
pub use event::{Class, Event, Kind, Phase, Trace};
pub use frames::Frames;
pub use read::{read, read_from};
