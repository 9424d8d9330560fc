//! Commits of a guest's file system beside bulk writes, recognised by their class or not.
//!
//! Each disk holds a real ext4, so that its journal is recognised. A commit is a write of 4 KiB and
//! a sync: the same requests inside the journal and outside of it, from a disk that does nothing
//! else, or from a disk with bulk writes: from its only queue, as a guest with one vCPU sends them,
//! or from a second one.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use flowstone_experiment::{Experiment, Figures, IOPS, P99_US, table};
use flowstone_testkit::load::{Aside, LoadOptions, LoadReport};
use flowstone_testkit::truth::{Holds, Truth, run};
use tempfile::tempdir_in;

use super::{Bench, HOG_DEPTH, together};
use crate::place::seconds;

const BLOCK: u64 = 4096;
const SYNC_P99_US: &str = "sync_p99_us";
const COMMIT_P99_US: &str = "commit_p99_us";
const BULK_IOPS: &str = "bulk_iops";
const SHARE: &str = "share";
/// The daemon has read the layout, and recognised the VMs.
const KNOWN_AFTER: Duration = Duration::from_millis(1500);

/// Where a disk is written: in its journal, or in files.
type Kind = fn(&Disk) -> &Range<u64>;
const KINDS: [(&str, Kind); 2] = [("journal", |disk| &disk.journal), ("data", |disk| &disk.data)];
/// The VM of the commits, and another one.
const VM: &str = "commits";
const OTHER: &str = "bulk";
/// Where the bulk writes are.
const BULKS: [(&str, Bulk); 7] = [
    ("nothing", Bulk { queues: 0, other: None }),
    ("bulk writes of its VM", Bulk { queues: 0, other: Some(VM) }),
    ("bulk writes of another VM", Bulk { queues: 0, other: Some(OTHER) }),
    ("bulk writes of its disk", Bulk { queues: 2, other: None }),
    ("bulk writes of its disk and of another VM", Bulk { queues: 2, other: Some(OTHER) }),
    ("bulk writes of its queue", Bulk { queues: 1, other: None }),
    ("bulk writes of its queue and of another VM", Bulk { queues: 1, other: Some(OTHER) }),
];
const GREEDY: &str = "two VMs at QD128";

/// The bulk writes beside commits.
struct Bulk {
    /// Queues of the commits' disk, if it writes, too.
    queues: usize,
    /// The VM of a second disk that writes.
    other: Option<&'static str>,
}

/// A load on a disk.
struct Load<'a> {
    disk: &'a Disk,
    vm: &'static str,
    range: Range<u64>,
    depth: u16,
    queues: usize,
    /// Where the last queue commits.
    commits: Option<Range<u64>>,
}

impl<'a> Load<'a> {
    fn bulk(disk: &'a Disk, vm: &'static str) -> Self {
        Self { disk, vm, range: disk.data.clone(), depth: HOG_DEPTH, queues: 1, commits: None }
    }
}

/// A disk with a file system.
struct Disk {
    image: PathBuf,
    /// Bytes of the journal without its superblock, and of one range of files.
    journal: Range<u64>,
    data: Range<u64>,
}

