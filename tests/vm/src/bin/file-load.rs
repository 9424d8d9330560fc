//! Runs inside a guest (`flowstone-bench evidence --record`): loads of many files.
//!
//! file-load mark DEVICE: reads one sector with direct I/O, so that a recorder of the device can
//! detect the beginning of a phase. (busybox's dd drops `iflag=direct` if its buffer is not
//! aligned.)
//!
//! file-load fill FOLDER FILES: creates four of five of FILES files.
//!
//! file-load serve FOLDER FILES TURNS: eight threads act as filebench's file server: each turn
//! creates and writes a file, appends to one, reads one, deletes one and looks one up. Requests of
//! 4 KiB, files of 4 to 28 KiB, 16 on average, twenty to a folder.
//!
//! file-load mail-fill FOLDER BLOCKS: makes a file of so many blocks of 4 KiB, and a smaller one.
//!
//! file-load mail FOLDER BLOCKS READS TURNS: each turn reads READS blocks of the large file with
//! direct I/O, and writes one of the small file with an fsync. A tenth of the blocks has 46 % of
//! the reads.
//!
//! file-load patch FOLDER: rewrites one file of five as a new file that replaces it, as `patch`
//! does. file-load compile FOLDER: makes an object file of the same size for each source file.
//! file-load clean FOLDER: deletes these.

