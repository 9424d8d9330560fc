//! `timestamp_us,op,offset_bytes,length_bytes`; more columns are passed over. op is R, W, F
//! (flush), D (discard), Z (write zeroes), A (an access of unknown kind) or P (held data at first).

use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::lines::Lines;
use crate::{Event, Kind};

/// See the module. A line with `#` before it is a remark.
pub struct Table;

impl Lines for Table {
    fn event(&mut self, line: &str) -> Result<Option<Event>> {
        if line.starts_with('#') || line.starts_with("timestamp") {
            return Ok(None);
        }
        let mut fields = line.split(',');
        let at = fields.next().unwrap_or_default();
        let kind = match fields.next().context("no operation")? {
            "R" => Kind::Read,
            "W" => Kind::Write,
            "F" => Kind::Flush,
            "D" => Kind::Discard,
            "Z" => Kind::WriteZeroes,
            "A" => Kind::Access,
            "P" => Kind::Present,
            other => bail!("{other:?} is no operation; there are R, W, F, D, Z, A and P"),
        };
        // Times of some traces have decimals.
        let at: f64 = at.parse().ok().with_context(|| format!("time {at:?} is no number"))?;
        let at = Duration::try_from_secs_f64(at / 1e6).context("that is no time")?;
        let mut number = |what| {
            let field = fields.next().with_context(|| format!("no {what}"))?;
            field.parse::<u64>().ok().with_context(|| format!("{what} {field:?} is no number"))
        };
        let (offset, bytes) = (number("offset")?, number("length")?);
        Ok(Some(Event { at: Some(at), kind, offset, bytes }))
    }
}
