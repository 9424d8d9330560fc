//! fio's I/O log (`write_iolog`) of one file or device, versions 2 and 3.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::lines::Lines;
use crate::{Event, Kind};

/// Parser of fio's log.
#[derive(Default)]
pub struct Log {
    /// Version of the format; 0 before its first line.
    version: u8,
    /// The first file with a request. Another one is an error: its requests would be mixed up with
    /// the first one's.
    file: Option<String>,
}

impl Lines for Log {
    fn event(&mut self, line: &str) -> Result<Option<Event>> {
        if self.version == 0 {
            self.version = match line {
                "fio version 2 iolog" => 2,
                "fio version 3 iolog" => 3,
                _ => bail!("only versions 2 and 3 of fio's log are known"),
            };
            return Ok(None);
        }
        let mut fields = line.split_ascii_whitespace();
        // Microseconds, as fio 3.33 writes them; its manual names no unit.
        let at = match self.version {
            3 => {
                let field = fields.next().unwrap_or_default();
                let time =
                    field.parse().ok().with_context(|| format!("time {field:?} is no number"));
                Some(Duration::from_micros(time?))
            }
            _ => None,
        };
        let file = fields.next().context("no file")?;
        let kind = match fields.next().context("no operation")? {
            "read" => Kind::Read,
            "write" => Kind::Write,
            "trim" => Kind::Discard,
            "sync" | "datasync" => Kind::Flush,
            // `wait` does not act as its manual says, and the times of version 3 replace it.
            "add" | "open" | "close" | "wait" => return Ok(None),
            other => bail!("{other:?} is no operation of fio's log"),
        };
        let first = self.file.get_or_insert_with(|| file.into());
        ensure!(first == file, "it is of another file than the lines before; log a job with one");
        if kind == Kind::Flush {
            return Ok(Some(Event { at, ..Event::new(kind, 0, 0) }));
        }
        let mut number = |what| {
            let field = fields.next().with_context(|| format!("no {what}"))?;
            field.parse::<u64>().ok().with_context(|| format!("{what} {field:?} is no number"))
        };
        let (offset, bytes) = (number("offset")?, number("length")?);
        Ok(Some(Event { at, ..Event::new(kind, offset, bytes) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trims_and_syncs_are_read() {
        let mut log = Log::default();
        let mut kinds = Vec::new();
        for line in [
            "fio version 3 iolog",
            "1 /dev/x trim 4096 8192",
            "2 /dev/x sync 0 0",
            "3 /dev/x datasync",
        ] {
            kinds.extend(log.event(line).unwrap().map(|it| (it.kind, it.offset, it.bytes)));
        }
        assert_eq!(kinds, [(Kind::Discard, 4096, 8192), (Kind::Flush, 0, 0), (Kind::Flush, 0, 0)]);
        assert!(log.event("4 /dev/x erase 0 1").is_err());
        assert!(log.event("4 /dev/y add").is_ok());
        let error = log.event("4 /dev/y read 0 4096").unwrap_err().to_string();
        assert!(error.starts_with("it is of another file"), "{error}");
    }
}
