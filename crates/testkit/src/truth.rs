//! The content of a file system's blocks, according to its own tools: dumpe2fs, debugfs and e2image
//! for ext2 to ext4, xfs_db and xfs_metadump for XFS, btrfs for btrfs. For comparison with the
//! classifier.
//!
//! # Panics
//! All functions do if a tool is missing or its output format has changed.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};

/// The content of a block. Others hold file contents, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holds {
    /// A journal.
    Journal,
    /// Metadata at a place fixed by mkfs.
    FixedMetadata,
    /// Other metadata: directories, lists of extents.
    MovingMetadata,
}

/// The content of a file system by address.
#[derive(Debug, Default)]
pub struct Truth {
    /// Its block size, in bytes.
    pub block_bytes: u64,
    /// Size of the file system, in bytes.
    pub bytes: u64,
    /// Ends and content of ranges, by their start.
    ranges: BTreeMap<u64, (u64, Holds)>,
}

impl Truth {
    /// Reads an image of ext2, ext3 or ext4.
    pub fn of_ext4(image: &str) -> Self {
        let header = run("dumpe2fs", &["-h", image], "");
        let field = |key: &str| listed(&header, key).map(number);
        let block_bytes = field("Block size:").expect("a size of blocks");
        let bytes = field("Block count:").expect("a number of blocks") * block_bytes;
        let mut truth = Self { block_bytes, bytes, ranges: BTreeMap::new() };
        truth.add_groups(image);
        for (key, holds) in
            [("Journal inode:", Holds::Journal), ("Orphan file inode:", Holds::FixedMetadata)]
        {
            if let Some(inode) = field(key) {
                truth.add_file(image, inode, holds);
            }
        }
        if let Some(block) = field("MMP block number:") {
            truth.add_blocks(block..block + 1, Holds::FixedMetadata);
        }
        truth
    }

    /// Reads an image of XFS with an internal log.
    pub fn of_xfs(image: &str) -> Self {
        let field = |name: &str| ask_xfs(image, &["sb 0", &format!("p {name}")]);
        let block_bytes = field("blocksize");
        let bytes = field("dblocks") * block_bytes;
        let mut truth = Self { block_bytes, bytes, ranges: BTreeMap::new() };
        let log = ask_xfs(image, &[&format!("convert fsblock {} daddr", field("logstart"))]) * 512;
        truth.add(log..log + field("logblocks") * block_bytes, Holds::Journal);
        for group in 0..field("agcount") {
            let start = ask_xfs(image, &[&format!("convert agno {group} daddr")]) * 512;
            truth.add(start..start + 4 * field("sectsize"), Holds::FixedMetadata);
        }
        truth
    }

    /// Reads an image of btrfs on one device, with separate chunks for metadata.
    pub fn of_btrfs(image: &str) -> Self {
        let chunks = run("btrfs", &["inspect-internal", "dump-tree", "-t", "chunk", image], "");
        let mut truth = Self { block_bytes: 4096, ..Self::default() };
        let after = |line: &str, key: &str| {
            let (_, behind) = line.split_once(key)?;
            Some(number(behind.split(' ').next().unwrap_or_default()))
        };
        let mut of_metadata = None;
        for line in chunks.lines().map(str::trim) {
            if let Some(bytes) = after(line, "total_bytes ") {
                truth.bytes = bytes;
            } else if line.starts_with("length ") {
                let is_metadata = !line.contains("type DATA");
                of_metadata = after(line, "length ").filter(|_| is_metadata);
            } else if line.starts_with("stripe ")
                && let (Some(bytes), Some(start)) = (of_metadata, after(line, " offset "))
            {
                truth.add(start..start + bytes, Holds::MovingMetadata);
            }
        }
        for start in [64 << 10, 64 << 20] {
            truth.add(start..start + 4096, Holds::FixedMetadata);
        }
        truth
    }

    /// Adds directories and extent lists of an image of ext4, as of now.
    pub fn add_moving(&mut self, image: &str) {
        let metadata = tempfile::NamedTempFile::new().expect("a temporary file");
        run("e2image", &["-r", image, text_of(metadata.path())], "");
        self.add_all_of(metadata.path());
    }

