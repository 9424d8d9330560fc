//! Reading of traces in any format.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::frames::ZSTD_MAGIC;
use crate::lines::Lines;
use crate::{Event, Kind, Trace, blkparse, csv, fio};

/// Longest line of a trace.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Longest read or write; a longer one is an error in the trace.
const REQUEST_BYTES_MAX: u64 = 1 << 30;
/// Latest time of a request: times may count from 1970, and a replay counts nanoseconds.
const TIME_MAX: Duration = Duration::from_secs(500 * 366 * 24 * 3600);

/// Reads a whole trace.
///
/// # Errors
/// If it cannot be read, a line is invalid, or it has no request.
pub fn read(path: &Path) -> Result<Trace> {
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    read_from(file).with_context(|| path.display().to_string())
}

/// The same from any reader.
///
/// # Errors
/// See [`read`].
pub fn read_from(source: impl Read) -> Result<Trace> {
    let mut source = BufReader::new(source);
    if source.fill_buf()?.starts_with(&ZSTD_MAGIC) {
        return read_lines(BufReader::new(zstd::Decoder::with_buffer(source)?));
    }
    read_lines(source)
}

fn read_lines(mut text: impl BufRead) -> Result<Trace> {
    let mut format: Option<Box<dyn Lines>> = None;
    let mut trace = Trace::default();
    let mut whole = String::new();
    for number in 1.. {
        whole.clear();
        match text.by_ref().take(LINE_BYTES_MAX).read_line(&mut whole) {
            Ok(0) => break,
            Ok(_) => {}
            // An incomplete zstd frame.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                trace.is_cut = true;
                break;
            }
            Err(error) => {
                return Err(error).with_context(|| format!("line {number} cannot be read as text"));
            }
        }
        ensure!(
            (whole.len() as u64) < LINE_BYTES_MAX,
            "line {number} is longer than a line of a trace"
        );
        let line = whole.trim();
        if line.is_empty() {
            continue;
        }
        let format = format.get_or_insert_with(|| format_of(line));
        if format.has_cut_lines() && !whole.ends_with('\n') {
            break;
        }
        let said = || format!("line {number}: {:?}", line.get(..80).unwrap_or(line));
        let Some(event) = format.event(line).with_context(said)? else { continue };
        check(&event).with_context(said)?;
        trace.events.push(event);
    }
    if let Some(format) = format {
        format.end(&mut trace);
    }
    ensure!(!trace.events.is_empty(), "there is no request in it");
    Ok(trace)
}

fn format_of(first: &str) -> Box<dyn Lines> {
    if first.starts_with("fio version") {
        Box::new(fio::Log::default())
    } else if blkparse::is_line(first) {
        Box::new(blkparse::Output::default())
    } else {
        Box::new(csv::Table::default())
    }
}

