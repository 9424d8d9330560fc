//! The loads of the guests.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use flowstone_vmtest::framework::tools::host;

use super::{program, written};

/// Consecutive runs, as in S3's figures 6 and 7.
const RUNS: u32 = 8;
const DISK: &str = "1G";
/// Files of the smallest size of S3's figure 4, in nine tenths of the disk's 940 MiB without the
/// journal.
const POSTMARK: Postmark =
    Postmark { files: 5000, bytes: [131_072; 2], transactions: 10_000, call_bytes: 4096 };
/// The files of S5's figure 6, and as many of them as give a working set of its largest cache,
/// 4 GiB; its figures 4 and 5 have 20,000 transactions. Few calls: a guest has five minutes for it.
const POSTMARK_SIZES: Postmark =
    Postmark { files: 8000, bytes: [4096, 1 << 20], transactions: 20_000, call_bytes: 65_536 };
const POSTMARK_SIZES_DISK: &str = "6G";
/// Number of the file server's files, of which four of five exist. They grow to 32 KiB on average,
/// since each turn appends as much as it creates, and deletes one file: 512 MiB.
const SERVED_FILES: u32 = 20_000;
const SERVED_TURNS: u32 = 10_000;
const SERVED_RUNS: u32 = 5;
/// Blocks of the mail server's file, 400 MiB, and the reads of a phase.
const MAIL_BLOCKS: u32 = 102_400;
const MAIL_READS: u32 = 20_000;
/// Number of source trees: 70 MiB each in 10,000 files and folders.
const TREES: u32 = 8;
const TREE_ROUNDS: u32 = 6;
/// By default ext4 makes 65,536 inodes in 1 GiB.
const TREE_INODES: u32 = 131_072;
/// In lines of about 100 bytes.
const TEXT_BYTES: usize = 224 << 20;
const COUNTED_BYTES: usize = 40 << 20;

/// A phase of a load.
pub struct Phase {
    pub name: String,
    pub script: String,
}