    /// Adds trees, inodes and directories of an image of XFS, as of now.
    pub fn add_moving_of_xfs(&mut self, image: &str) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [dump, metadata] = ["dump", "metadata"].map(|name| folder.path().join(name));
        run("xfs_metadump", &["-o", image, text_of(&dump)], "");
        run("xfs_mdrestore", &[text_of(&dump), text_of(&metadata)], "");
        self.add_all_of(&metadata);
    }

    /// Adds blocks that are not zero in a copy of the metadata.
    fn add_all_of(&mut self, metadata: &Path) {
        let bytes = std::fs::read(metadata).expect("a copy of the metadata");
        let blocks = bytes.chunks(usize::try_from(self.block_bytes).expect("a small number"));
        for (block, _) in blocks.enumerate().filter(|(_, block)| block.iter().any(|it| *it != 0)) {
            let start = block as u64 * self.block_bytes;
            if self.at(start).is_none() {
                self.add(start..start + self.block_bytes, Holds::MovingMetadata);
            }
        }
    }

    /// Returns the content at this byte.
    pub fn at(&self, byte: u64) -> Option<Holds> {
        let (_, (end, holds)) = self.ranges.range(..=byte).next_back()?;
        (*end > byte).then_some(*holds)
    }

    /// Returns the bytes of this content.
    pub fn bytes_of(&self, holds: Holds) -> u64 {
        let ranges = self.ranges.iter().filter(|(_, (_, it))| *it == holds);
        ranges.map(|(start, (end, _))| end - start).sum()
    }

    fn add(&mut self, range: Range<u64>, holds: Holds) {
        self.ranges.insert(range.start, (range.end, holds));
    }

    fn add_blocks(&mut self, blocks: Range<u64>, holds: Holds) {
        self.add(blocks.start * self.block_bytes..blocks.end * self.block_bytes, holds);
    }

    fn add_groups(&mut self, image: &str) {
        const KINDS: [&str; 7] = [
            "superblock at ",
            "Group descriptors at ",
            "Group descriptor at ",
            "Reserved GDT blocks at ",
            "Block bitmap at ",
            "Inode bitmap at ",
            "Inode table at ",
        ];
        let listing = run("dumpe2fs", &[image], "");
        let lines = listing.lines().skip_while(|line| !line.starts_with("Group "));
        for part in lines.flat_map(|line| line.split(", ")) {
            for at in KINDS.iter().filter_map(|kind| Some(part.split_once(kind)?.1)) {
                let end = at.find([' ', ',']).unwrap_or(at.len());
                self.add_blocks(numbers(&at[..end]), Holds::FixedMetadata);
            }
        }
    }

    /// Adds the blocks of a file; the blocks of its block map are metadata.
    fn add_file(&mut self, image: &str, inode: u64, holds: Holds) {
        let status = run("debugfs", &["-R", &format!("stat <{inode}>"), image], "");
        let (_, list) =
            status.split_once("EXTENTS:\n").or(status.split_once("BLOCKS:\n")).expect("a list");
        for entry in list.lines().next().unwrap_or_default().split(", ").filter(|it| !it.is_empty())
        {
            let (label, range) = entry.split_once("):").expect("a label and a range");
            let is_content = label.as_bytes()[1].is_ascii_digit();
            self.add_blocks(numbers(range), if is_content { holds } else { Holds::FixedMetadata });
        }
    }
}

fn text_of(path: &Path) -> &str {
    path.to_str().expect("a path of plain text")
}

/// Runs a tool with `input`, and returns what it prints.
pub fn run(program: &str, arguments: &[&str], input: &str) -> String {
    // Some users have no PATH to root's tools.
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let mut child = Command::new(program)
        .args(arguments)
        .env("PATH", path)
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}; run scripts/setup"));
    let sent = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("its end");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(sent.is_ok() && output.status.success(), "{program} {arguments:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
}

/// Parses `5` or `5-9`.
fn numbers(text: &str) -> Range<u64> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    number(first)..number(last) + 1
}

/// Returns the text after `key` at the begin of a line.
fn listed<'text>(text: &'text str, key: &str) -> Option<&'text str> {
    text.lines().find_map(|line| Some(line.strip_prefix(key)?.trim()))
}

/// Returns a number that xfs_db prints after `=`, or in brackets.
fn ask_xfs(image: &str, commands: &[&str]) -> u64 {
    let mut arguments = vec!["-r"];
    commands.iter().for_each(|command| arguments.extend(["-c", command]));
    arguments.push(image);
    let answer = run("xfs_db", &arguments, "");
    let number = answer.trim().rsplit(['=', '(']).next().unwrap_or_default();
    let number = number.trim().trim_end_matches(')').parse();
    number.unwrap_or_else(|_| panic!("{commands:?}: {answer}"))
}
