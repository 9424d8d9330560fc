//! `timestamp_us,op,offset_bytes,length_bytes[,class[,durable]]`. op is R, W, F (flush), D
//! (discard), Z (write zeroes), A (an access of unknown kind) or P (data present at first).
//!
//! ```text
//! # flowstone-trace 1 size=1073741824 format=raw
//! timestamp_us,op,offset_bytes,length_bytes,class,durable
//! 0,P,0,4194304
//! # phase run 1
//! 1250,W,8192,4096,journal
//! 1250,W,65536,4096,data,1
//! 1391,F,0,0
//! # lost=12
//! # requests=3 lost=12
//! ```
//! The lines with `#` are written by `flowstone record`: properties of the disk, numbers of lost
//! requests where they are missing, and, last, the end mark; programs that know the guest's phases
//! add the beginning of each. Without the first of these lines a table is another program's: its
//! columns from the fifth on are ignored, and so are all its remarks.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::lines::Lines;
use crate::{Class, Event, Kind, Phase, Trace};

const HEAD: &str = "# flowstone-trace ";
const VERSION: &str = "1";
const PHASE: &str = "# phase ";
const LOST: &str = "# lost=";
const END: &str = "# requests=";
/// Largest disk; sums of sizes do not overflow.
const DISK_BYTES_MAX: u64 = 1 << 60;
const COLUMNS: &str = "timestamp_us,op,offset_bytes,length_bytes,class,durable";

const KINDS: [(&str, Kind); 7] = [
    ("R", Kind::Read),
    ("W", Kind::Write),
    ("F", Kind::Flush),
    ("D", Kind::Discard),
    ("Z", Kind::WriteZeroes),
    ("A", Kind::Access),
    ("P", Kind::Present),
];
const CLASSES: [(&str, Class); 3] =
    [("data", Class::Data), ("metadata", Class::Metadata), ("journal", Class::Journal)];

fn by_name<T: Copy>(all: &[(&str, T)], name: &str) -> Option<T> {
    all.iter().find(|(it, _)| *it == name).map(|(_, value)| *value)
}

