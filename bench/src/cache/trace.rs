//! Block traces: CSV, plain or compressed with zstd, with a line `time,op,offset,length` for each
//! request, in bytes. Reads (R), writes (W) and accesses of an unknown kind (A) count alike, for
//! each block of 4 KiB that they touch. Flushes and the like are passed over.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// What is one access, and kept or not as a whole.
pub const BLOCK_BYTES: u64 = 4096;
/// First bytes of a zstd frame (RFC 8878, 3.1.1).
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
/// A longer request is a mistake in the trace.
const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// The blocks that a trace touches, in order.
pub fn read(path: &Path) -> Result<Vec<u64>> {
    let mut file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let mut magic = [0; ZSTD_MAGIC.len()];
    let is_zstd = file.read_exact(&mut magic).is_ok() && magic == ZSTD_MAGIC;
    let file = File::open(path)?;
    let text: Box<dyn Read> =
        if is_zstd { Box::new(zstd::Decoder::new(file)?) } else { Box::new(file) };
    let mut blocks = Vec::new();
    for (index, line) in BufReader::new(text).lines().enumerate() {
        let line = line.with_context(|| format!("read {}", path.display()))?;
        let touched = touched(&line)
            .with_context(|| format!("{} line {}: {line:?}", path.display(), index + 1))?;
        blocks.extend(touched);
    }
    ensure!(!blocks.is_empty(), "{}: there is no read, write or access in it", path.display());
    Ok(blocks)
}

/// The blocks that one line touches; none if it is no access, or the heading.
fn touched(line: &str) -> Result<std::ops::Range<u64>> {
    let mut fields = line.trim().split(',');
    let op = fields.nth(1).unwrap_or_default();
    if !matches!(op, "R" | "W" | "A") {
        return Ok(0..0);
    }
    let mut number = |what| {
        let field = fields.next().with_context(|| format!("no {what}"))?;
        field.parse::<u64>().with_context(|| format!("{what} {field:?} is no number"))
    };
    let (offset, bytes) = (number("offset")?, number("length")?);
    ensure!(bytes <= REQUEST_BYTES_MAX, "a request of {bytes} bytes");
    let end = offset.checked_add(bytes).context("it ends beyond 2^64")?;
    Ok(offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES).max(offset / BLOCK_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_touches_every_block_that_it_shares_a_byte_with() {
        for (line, blocks) in [
            ("0,R,0,4096", 0..1),
            ("0,W,4095,2", 0..2),
            ("7,A,8192,8192", 2..4),
            ("0,R,512,0", 0..1),
            ("0,F,0,0", 0..0),
            ("timestamp_us,op,offset_bytes,length_bytes", 0..0),
        ] {
            assert_eq!(touched(line).unwrap(), blocks, "{line}");
        }
        for line in ["0,R,x,1", "0,R,1", "0,R,18446744073709551615,2", "0,W,0,99999999999"] {
            assert!(touched(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_trace_may_be_compressed() {
        let text = "timestamp_us,op,offset_bytes,length_bytes\n0,R,0,8192\n1,W,0,1\n";
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        for bytes in [text.as_bytes().to_vec(), zstd::encode_all(text.as_bytes(), 1).unwrap()] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(read(&path).unwrap(), [0, 1, 0]);
        }
    }
}