/// Files of the host, by their name in the guest.
pub type Tools = Vec<(&'static str, PathBuf)>;

/// A guest, its disk and its load.
pub struct Recording {
    pub name: &'static str,
    pub title: &'static str,
    pub disk: &'static str,
    pub phases: Vec<Phase>,
    /// There is also a trace of four of these guests, side by side.
    pub is_for_four: bool,
    /// Files that the guest needs besides its initramfs.
    tools: fn(&Path) -> Result<Tools>,
}

impl Recording {
    /// Returns the files of the guest's `/tools`.
    pub fn files(&self, folder: &Path) -> Result<Tools> {
        (self.tools)(folder)
    }
}

/// Returns all recordings.
pub fn recordings() -> Vec<Recording> {
    vec![
        of_postmark(
            "postmark-sizes",
            "Postmark, 8,000 files of 4 KiB to 1 MiB and 20,000 transactions",
            POSTMARK_SIZES_DISK,
            postmark(&POSTMARK_SIZES, "nodiscard", 1),
        ),
        of_postmark(
            "postmark",
            "Postmark, 5,000 files of 128 KiB and twice as many transactions, eight runs",
            DISK,
            postmark(&POSTMARK, "discard", RUNS),
        ),
        of_postmark(
            "postmark-nodiscard",
            "the same without -o discard, two runs",
            DISK,
            postmark(&POSTMARK, "nodiscard", 2),
        ),
        Recording {
            name: "files",
            title: "a file server after filebench's: 8 threads, 20,000 files",
            disk: DISK,
            phases: files(),
            is_for_four: false,
            tools: |_| Ok(Vec::new()),
        },
        mail("mail", "reads and commits on ext4, 2 to 128 reads for each fsync", ""),
        mail("mail-nojournal", "the same on ext4 without a journal", "-O ^has_journal"),
        Recording {
            name: "trees",
            title: "source trees: untar, patch, objects, clean, delete; six rounds",
            disk: DISK,
            phases: trees(),
            is_for_four: false,
            tools: source_tree,
        },
        Recording {
            name: "sort",
            title: "an external sort of 224 MiB, eight runs",
            disk: DISK,
            phases: sorts("/tools/sort -S 24M -T /mnt /tools/text -o /mnt/out"),
            is_for_four: true,
            tools: |folder| text(folder, TEXT_BYTES),
        },
        Recording {
            name: "words",
            title: "word count of 40 MiB, eight runs",
            disk: DISK,
            phases: sorts(
                "tr -s ' ' '\\n' </tools/text | /tools/sort -S 24M -T /mnt | uniq -c >/mnt/out",
            ),
            is_for_four: true,
            tools: |folder| text(folder, COUNTED_BYTES),
        },
    ]
}

fn phase(name: impl Into<String>, script: impl Into<String>) -> Phase {
    Phase { name: name.into(), script: script.into() }
}

/// The phase that makes a file system.
fn make(mount: &str) -> Phase {
    make_with("", mount)
}

fn make_with(options: &str, mount: &str) -> Phase {
    phase("make", format!("mkfs.ext4 -q {options} /dev/vda; mount -o {mount} /dev/vda /mnt"))
}

fn run(number: u32) -> String {
    format!("run {number}")
}

fn of_postmark(
    name: &'static str,
    title: &'static str,
    disk: &'static str,
    phases: Vec<Phase>,
) -> Recording {
    let tools = |_: &Path| Ok(vec![("postmark", program("postmark")?)]);
    Recording { name, title, disk, phases, is_for_four: false, tools }
}

/// The work of a run of Postmark.
struct Postmark {
    files: u32,
    /// Least and greatest size of a file.
    bytes: [u32; 2],
    transactions: u32,
    /// Bytes that a call reads or writes.
    call_bytes: u32,
}

fn postmark(load: &Postmark, mount: &str, runs: u32) -> Vec<Phase> {
    let Postmark { files, bytes: [least, most], transactions, call_bytes } = load;
    let script = |seed| {
        let set = [
            "location /mnt",
            &format!("size {least} {most}"),
            &format!("number {files}"),
            &format!("transactions {transactions}"),
            "subdirectories 50",
            &format!("read {call_bytes}"),
            &format!("write {call_bytes}"),
            "buffering false",
            &format!("seed {seed}"),
        ];
        format!(
            "printf 'set %s\\n' '{}' >/tmp/set
             (cat /tmp/set; echo run; echo quit) | /tools/postmark",
            set.join("' '")
        )
    };
    let runs = (1..=runs).map(|number| phase(run(number), script(number)));
    [make(mount)].into_iter().chain(runs).collect()
}

fn files() -> Vec<Phase> {
    let fill = format!("mkdir /mnt/served; /tools/file-load fill /mnt/served {SERVED_FILES}");
    let turns = |number| {
        // The number of turns is also the random seed.
        let turns = SERVED_TURNS + number;
        phase(run(number), format!("/tools/file-load serve /mnt/served {SERVED_FILES} {turns}"))
    };
    let begin = [make("discard"), phase("fill", fill)];
    begin.into_iter().chain((1..=SERVED_RUNS).map(turns)).collect()
}

/// A phase for each number of reads between two commits.
fn mail(name: &'static str, title: &'static str, options: &str) -> Recording {
    let fill = format!("/tools/file-load mail-fill /mnt {MAIL_BLOCKS}");
    let turns = |reads| {
        let turns = MAIL_READS / reads;
        let script = format!("/tools/file-load mail /mnt {MAIL_BLOCKS} {reads} {turns}");
        phase(format!("{reads} reads"), script)
    };
    let begin = [make_with(options, "nodiscard"), phase("fill", fill)];
    let phases = begin.into_iter().chain([2, 8, 32, 128].map(turns)).collect();
    Recording { name, title, disk: DISK, phases, is_for_four: false, tools: |_| Ok(Vec::new()) }
}

/// Returns the phases of source trees: all trees exist at first, and each round deletes, patches
/// and compiles some.
fn trees() -> Vec<Phase> {
    let untar = |tree| format!("mkdir /mnt/{tree}; tar -x -C /mnt/{tree} -f /tools/tree.tar");
    let of = |what: &str, tree| format!("/tools/file-load {what} /mnt/{tree}");
    let all: Vec<_> = (0..TREES).map(untar).collect();
    let make = make_with(&format!("-N {TREE_INODES}"), "discard");
    let mut phases = vec![make, phase("fill", all.join("\n"))];
    for round in 0..TREE_ROUNDS {
        let [deleted, patched, compiled] = [0, 3, 5].map(|step| (round + step) % TREES);
        phases.extend([
            phase("patch", of("patch", patched)),
            phase("compile", of("compile", compiled)),
            phase("clean", of("clean", compiled)),
            phase("delete", format!("rm -r /mnt/{deleted}")),
            phase("create", untar(deleted)),
        ]);
    }
    phases
}

fn sorts(command: &str) -> Vec<Phase> {
    let script = format!("export LC_ALL=C; rm -f /mnt/out; {command}");
    let runs = (1..=RUNS).map(|number| phase(run(number), script.clone()));
    [make("discard")].into_iter().chain(runs).collect()
}

/// Packs the headers of the guests' kernel: the source tree installed by `scripts/setup
/// --evidence`.
fn source_tree(folder: &Path) -> Result<Tools> {
    let trees = std::fs::read_dir("/usr/src").context("/usr/src")?.flatten();
    let mut trees: Vec<_> = trees.map(|it| it.file_name().display().to_string()).collect();
    trees.retain(|it| it.starts_with("linux-headers-") && it.ends_with("-common"));
    trees.sort();
    let tree = trees.first().context("no linux-headers in /usr/src (scripts/setup --evidence)")?;
    let tar = folder.join("tree.tar");
    host(Command::new("tar").args(["-c", "-C", "/usr/src", "-f"]).arg(&tar).arg(tree))?;
    Ok(vec![("tree.tar", tar)])
}

/// Makes lines of words, the same each time. The guest's own `sort` works in memory.
fn text(folder: &Path, bytes: usize) -> Result<Tools> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut text = String::with_capacity(bytes + 200);
    while text.len() < bytes {
        for _ in 0..12 {
            // Few words are frequent, and most are rare.
            let word = random.u32(..) >> random.u32(8..30);
            let _ = write!(text, "w{word:x} ");
        }
        text.push('\n');
    }
    Ok(vec![("text", written(folder, "text", text)?), ("sort", program("sort")?)])
}
