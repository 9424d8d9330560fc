//! `record`: streams the requests of a disk as a trace (crate `trace`) in the answer to a client.
//!
//! ```text
//! -> POST /v1/disks/vm1/record, transfer-encoding: chunked
//! <- 200, zstd frames, one per second:
//! <- # flowstone-trace 1 size=1073741824 format=raw
//! <- ...
//! -> the client ends the body of its request
//! <- # requests=1234 lost=0, in a frame of its own
//! ```
//! All of it runs on the client's thread. A client that reads slowly loses requests; one that reads
//! nothing for as long as an answer may take ends the recording.

use std::io::{self, BufWriter};
use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flowstone_block::{Class, Error, OpKind, Result};
use flowstone_control::{Answer, Enough, Sink};
use flowstone_layers::{Recorded, Recording};
use flowstone_trace::{self as trace, Event, Frames, Kind, Writer};
use tracing::info;

use crate::disk::Disk;
use crate::held_data::HeldData;

/// Recordings of all disks at once, including ended ones with a thread blocked by a host: each
/// occupies a control client's place.
const RECORDINGS_MAX: usize = 8;
/// Interval between reads of the rings.
const TICK: Duration = Duration::from_millis(10);
/// The same after a read of many requests: they are then still in the CPU's cache.
const TICK_OF_MANY: Duration = Duration::from_millis(1);
const MANY: u32 = 500;
/// Ranges written between two reads of the rings.
const RANGES_MAX: usize = 1024;
/// Size of the parts that are compressed at once.
const BUFFER_BYTES: usize = 64 << 10;
/// Time for which a zstd frame grows. A recording that is cut off loses no more than the last one.
const FRAME_TIME: Duration = Duration::from_secs(1);
/// Resolution of coarse times.
const COARSE_NS: u64 = 1_000_000;

/// Counts the recordings: each holds a clone.
#[derive(Default)]
pub struct Places(Arc<()>);

impl Places {
    fn take(&self) -> Option<Arc<()>> {
        let place = Arc::clone(&self.0);
        (Arc::strong_count(&place) <= RECORDINGS_MAX + 1).then_some(place)
    }
}

/// Begins a recording of all requests from now on.
pub fn begin(places: &Places, disk: Arc<Disk>, is_coarse: bool) -> Result<Answer> {
    let name = disk.name.clone();
    let busy = |why: String| Error::busy(format!("record {name}"), why, "try again later");
    let place =
        places.take().ok_or_else(|| busy(format!("{RECORDINGS_MAX} recordings are running")))?;
    let recording =
        disk.stack.recorder.begin().ok_or_else(|| busy("the daemon is stopping".into()))?;
    let image = disk.stack.image.as_ref();
    let format = image.map_or("none".to_owned(), |image| image.format().to_string());
    let size = disk.stack.top.geometry().capacity.bytes();
    let held = HeldData::of(disk, Arc::clone(&place)).map_err(|error| busy(error.to_string()))?;
    let session = Session { recording, held, is_coarse };
    Ok(Answer::Trace(Box::new(move |client, enough| {
        info!(disk = name, "a recording begins");
        match session.run(client, &enough, size, &format) {
            Ok(trace::Totals { requests, lost }) => {
                info!(disk = name, requests, lost, "a recording has ended");
            }
            Err(error) => info!(disk = name, %error, "a recording's client has gone"),
        }
        drop(place);
    })))
}

/// A running recording.
struct Session {
    recording: Recording,
    held: HeldData,
    is_coarse: bool,
}

impl Session {
    fn run(
        mut self,
        client: Sink,
        enough: &Enough,
        size: u64,
        format: &str,
    ) -> io::Result<trace::Totals> {
        let target = BufWriter::with_capacity(BUFFER_BYTES, Frames::new(client));
        let mut trace = Writer::begin(target, size, format)?;
        let mut tick = TICK;
        let mut frame_began = Instant::now();
        loop {
            // Checked before the rings are read: so the last read is complete.
            let is_over = self.recording.is_over() || enough.is_said(tick);
            for extent in iter::from_fn(|| self.held.next()).take(RANGES_MAX) {
                trace.event(&Event::new(Kind::Present, extent.start_bytes(), extent.bytes()))?;
            }
            let (taken, lost) = self.recording.take();
            let mut count = 0;
            for recorded in taken {
                trace.event(&event(recorded, self.is_coarse))?;
                count += 1;
            }
            tick = if count < MANY { TICK } else { TICK_OF_MANY };
            if lost > 0 {
                trace.lost(lost)?;
            }
            if is_over {
                break;
            }
            if frame_began.elapsed() >= FRAME_TIME {
                trace.flush()?;
                frame_began = Instant::now();
            }
        }
        if let Some(why) = self.held.missing() {
            trace.remark(&format!("what the disk held is not known to its end: {why}"))?;
        }
        trace.end()
    }
}

fn event(recorded: Recorded, is_coarse: bool) -> Event {
    let Recorded { mut at_ns, op, class, durable } = recorded;
    if is_coarse {
        at_ns -= at_ns % COARSE_NS;
    }
    let class = match class {
        Class::Data => trace::Class::Data,
        Class::Metadata => trace::Class::Metadata,
        Class::Journal => trace::Class::Journal,
    };
    let (kind, class) = match op.kind() {
        OpKind::Read => (Kind::Read, Some(class)),
        OpKind::Write => (Kind::Write, Some(class)),
        OpKind::Flush => (Kind::Flush, None),
        OpKind::Discard => (Kind::Discard, None),
        OpKind::WriteZeroes => (Kind::WriteZeroes, None),
    };
    let offset = op.extent().map_or(0, |extent| extent.start_bytes());
    let at = Some(Duration::from_nanos(at_ns));
    Event { at, class, durable, ..Event::new(kind, offset, op.bytes()) }
}

#[cfg(test)]
mod tests {
    use flowstone_layers::Recorder;

    use super::*;

    #[test]
    fn a_recording_whose_client_panics_is_not_waited_for() {
        let recorder = Arc::<Recorder>::default();
        let recording = recorder.begin().unwrap();
        recorder.close();
        std::thread::scope(|scope| {
            let dies = scope.spawn(move || assert!(!recording.is_over(), "the mistake"));
            recorder.wait(Instant::now() + Duration::from_secs(3600));
            assert!(dies.join().is_err());
        });
    }
}