use std::fs::{self, File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use flowstone_vmtest::MARK_SECTOR;
use rustix::fs::OFlags;

const SECTOR_BYTES: usize = 512;
const REQUEST_BYTES: usize = 4096;
/// Sizes of files, in requests.
const SIZES: [u64; 2] = [1, 7];
const THREADS: u64 = 8;
const FILES_OF_FOLDER: u64 = 20;
/// The large file of a mail server has so many times the blocks of the small one.
const WRITTEN_OF: u64 = 25;
const OBJECT: &str = "o";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match *words {
        ["mark", device] => mark(Path::new(device)),
        ["fill", folder, files] => Server::new(folder, files).and_then(|it| it.fill()),
        ["serve", folder, files, turns] => {
            Server::new(folder, files).and_then(|it| it.serve(turns.parse()?))
        }
        ["mail-fill", folder, blocks] => Mail::new(folder, blocks).and_then(|it| it.fill()),
        ["mail", folder, blocks, reads, turns] => {
            Mail::new(folder, blocks).and_then(|it| it.turns(reads.parse()?, turns.parse()?))
        }
        ["patch", folder] => each_file(Path::new(folder), &mut patch),
        ["compile", folder] => each_file(Path::new(folder), &mut compile),
        ["clean", folder] => each_file(Path::new(folder), &mut clean),
        _ => Err(anyhow::anyhow!("usage: see the top of its source")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("file-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn mark(device: &Path) -> Result<()> {
    read_direct(&open_direct(device)?, SECTOR_BYTES, MARK_SECTOR * SECTOR_BYTES as u64)
}

fn open_direct(path: &Path) -> Result<File> {
    let direct = OFlags::DIRECT.bits().cast_signed();
    Ok(OpenOptions::new().read(true).custom_flags(direct).open(path)?)
}

/// Reads `bytes` bytes, at most a request.
fn read_direct(file: &File, bytes: usize, at: u64) -> Result<()> {
    let mut memory = [0; 2 * REQUEST_BYTES];
    let start = memory.as_ptr().align_offset(REQUEST_BYTES);
    let aligned = memory.get_mut(start..start + bytes).context("aligned memory")?;
    Ok(file.read_exact_at(aligned, at)?)
}

/// A server whose requests are reads and commits.
struct Mail {
    folder: PathBuf,
    blocks: u64,
}

impl Mail {
    fn new(folder: &str, blocks: &str) -> Result<Self> {
        Ok(Self { folder: folder.into(), blocks: blocks.parse().context("how many blocks?")? })
    }

    fn fill(&self) -> Result<()> {
        write(File::create(self.folder.join("read"))?, self.blocks)?;
        write(File::create(self.folder.join("written"))?, self.blocks / WRITTEN_OF)
    }

    #[expect(clippy::disallowed_methods, reason = "it runs in a guest, and the file is no image")]
    fn turns(&self, reads: u64, turns: u64) -> Result<()> {
        let read = open_direct(&self.folder.join("read"))?;
        let written = OpenOptions::new().write(true).open(self.folder.join("written"))?;
        let mut random = Random(reads * 7919 + turns);
        for _ in 0..turns {
            for _ in 0..reads {
                read_direct(&read, REQUEST_BYTES, self.skewed(&mut random) * REQUEST_BYTES as u64)?;
            }
            let block = random.below(self.blocks / WRITTEN_OF);
            written.write_all_at(&[0x5a; REQUEST_BYTES], block * REQUEST_BYTES as u64)?;
            written.sync_all()?;
        }
        Ok(())
    }

    /// Draws a block: the third power of a uniform number, scattered over the file.
    fn skewed(&self, random: &mut Random) -> u64 {
        let uniform = random.below(1 << 20) as f64 / f64::from(1 << 20);
        let rank = (uniform.powi(3) * self.blocks as f64) as u64;
        // A prime that no number of blocks used here is a multiple of.
        rank * 99_991 % self.blocks
    }
}

/// A folder of numbered files, some of which exist.
struct Server {
    folder: PathBuf,
    files: u64,
}

impl Server {
    fn new(folder: &str, files: &str) -> Result<Self> {
        let files = files.parse().context("how many files?")?;
        ensure!(files >= FILES_OF_FOLDER, "at least {FILES_OF_FOLDER} files");
        Ok(Self { folder: folder.into(), files })
    }

    fn fill(&self) -> Result<()> {
        let mut random = Random(1);
        for number in 0..self.files {
            if number % FILES_OF_FOLDER == 0 {
                fs::create_dir(self.folder_of(number))?;
            }
            if number % 5 != 0 {
                self.create(number, &mut random)?;
            }
        }
        Ok(())
    }

    fn serve(&self, turns: u64) -> Result<()> {
        let left = AtomicU64::new(turns);
        let work = |seed| -> Result<()> {
            let mut random = Random(seed * 7919 + turns);
            let more = |left: u64| left.checked_sub(1);
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok() {
                self.turn(&mut random)?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let threads: Vec<_> =
                (1..=THREADS).map(|seed| scope.spawn(move || work(seed))).collect();
            threads.into_iter().try_for_each(|it| it.join().expect("no thread panics"))
        })
    }

    fn turn(&self, random: &mut Random) -> Result<()> {
        // The other threads create and delete files, too: if the number is taken, or missing, the
        // next one is tried.
        self.any(random, |at, random| self.create(at, random))?;
        self.any(random, |at, random| {
            let file = OpenOptions::new().append(true).open(self.path(at))?;
            write(file, random.among(SIZES))
        })?;
        self.any(random, |at, _| {
            let mut file = File::open(self.path(at))?;
            while file.read(&mut [0; REQUEST_BYTES])? > 0 {}
            Ok(())
        })?;
        self.any(random, |at, _| Ok(fs::remove_file(self.path(at))?))?;
        self.any(random, |at, _| Ok(fs::metadata(self.path(at)).map(drop)?))
    }

    /// Does something with a file for which it is possible.
    fn any(
        &self,
        random: &mut Random,
        mut act: impl FnMut(u64, &mut Random) -> Result<()>,
    ) -> Result<()> {
        let first = random.below(self.files);
        for step in 0..self.files {
            let done = act((first + step) % self.files, random);
            let Err(error) = done else { return Ok(()) };
            let kind = error.downcast_ref::<Error>().map(Error::kind);
            if !matches!(kind, Some(ErrorKind::NotFound | ErrorKind::AlreadyExists)) {
                return Err(error);
            }
        }
        bail!("there is no file for that")
    }

    fn create(&self, number: u64, random: &mut Random) -> Result<()> {
        let file = OpenOptions::new().write(true).create_new(true).open(self.path(number))?;
        write(file, random.among(SIZES))
    }

    fn folder_of(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{}", number / FILES_OF_FOLDER))
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder_of(number).join(format!("{number}"))
    }
}

fn write(mut file: File, requests: u64) -> Result<()> {
    for _ in 0..requests {
        file.write_all(&[0x5a; REQUEST_BYTES])?;
    }
    Ok(())
}

fn each_file(folder: &Path, act: &mut dyn FnMut(&Path) -> Result<()>) -> Result<()> {
    // Listed first, so that files created here are not visited.
    let entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    for entry in entries {
        let (kind, path) = (entry.file_type()?, entry.path());
        if kind.is_dir() {
            each_file(&path, act)?;
        } else if kind.is_file() {
            act(&path).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

fn patch(path: &Path) -> Result<()> {
    // Selected by path, so that the set differs between trees, and is always the same for one.
    if path.to_string_lossy().bytes().map(u64::from).sum::<u64>() % 5 != 0 {
        return Ok(());
    }
    let beside = path.with_extension("orig");
    let text = fs::read(path)?;
    fs::write(&beside, text)?;
    Ok(fs::rename(&beside, path)?)
}

fn compile(path: &Path) -> Result<()> {
    let bytes = fs::metadata(path)?.len();
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{OBJECT}"));
    Ok(fs::write(name, vec![0x5a; bytes as usize])?)
}

fn clean(path: &Path) -> Result<()> {
    let is_object = path.extension().is_some_and(|extension| extension == OBJECT);
    if is_object { Ok(fs::remove_file(path)?) } else { Ok(()) }
}

/// A xorshift generator: the same files each time.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn among(&mut self, [least, most]: [u64; 2]) -> u64 {
        least + self.below(most + 1 - least)
    }
}