impl Bench<'_> {
    /// Measures commits, and the share of a VM all of whose writes are journal blocks.
    pub(super) fn classes(&self, experiment: &mut Experiment) -> Result<()> {
        let disks = [self.ext4("commits")?, self.ext4("bulk")?];
        experiment.run(self.args.base.run.rounds, &BULKS, &KINDS, |bulk, kind| {
            self.commits(&disks, bulk, *kind)
        })?;
        experiment.run(self.args.base.run.rounds, &[(GREEDY, ())], &KINDS, |(), kind| {
            self.greedy(&disks, *kind)
        })
    }

    fn commits(&self, [own, other]: &[Disk; 2], bulk: &Bulk, kind: Kind) -> Result<Figures> {
        let range = kind(own).clone();
        let mut loads = vec![if bulk.queues > 0 {
            Load { queues: bulk.queues, commits: Some(range), ..Load::bulk(own, VM) }
        } else {
            Load { range, depth: 1, ..Load::bulk(own, VM) }
        }];
        loads.extend(bulk.other.map(|vm| Load::bulk(other, vm)));
        let reports = self.write_at_once(&loads)?;
        let first = &reports[0];
        let write = if bulk.queues > 0 { first.commit } else { first.latency };
        let [write, sync] = [write, first.flush].map(|it| it.p99_us);
        let mut figures = vec![(P99_US, write), (SYNC_P99_US, sync), (COMMIT_P99_US, write + sync)];
        let own = (first.write.count - first.commit.count) as f64 / first.seconds;
        let bulks = (bulk.queues > 0).then_some(own).into_iter();
        let bulks: Vec<f64> = bulks.chain(reports.get(1).map(|other| other.iops)).collect();
        if !bulks.is_empty() {
            figures.push((BULK_IOPS, bulks.iter().sum()));
        }
        Ok(figures)
    }

    fn greedy(&self, [greedy, other]: &[Disk; 2], kind: Kind) -> Result<Figures> {
        let loads = [
            Load { range: kind(greedy).clone(), ..Load::bulk(greedy, "greedy") },
            Load::bulk(other, "other"),
        ];
        let rates: Vec<f64> = self.write_at_once(&loads)?.iter().map(|it| it.iops).collect();
        Ok(vec![(IOPS, rates[0]), (BULK_IOPS, rates[1]), (SHARE, rates[0] / (rates[0] + rates[1]))])
    }

    /// Writes to disks of VMs of equal weights; at depth one a sync follows each write.
    fn write_at_once(&self, loads: &[Load<'_>]) -> Result<Vec<LoadReport>> {
        let name = |image: &Path| Some(image.file_stem()?.to_str()?.to_owned());
        let names = loads.iter().map(|load| name(&load.disk.image).context("a file's name"));
        let names = names.collect::<Result<Vec<_>>>()?;
        let keys = loads.iter().map(|load| {
            let vm = format!("name={},weight=100", load.vm);
            format!("image = {:?}\ndirect = \"on\"\nvm = {vm:?}", load.disk.image)
        });
        let disks: Vec<_> = names.iter().zip(keys).collect();
        let served = self.serve(&self.program, tempdir_in(&self.args.base.run.dir)?, &disks)?;
        let options = |(load, name): (&Load<'_>, &String)| LoadOptions {
            flush_every: u64::from(load.depth == 1),
            limit: seconds(KNOWN_AFTER, self.args.base.runtime),
            offset_bytes: load.range.start,
            span_bytes: load.range.end - load.range.start,
            aside: load.commits.clone().map(Aside::Commits),
            ..self.load(&served.socket(name), "randwrite", load.depth, load.queues)
        };
        let options: Vec<_> = loads.iter().zip(&names).map(options).collect();
        let reports = together(&options);
        served.end()?;
        reports
    }

    /// Makes an image with an ext4, written in full: mkfs has the host zero the journal without
    /// writing it, and the first writes to such blocks would be slower.
    fn ext4(&self, name: &str) -> Result<Disk> {
        let image = std::path::absolute(self.image(name)?)?;
        let text = image.to_str().context("the directory's name is no text")?;
        let journal = format!("size={}", (self.args.base.size / 4) >> 20);
        run("mkfs.ext4", &["-q", "-F", "-b", "4096", "-E", "nodiscard", "-J", &journal, text], "");
        rewrite(&image)?;
        let truth = Truth::of_ext4(text);
        let longest = |holds| longest(&truth, holds).map(|it| it.start * BLOCK..it.end * BLOCK);
        let journal = longest(Some(Holds::Journal)).context("it has no journal")?;
        let data = longest(None).context("it has no room for files")?;
        ensure!(journal.end - journal.start > 16 << 20, "the journal is in pieces");
        Ok(Disk { image, journal: journal.start + BLOCK..journal.end, data })
    }
}

/// Writes a file's content again.
#[expect(clippy::disallowed_methods, reason = "not an open image: before it is served")]
fn rewrite(path: &Path) -> Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    let mut chunk = vec![0; 1 << 20];
    for offset in (0..file.metadata()?.len()).step_by(chunk.len()) {
        file.read_exact_at(&mut chunk, offset)?;
        file.write_all_at(&chunk, offset)?;
    }
    Ok(file.sync_data()?)
}

/// Returns the longest run of blocks with this content.
fn longest(truth: &Truth, holds: Option<Holds>) -> Option<Range<u64>> {
    let blocks: Vec<u64> =
        (0..truth.bytes / BLOCK).filter(|block| truth.at(block * BLOCK) == holds).collect();
    let runs = blocks.chunk_by(|one, next| one + 1 == *next);
    runs.max_by_key(|run| run.len()).map(|run| run[0]..run[0] + run.len() as u64)
}

/// Renders the tables.
pub fn render(experiment: &Experiment) -> String {
    let row = |(bulk, _): &(&str, Bulk)| {
        let [journal, data] = KINDS.map(|(kind, _)| experiment.at(bulk, kind));
        let mut cells = vec![(*bulk).to_owned()];
        for figure in [P99_US, COMMIT_P99_US] {
            cells.extend([
                journal.cell(figure, 0),
                data.cell(figure, 0),
                journal.ratio(data, figure),
            ]);
        }
        cells.extend([journal.cell(BULK_IOPS, 0), journal.ratio(data, BULK_IOPS)]);
        cells
    };
    let titles = "commits beside | p99 of the write, us: in the journal | elsewhere | ratio | \
                  p99 of write and sync, us: in the journal | elsewhere | ratio | bulk writes/s | ratio";
    let [journal, data] = KINDS.map(|(kind, _)| experiment.at(GREEDY, kind));
    let share = |(kind, _): (&str, Kind)| {
        let at = experiment.at(GREEDY, kind);
        vec![kind.to_owned(), at.count(IOPS), at.count(BULK_IOPS), at.spread(SHARE, 3)]
    };
    let mut shares: Vec<_> = KINDS.map(share).to_vec();
    let ratio = |figure| journal.ratio(data, figure);
    shares.push(vec!["ratio".to_owned(), ratio(IOPS), ratio(BULK_IOPS), ratio(SHARE)]);
    let titles_of_shares =
        "two VMs at QD128, one writes to | its writes/s | the other's | its share";
    table(titles, BULKS.iter().map(row)) + "\n" + &table(titles_of_shares, shares)
}
