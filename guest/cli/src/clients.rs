//! Commands that query a running cache.

use std::fs::File;
use std::io::{self, BufRead};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use flowstone_filecache::Report;
use flowstone_filecache::control::{Question, ask};
use flowstone_memory::size::format_size;

use crate::Failure;
use crate::args::{Drop, Record, Stats};

/// Prints the counters.
pub fn stats(args: &Stats) -> Result<(), Failure> {
    let line = first_line(&args.mount, &Question::Stats)?.0;
    end_with_the_reader();
    if args.json {
        print!("{line}");
        return Ok(());
    }
    let report: Report = serde_json::from_str(&line).map_err(|error| {
        format!("{}: {error}; use the cache's own version", args.mount.display())
    })?;
    show(&report);
    Ok(())
}

fn show(it: &Report) {
    let (size, did) = (format_size, &it.counters);
    println!("hits      {} ({})", did.hits.get(), size(did.hit_bytes.get()));
    println!("misses    {} ({})", did.misses.get(), size(did.miss_bytes.get()));
    println!(
        "cached    {} files, {} of {} ({}), {} of it open",
        it.cached_files,
        size(it.cached_bytes),
        size(it.limit_bytes),
        limit(&it.limit_by),
        size(it.pinned_bytes)
    );
    println!("copied    {} files; {} dropped to make room", did.fills.get(), it.evictions);
    println!("ahead     {}", size(did.prefetched_bytes.get()));
    println!(
        "opens     copy {}, source {}, plain {}",
        did.opens.copy.get(),
        did.opens.source.get(),
        did.opens.plain.get()
    );
    println!("unchecked {} opens", did.unchecked_opens.get());
    let (read, wrote) = (did.read_bytes.get(), did.written_bytes.get());
    println!("daemon    read {}, wrote {}", size(read), size(wrote));
    println!("dirty     {}, {} conflicts", size(it.dirty_bytes), did.conflicts.get());
    println!("source    {}", it.source);
    println!("epochs    {}", it.epochs);
}

/// Lets SIGPIPE end the process, as in `flowstone-guest stats MOUNT | head -1`: only printing is
/// left to do.
fn end_with_the_reader() {
    // SAFETY: the default action of a signal runs no code of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Records uses of files.
pub fn record(args: &Record) -> Result<(), Failure> {
    let (_, mut lines) = first_line(&args.mount, &Question::Record)?;
    let failed = |error: io::Error| {
        format!("{}: {error}; give a file that can be written", args.output.display())
    };
    let mut output = File::create(&args.output).map_err(failed)?;
    eprintln!("recording {}", args.mount.display());
    // Ends with the cache, or with a signal: each line is written as it arrives.
    io::copy(&mut lines, &mut output).map(|_| ()).map_err(failed)
}

/// Drops copies.
pub fn drop(args: &Drop) -> Result<(), Failure> {
    let question = match &args.file {
        None => Question::DropAll,
        Some(file) => {
            let path = args.mount.join(file);
            let seen = std::fs::symlink_metadata(&path).map_err(|error| {
                format!("{}: {error}; name a file of the mount", path.display())
            })?;
            Question::DropFile(seen.ino())
        }
    };
    first_line(&args.mount, &question).map(|_| ())
}

fn first_line(
    mount: &Path,
    question: &Question,
) -> Result<(String, io::BufReader<UnixStream>), Failure> {
    let asked = ask(mount, question).and_then(|mut answer| {
        let mut line = String::new();
        if answer.read_line(&mut line)? == 0 {
            return Err(io::Error::other("the cache gave no answer"));
        }
        Ok((line, answer))
    });
    asked.map_err(|error| {
        let hint = "name the folder of a `flowstone-guest cache` that runs, as its user";
        format!("{}: {error}; {hint}", mount.display())
    })
}

/// Describes the origin of the copies' limit, for an operator.
fn limit(by: &str) -> String {
    match by {
        "guest" => "this guest's memory is short".to_owned(),
        "host" => "granted by the host".to_owned(),
        option => format!("--{option}"),
    }
}
