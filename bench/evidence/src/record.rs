//! `flowstone-bench evidence --record`: records the disk requests of real guests as traces that the
//! tables replay.
//!
//! ```text
//!   Linux in QEMU ──► flowstone serve ──► flowstone record ──► target/evidence/traces/NAME.csv.zst
//!      └─ reads 512 bytes of a sector that nothing else reads alone: a phase begins
//! ```

mod loads;
mod traces;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use flowstone_vmtest::MARK_SECTOR;
use flowstone_vmtest::framework::lab::{Format, Lab};
use flowstone_vmtest::framework::tools::tools_image;
use flowstone_vmtest::framework::workspace;

use self::loads::{Recording, recordings};
pub use self::traces::{FOLDER, trace_path};

/// Timeout of a recorder for writing the rest.
const RECORDER_ENDS: Duration = Duration::from_secs(60);
/// S3's consolidated guests have the same load at the same time; each starts a little later than
/// the one before.
const GUESTS: u64 = 4;
const LATER: Duration = Duration::from_secs(7);
const QUEUES: u16 = 2;

/// Records all, or one.
pub fn record(only: Option<&str>) -> Result<()> {
    let wanted: Vec<_> =
        recordings().into_iter().filter(|it| only.is_none_or(|name| it.name == name)).collect();
    let names = || recordings().iter().map(|it| it.name).collect::<Vec<_>>().join(", ");
    ensure!(!wanted.is_empty(), "there is no such recording; there are {}", names());
    fs::create_dir_all(FOLDER)?;
    let lab = Lab::open().context("guests cannot run here")?;
    for recording in &wanted {
        let begin = Instant::now();
        let path = trace_path(recording.name);
        let said = run(&lab, recording).with_context(|| format!("record {}", recording.name))?;
        let seconds = begin.elapsed().as_secs();
        if recording.is_for_four {
            let four = trace_path(&format!("{}-four", recording.name));
            traces::side_by_side(&path, GUESTS, LATER, &four)?;
        }
        println!("{}: {said} in {seconds} s, {}", path.display(), recording.title);
    }
    Ok(())
}

/// Prints the recordings for `--list`.
pub fn list() {
    for recording in recordings() {
        println!("{}: {}", trace_path(recording.name).display(), recording.title);
        println!("    flowstone-bench evidence --record --only {}", recording.name);
    }
}

fn run(lab: &Lab, recording: &Recording) -> Result<String> {
    // A folder of its own: the images of one are removed before the next one is made.
    let folder = tempfile::tempdir_in(lab.folder())?;
    let mut files = recording.files(folder.path())?;
    files.push(("file-load", workspace::beside("file-load")?));
    let mut carrier = {
        let image = tools_image(folder.path(), &files)?;
        lab.serve_as(&format!("{}-tools", recording.name), &image, &["--readonly"])?
    };
    let image = lab.image_of(Format::Raw, recording.disk, &[])?;
    let mut daemon = lab.serve_as(recording.name, &image, &["--queues", "2"])?;
    let mut guest = lab.boot_machine(&Lab::machine_of([&daemon, &carrier], QUEUES))?;
    guest.run("mkdir -p /tools; mount -o ro /dev/vdb /tools")?;
    let recorded = folder.path().join("recorded.zst");
    let mut recorder = daemon.record(&recorded)?;
    for (number, phase) in recording.phases.iter().enumerate() {
        let begin = Instant::now();
        guest.run(&format!("{MARK}\n{}\n{SETTLE}", phase.script))?;
        let (of, seconds) = (recording.phases.len(), begin.elapsed().as_secs());
        eprintln!("{}: {} of {of}, {}: {seconds} s", recording.name, number + 1, phase.name);
    }
    guest.power_off()?;
    let status = recorder.terminate(RECORDER_ENDS)?;
    ensure!(status.success(), "the recorder: {status}\n{}", recorder.output());
    daemon.terminate()?;
    carrier.terminate()?;
    fs::remove_file(&image)?;
    let names: Vec<_> = recording.phases.iter().map(|it| it.name.as_str()).collect();
    traces::save(&recorded, &names, MARK_SECTOR * 512, &trace_path(recording.name))
}

const MARK: &str = "/tools/file-load mark /dev/vda";
/// Makes sure that the requests of a phase have reached the disk: ext4 discards freed space after
/// the commit.
const SETTLE: &str = "sync; sleep 1; sync; sleep 1";

/// Finds a program of the host.
fn program(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|it| it.join(name)).find(|it| it.is_file());
    found.with_context(|| format!("no {name} on this host (run scripts/setup --evidence)"))
}

/// Writes a generated file of a load.
fn written(folder: &Path, name: &str, content: impl AsRef<[u8]>) -> Result<PathBuf> {
    let path = folder.join(name);
    fs::write(&path, content)?;
    Ok(path)
}