fn name_of<T: PartialEq>(all: &[(&'static str, T)], value: &T) -> &'static str {
    all.iter().find(|(_, it)| it == value).map_or("", |(name, _)| name)
}

/// Parser of a table.
#[derive(Default)]
pub struct Table {
    is_recorded: bool,
    /// The last line, once it has come.
    totals: Option<Totals>,
    size: Option<u64>,
    lost: u64,
    events: usize,
    requests: u64,
    phases: Vec<Phase>,
}

impl Lines for Table {
    fn event(&mut self, line: &str) -> Result<Option<Event>> {
        if line.starts_with('#') {
            self.remark(line)?;
            return Ok(None);
        }
        if line.starts_with("timestamp") {
            return Ok(None);
        }
        let mut fields = line.split(',');
        let at = fields.next().unwrap_or_default();
        let kind = fields.next().context("no operation")?;
        let kind = by_name(&KINDS, kind).with_context(|| {
            format!("{kind:?} is no operation; there are R, W, F, D, Z, A and P")
        })?;
        // Times of some traces have decimals.
        let at: f64 = at.parse().ok().with_context(|| format!("time {at:?} is no number"))?;
        let at = Duration::try_from_secs_f64(at / 1e6).context("that is no time")?;
        let mut number = |what| {
            let field = fields.next().with_context(|| format!("no {what}"))?;
            field.parse::<u64>().ok().with_context(|| format!("{what} {field:?} is no number"))
        };
        let (offset, bytes) = (number("offset")?, number("length")?);
        let mut event = Event { at: Some(at), ..Event::new(kind, offset, bytes) };
        if self.is_recorded {
            event.class = class(fields.next().unwrap_or_default())?;
            event.durable = durable(fields.next().unwrap_or_default())?;
        }
        ensure!(self.totals.is_none(), "a request after the end of the trace");
        self.events += 1;
        self.requests += u64::from(event.kind != Kind::Present);
        Ok(Some(event))
    }

    fn has_cut_lines(&self) -> bool {
        self.is_recorded
    }

    fn end(&self, trace: &mut Trace) {
        (trace.size, trace.lost) = (self.size, self.lost);
        trace.phases.clone_from(&self.phases);
        trace.is_cut |= self.is_recorded && self.totals.is_none();
        let counted = self.totals.map(|totals| totals.requests);
        trace.miscounted = counted.filter(|counted| *counted != self.requests);
    }
}

impl Table {
    fn remark(&mut self, line: &str) -> Result<()> {
        if let Some(words) = line.strip_prefix(HEAD) {
            ensure!(!self.is_recorded, "another trace begins here");
            self.is_recorded = true;
            return self.head(words);
        }
        if self.is_recorded {
            let lost = line.strip_prefix(LOST).and_then(|count| count.parse::<u64>().ok());
            self.lost = self.lost.saturating_add(lost.unwrap_or(0));
            let phase = line.strip_prefix(PHASE).map(|name| name.trim().to_owned());
            self.phases.extend(phase.map(|name| Phase { name, first: self.events }));
            self.totals = self.totals.or_else(|| Totals::of_line(line));
        }
        Ok(())
    }

    fn head(&mut self, words: &str) -> Result<()> {
        let mut words = words.split_ascii_whitespace();
        let version = words.next().unwrap_or_default();
        ensure!(version == VERSION, "of the format only version {VERSION} is known");
        let size = words.find_map(|word| word.strip_prefix("size="));
        let number = |size: &str| {
            let bytes = size.parse().ok().filter(|bytes| *bytes <= DISK_BYTES_MAX);
            bytes.with_context(|| format!("size {size:?} in bytes, up to {DISK_BYTES_MAX}"))
        };
        self.size = size.map(number).transpose()?;
        Ok(())
    }
}

fn class(field: &str) -> Result<Option<Class>> {
    let class = by_name(&CLASSES, field);
    ensure!(
        class.is_some() || field.is_empty(),
        "{field:?} is no class; there are data, metadata and journal"
    );
    Ok(class)
}

fn durable(field: &str) -> Result<bool> {
    match field {
        "1" => Ok(true),
        "" | "0" => Ok(false),
        other => bail!("durable is 1 or 0, and not {other:?}"),
    }
}

/// The last line of a recorded trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests in the trace.
    pub requests: u64,
    /// Requests lost by the recorder.
    pub lost: u64,
}

impl Totals {
    /// Parses the last line of a trace; `None` for other lines.
    pub fn of_line(line: &str) -> Option<Self> {
        let (requests, lost) = line.strip_prefix(END)?.trim_end().split_once(" lost=")?;
        Some(Self { requests: requests.parse().ok()?, lost: lost.parse().ok()? })
    }
}

/// Writes a trace, a line at a time.
pub struct Writer<W: Write> {
    target: W,
    line: Vec<u8>,
    totals: Totals,
}

impl<W: Write> Writer<W> {
    /// Begins a trace with the properties of the disk.
    ///
    /// # Errors
    /// Those of `target`, here and below.
    pub fn begin(mut target: W, size: u64, format: &str) -> io::Result<Self> {
        writeln!(target, "{HEAD}{VERSION} size={size} format={format}")?;
        writeln!(target, "{COLUMNS}")?;
        Ok(Self { target, line: Vec::new(), totals: Totals::default() })
    }

    /// Writes an event. Its time is kept in microseconds.
    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        let Event { at, kind, offset, bytes, class, durable } = *event;
        let at_us = u64::try_from(at.unwrap_or_default().as_micros()).unwrap_or(u64::MAX);
        let mut digits = itoa::Buffer::new();
        // Not by `write!`, which takes three times as long: a daemon does this.
        let line = &mut self.line;
        line.clear();
        line.extend_from_slice(digits.format(at_us).as_bytes());
        line.push(b',');
        line.extend_from_slice(name_of(&KINDS, &kind).as_bytes());
        for number in [offset, bytes] {
            line.push(b',');
            line.extend_from_slice(digits.format(number).as_bytes());
        }
        if class.is_some() || durable {
            line.push(b',');
            line.extend_from_slice(class.map_or("", |it| name_of(&CLASSES, &it)).as_bytes());
        }
        line.extend_from_slice(if durable { b",1\n" } else { b"\n" });
        self.totals.requests += u64::from(kind != Kind::Present);
        self.target.write_all(line)
    }

    /// Records that requests are missing here.
    pub fn lost(&mut self, requests: u64) -> io::Result<()> {
        self.totals.lost += requests;
        writeln!(self.target, "{LOST}{requests}")
    }

    /// Records that a phase begins here; `name` is a line.
    pub fn phase(&mut self, name: &str) -> io::Result<()> {
        writeln!(self.target, "{PHASE}{name}")
    }

    /// Writes a remark for human readers.
    pub fn remark(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.target, "# {text}")
    }

    /// Flushes the target.
    pub fn flush(&mut self) -> io::Result<()> {
        self.target.flush()
    }

    /// Ends the trace: a trace without its last line has been cut. That line is flushed by itself.
    pub fn end(mut self) -> io::Result<Totals> {
        self.target.flush()?;
        let Totals { requests, lost } = self.totals;
        writeln!(self.target, "{END}{requests} lost={lost}")?;
        self.target.flush()?;
        Ok(self.totals)
    }
}