fn check(event: &Event) -> Result<()> {
    let has_data = matches!(event.kind, Kind::Read | Kind::Write | Kind::Access);
    ensure!(!has_data || event.bytes <= REQUEST_BYTES_MAX, "a request of {} bytes", event.bytes);
    event.offset.checked_add(event.bytes).context("it ends beyond 2^64")?;
    ensure!(event.at.is_none_or(|at| at <= TIME_MAX), "its time is beyond 500 years");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    fn kinds(text: &str) -> Vec<(Kind, u64, u64)> {
        let trace = read_lines(text.as_bytes()).unwrap();
        trace.events.iter().map(|it| (it.kind, it.offset, it.bytes)).collect()
    }

    #[test]
    fn each_format_is_told_by_its_first_line() {
        let wanted = vec![(Kind::Write, 8192, 4096), (Kind::Read, 0, 512)];
        for text in [
            "timestamp_us,op,offset_bytes,length_bytes\n1,W,8192,4096\n2,R,0,512\n",
            "# flowstone-trace 1 size=1048576\n\n1,W,8192,4096,journal,1\n2,R,0,512,data,0\n",
            "fio version 3 iolog\n0 /dev/x add\n0 /dev/x open\n7 /dev/x write 8192 4096\n\
             9 /dev/x read 0 512\n9 /dev/x close\n",
            "fio version 2 iolog\n/dev/x add\n/dev/x open\n/dev/x write 8192 4096\n\
             /dev/x read 0 512\n",
            "  8,0    1        1     0.000000000   697  Q  WS 16 + 8 [jbd2/sda-8]\n\
             8,0    1        2     0.000000100   697  D  WS 16 + 8 [jbd2/sda-8]\n\
             8,0    1        3     0.000000200   697  Q   R 0 + 1 [cat]\n",
        ] {
            assert_eq!(kinds(text), wanted, "{text}");
        }
    }

    #[test]
    fn an_error_names_the_line() {
        for (text, why) in [
            ("0,R,0,4096\n1,R,x,1\n", "line 2: \"1,R,x,1\": offset \"x\" is no number"),
            ("0,R,1\n", "line 1: \"0,R,1\": no length"),
            (
                "0,W,0,99999999999\n",
                "line 1: \"0,W,0,99999999999\": a request of 99999999999 bytes",
            ),
            (
                "0,R,18446744073709551615,2\n",
                "line 1: \"0,R,18446744073709551615,2\": it ends beyond",
            ),
            ("0,R,0,0\nfoo\n", "line 2: \"foo\": no operation"),
            ("1e23,R,0,1\n", "line 1: \"1e23,R,0,1\": its time is beyond 500 years"),
            ("0,Q,0,1\n", "line 1: \"0,Q,0,1\": \"Q\" is no operation"),
            ("fio version 4 iolog\n", "line 1: \"fio version 4 iolog\": only versions 2 and 3"),
            (
                "# flowstone-trace 2\n",
                "line 1: \"# flowstone-trace 2\": of the format only version 1",
            ),
            (
                "# flowstone-trace 1 size=18446744073709551615\n",
                "line 1: \"# flowstone-trace 1 size=18446744073709551615\": size \"18446744073709551615\"",
            ),
            (
                "# flowstone-trace 1 size=1G\n",
                "line 1: \"# flowstone-trace 1 size=1G\": size \"1G\"",
            ),
            (
                "# flowstone-trace 1\n0,R,0,1\n# flowstone-trace 1\n",
                "line 3: \"# flowstone-trace 1\": another trace begins here",
            ),
            (
                "# flowstone-trace 1\n0,R,0,1,Data\n",
                "line 2: \"0,R,0,1,Data\": \"Data\" is no class",
            ),
            (
                "# flowstone-trace 1\n0,R,0,1,data,2\n",
                "line 2: \"0,R,0,1,data,2\": durable is 1 or 0",
            ),
            (
                "# flowstone-trace 1\n0,R,0,1\n# requests=1 lost=0\n0,R,0,1\n",
                "line 4: \"0,R,0,1\": a request after the end of the trace",
            ),
            ("", "there is no request in it"),
            (&"0".repeat(100_000), "line 1 is longer than a line of a trace"),
        ] {
            let said = format!("{:#}", read_lines(text.as_bytes()).unwrap_err());
            assert!(said.starts_with(why), "{text}: {said}");
        }
    }

    #[test]
    fn a_line_that_is_no_text_has_a_number() {
        let error = read_lines(&b"0,R,0,1\n\xff\xfe\n"[..]).unwrap_err();
        assert!(format!("{error:#}").starts_with("line 2 cannot be read as text"), "{error:#}");
    }

    #[test]
    fn requests_that_are_missing_by_the_last_line_are_a_warning() {
        let warnings = |requests: &str| {
            let end = format!("# requests={requests} lost=0\n");
            let text = format!("# flowstone-trace 1\n0,P,0,4096\n1,R,0,512\n{end}");
            read_lines(text.as_bytes()).unwrap().warnings()
        };
        assert_eq!(warnings("5"), ["its last line counts 5 requests, there are 1"]);
        assert_eq!(warnings("1"), [""; 0]);
    }

    #[test]
    fn a_trace_may_be_compressed() {
        let text = "timestamp_us,op,offset_bytes,length_bytes\n0,R,0,8192\n1,W,0,1\n";
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let compressed = zstd::encode_all(text.as_bytes(), 1).unwrap();
        let traces = [text.as_bytes().to_vec(), compressed].map(|bytes| {
            std::fs::write(&path, bytes).unwrap();
            read(&path).unwrap()
        });
        assert_eq!(traces[0], traces[1]);
        assert_eq!((traces[0].events.len(), traces[0].end()), (2, 8192));
    }
}
