//! Runs a policy over a trace of file uses.

use std::collections::HashMap;

use crate::{Access, FileId, History, Link, Policy, Use};

/// Uses between two epochs: a trace has no clock.
const EPOCH_USES: u64 = 100;
const HISTORY_FILES: usize = 1 << 20;

/// One line of a trace: a file is read or written as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The kind of access.
    pub usage: Use,
    /// The file.
    pub file: FileId,
    /// Its size.
    pub bytes: u64,
}

/// Parses a trace: lines `r|w,FILE,BYTES`; FILE is any name. The error names the line and the
/// problem.
pub fn parse(text: &str) -> Result<Vec<Line>, String> {
    let mut names = HashMap::new();
    let mut lines = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |why: &str| format!("line {}: {why}: {line:?}; want r|w,FILE,BYTES", at + 1);
        let (usage, rest) = line.trim().split_once(',').ok_or_else(|| wrong("no comma"))?;
        let (name, bytes) = rest.rsplit_once(',').ok_or_else(|| wrong("one comma only"))?;
        let usage = match usage {
            "r" => Use::Read,
            "w" => Use::Write,
            _ => return Err(wrong("neither r nor w")),
        };
        let bytes = bytes.parse().map_err(|_| wrong("no number of bytes"))?;
        let next = names.len() as u64;
        let file = FileId(*names.entry(name).or_insert(next));
        lines.push(Line { usage, file, bytes });
    }
    Ok(lines)
}

/// The result of running a policy over a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Lines of the trace.
    pub requests: u64,
    /// Reads served from the cache.
    pub hits: u64,
    /// Their bytes.
    pub hit_bytes: u64,
    /// Bytes of the reads served by the shared storage.
    pub read_bytes: u64,
    /// Time that the hits would have taken there.
    pub saved_seconds: f64,
    /// Time that all reads would have taken there.
    pub all_seconds: f64,
}

/// Runs a policy over a trace.
pub fn run(policy: &mut dyn Policy, trace: &[Line], link: Link) -> Outcome {
    let mut history = History::new(HISTORY_FILES.min(trace.len() * 2));
    let mut outcome = Outcome::default();
    let mut drops = Vec::new();
    for &Line { usage, file, bytes } in trace {
        outcome.requests += 1;
        if usage == Use::Read {
            let seconds = link.seconds(bytes);
            outcome.all_seconds += seconds;
            if policy.holds(file) {
                outcome.hits += 1;
                outcome.hit_bytes += bytes;
                outcome.saved_seconds += seconds;
            } else {
                outcome.read_bytes += bytes;
            }
        }
        let uses = history.used(file, bytes);
        policy.used(&Access { file, usage, bytes, uses }, &mut drops);
        if outcome.requests.is_multiple_of(EPOCH_USES) {
            policy.epoch(&mut drops);
        }
        // No files exist behind the numbers: drops need no action.
        drops.clear();
    }
    outcome
}
