//! Repair: whatever is possible without losing anything still readable. Everything else is
//! reported, and left to an operator with a backup.
//!
//! | damage | repair |
//! |---|---|
//! | the log is damaged before its end | it ends there; says which writes are lost |
//! | a superblock is lost | written anew, if the other one is proved to be the newest |
//! | host space that belongs to nothing | given back |
//! | map, data, anything else | nothing: an I/O error is better than zeroes in place of data |

use std::collections::BTreeSet;
use std::sync::Arc;

use flowstone_block::{Error, Result};
use flowstone_fileio::FileIo;
use flowstone_image::{CheckProgress, CheckReport};
use flowstone_log_format::{SegmentId, Shape};
use flowstone_log_store::BlockingStore;
use flowstone_log_store::segments::{Segment, SegmentTable, State};

use super::Examination;
use crate::load::Loaded;
use crate::log::Log;
use crate::session::of_loaded;

/// Checks an image, repairs it where possible, and checks it again.
pub fn repair(
    name: &str,
    file: Box<dyn FileIo>,
    data: bool,
    tells_space: bool,
    progress: CheckProgress<'_>,
) -> Result<CheckReport> {
    let mut examine = |file: &dyn FileIo| Examination::of(name, file, data, tells_space, progress);
    let mut found = examine(&*file)?;
    let rewrite = found.lost_slot.is_some() || found.is_cut_off();
    if !rewrite && found.findings.report.leaked_bytes == 0 {
        if found.findings.report.error_count > 0 {
            found.findings.report.notes.push(NOTHING.into());
        }
        return Ok(found.findings.report);
    }
    if let Some(why) = found.why_not() {
        found.findings.report.notes.push(format!("not repaired: {why}"));
        return Ok(found.findings.report);
    }
    let mut done = Vec::new();
    let Some(mut loaded) = found.loaded.take() else { return Ok(found.findings.report) };
    let again = if rewrite {
        found.accept_end(&mut loaded, &mut done);
        if let Some(slot) = found.lost_slot {
            done.push(format!("superblock {slot} written anew; nothing is lost"));
        }
        let log = write_anew(name, file, loaded)?;
        if tells_space {
            give_back(name, log.store.file(), log.shape, log.append_state().segments())?;
        }
        examine(log.store.file())?
    } else {
        give_back(name, &*file, loaded.shape, &loaded.segments)?;
        examine(&*file)?
    };
    if found.findings.report.leaked_bytes > 0 {
        done.push(format!("{} bytes of host space given back", found.findings.report.leaked_bytes));
    }
    let mut report = again.findings.report;
    if report.error_count > 0 {
        report.notes.push(NOTHING.into());
    }
    report.repairs = done;
    Ok(report)
}

const NOTHING: &str = "what is listed cannot be repaired: guests get an I/O error there, or the \
                       image is refused; restore it from a backup";

impl Examination<'_> {
    /// Returns why nothing may be written to this image.
    fn why_not(&self) -> Option<&'static str> {
        let Some(loaded) = &self.loaded else {
            return Some(
                "the map is lost, and a map made from what records are left would bring \
                         discarded blocks back; restore the image from a backup",
            );
        };
        if self.bad_leaves > 0 {
            return Some(
                "a part of the map is lost, and one made from what records are left would \
                         bring discarded blocks back; restore the image from a backup",
            );
        }
        if !self.newest_for_sure {
            return Some(
                "it is not certain that the superblock that is left is the newest; restore \
                         the image from a backup",
            );
        }
        if loaded.replay.is_stale {
            return Some(
                "a newer superblock is missing, and space that it freed may have been used \
                         again; restore the image from a backup",
            );
        }
        if loaded.superblock.readonly_features() != 0 {
            return Some("it uses features of a later version that this one can only read");
        }
        None
    }

    /// Accepts the point where replay had to stop as the end of the log.
    fn accept_end(&mut self, loaded: &mut Loaded, done: &mut Vec<String>) {
        if loaded.replay.damage.take().is_none() {
            return;
        }
        let end = loaded.replay.next_sequence;
        let evidence = self.evidence.take().unwrap_or_default();
        let flushed = evidence.promise.since(end);
        done.push(format!(
            "the log ends before record {end} now; {flushed} records that had been flushed, and \
             any after them, are lost"
        ));
        done.extend(evidence.lost.into_iter().map(|line| format!("lost with {line}")));
        // Records behind the end must never seem to belong to a later write.
        loaded.replay.next_sequence = end.max(evidence.promise).max(evidence.last.next().next());
    }
}

/// Writes the loaded state as a new checkpoint with new heads.
fn write_anew(name: &str, file: Box<dyn FileIo>, loaded: Loaded) -> Result<Arc<Log>> {
    let (log, _, unbegun) = of_loaded(name.into(), file, loaded, false)?;
    let host = |errno| Error::host(name, errno, "check the host's file system");
    if let Some(unbegun) = unbegun {
        unbegun.begin()?.close().map_err(host)?;
    }
    Ok(log)
}

/// Deallocates the host space of all segments not in use.
fn give_back(name: &str, file: &dyn FileIo, shape: Shape, segments: &SegmentTable) -> Result<()> {
    let host = |error: std::io::Error| Error::host(name, error, "check the host's file system");
    let size = file.size().map_err(host)?;
    let mut store = BlockingStore::open(file, shape).map_err(host)?;
    let in_use = |segment: &Segment| !matches!(segment.state, State::Free | State::Ready);
    let held: BTreeSet<SegmentId> =
        segments.iter().filter(|(_, it)| in_use(it)).map(|(number, _)| number).collect();
    let in_file = size.div_ceil(shape.segment_bytes()).min(u64::from(segments.limit())) as u32;
    for segment in SegmentId::range(1..in_file).filter(|segment| !held.contains(segment)) {
        let freed = store.free_within(segment..segment.next(), size);
        freed.map_err(|errno| host(errno.into()))?;
    }
    store.sync_alone().map_err(|errno| host(errno.into()))
}
