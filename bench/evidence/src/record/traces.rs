//! Paths of traces, and the insertion of phases into a recorded one.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use flowstone_trace::{Event, Kind, Phase, Writer, read};

/// Folder of traces, relative to the source tree; they are not part of it.
pub const FOLDER: &str = "target/evidence/traces";
const LEVEL: i32 = 9;
const SECTOR_BYTES: u64 = 512;

/// Returns the path of a recording's trace.
pub fn trace_path(name: &str) -> PathBuf {
    Path::new(FOLDER).join(format!("{name}.csv.zst"))
}

/// Writes a recorded trace, with the names of its phases in place of their marks, and returns a
/// summary of its size.
pub fn save(recorded: &Path, phases: &[&str], mark: u64, target: &Path) -> Result<String> {
    let trace = read(recorded)?;
    ensure!(trace.lost == 0, "the recorder has lost {} requests: record again", trace.lost);
    ensure!(!trace.is_cut, "the end of the trace is missing");
    // The old trace stays in place until the new one is complete.
    let unfinished = target.with_extension("new");
    let file = File::create(&unfinished).with_context(|| unfinished.display().to_string())?;
    let mut file = zstd::Encoder::new(file, LEVEL)?;
    let mut writer = Writer::begin(&mut file, trace.size.context("the disk's size")?, "raw")?;
    let mut names = phases.iter();
    for event in &trace.events {
        if is_mark(event, mark) {
            writer.phase(names.next().context("more marks than phases")?)?;
        } else {
            writer.event(event)?;
        }
    }
    ensure!(names.next().is_none(), "a phase has no mark");
    let totals = writer.end()?;
    file.finish()?;
    std::fs::rename(&unfinished, target)?;
    let bytes = target.metadata()?.len();
    Ok(format!("{} requests, {} KiB", totals.requests, bytes >> 10))
}

/// Merges copies of a guest's trace, each delayed after the one before, side by side on one disk.
/// The phases are those of the first one.
pub fn side_by_side(source: &Path, guests: u64, later: Duration, target: &Path) -> Result<()> {
    let trace = read(source)?;
    let size = trace.size.context("the disk's size")?;
    let of = |guest: u64| {
        let later = later * u32::try_from(guest).unwrap_or(u32::MAX);
        trace.events.iter().enumerate().map(move |(number, event)| {
            let at = event.at.map(|at| at + later);
            let first = (guest == 0).then_some(number);
            (first, Event { at, offset: event.offset + guest * size, ..*event })
        })
    };
    let mut all: Vec<_> = (0..guests).flat_map(of).collect();
    all.sort_by_key(|(_, event)| event.at);
    let mut file = zstd::Encoder::new(File::create(target)?, LEVEL)?;
    let mut writer = Writer::begin(&mut file, guests * size, "raw")?;
    let mut phases = trace.phases.iter().peekable();
    for (number, event) in &all {
        let begins = |phase: &&Phase| number.is_some_and(|number| number >= phase.first);
        while let Some(phase) = phases.next_if(begins) {
            writer.phase(&phase.name)?;
        }
        writer.event(event)?;
    }
    writer.end()?;
    file.finish()?;
    Ok(())
}

fn is_mark(event: &Event, mark: u64) -> bool {
    (event.kind, event.offset, event.bytes) == (Kind::Read, mark, SECTOR_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_become_phases() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let at = |kind, offset, bytes| Event {
            at: Some(Duration::ZERO),
            ..Event::new(kind, offset, bytes)
        };
        let events = [
            at(Kind::Read, 1536, 512),
            at(Kind::Write, 0, 4096),
            at(Kind::Read, 1536, 512),
            at(Kind::Read, 1536, 4096),
        ];
        let mut writer = Writer::begin(File::create(&from).unwrap(), 1 << 20, "raw").unwrap();
        events.iter().for_each(|event| writer.event(event).unwrap());
        writer.end().unwrap();
        save(&from, &["make", "run"], 1536, &to).unwrap();
        let trace = read(&to).unwrap();
        assert_eq!(trace.events, [events[1], events[3]]);
        let phases: Vec<_> = trace.phases.iter().map(|it| (it.name.as_str(), it.first)).collect();
        assert_eq!(phases, [("make", 0), ("run", 1)]);
        let beside = folder.path().join("beside");
        side_by_side(&to, 2, Duration::from_secs(1), &beside).unwrap();
        let two = read(&beside).unwrap();
        assert_eq!((two.events.len(), two.size, &two.phases), (4, Some(2 << 20), &trace.phases));
        assert_eq!(two.events[2].offset, 1 << 20);
        for names in [&["make"][..], &["make", "run", "more"]] {
            save(&from, names, 1536, &to).unwrap_err();
        }
    }
}
