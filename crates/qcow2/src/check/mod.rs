//! Checks an image, as `qemu-img check` does: counts every reference to a host cluster, and
//! compares the counts with the refcounts.
//!
//! A refcount that is too high is a leak: unused space. One that is too low is an error: software
//! that trusts it would allocate a cluster in use. Errors are also an entry with an impossible
//! offset, and a wrong COPIED flag.

mod walk;

use std::collections::HashSet;
use std::io;

use flowstone_block::{Error, Outcome, Result, format_size, mutated};
use flowstone_fileio::{BlockingFile, FileIo, FileOffset, FileOp};
use flowstone_image::{CheckOptions, CheckProgress, CheckReport};

use self::walk::Walk;
use super::header::Header;
use super::header_io::{clear_mark, read_header, read_l1};
use super::redo::{Left, Place, recall};
use super::refcounts::Refcounts;
use super::replay;
use super::shape::{HostCluster, Shape, sector_bytes};
use super::space::merged;

/// Host clusters counted in one pass: a byte of memory each.
const WINDOW_CLUSTERS: u64 = 64 << 20;

/// State of a check.
struct Checker<'a> {
    file: BlockingFile,
    shape: Shape,
    sector_bytes: usize,
    file_bytes: u64,
    header: Header,
    l1: Vec<u64>,
    refcounts: Refcounts,
    /// Clusters that only a killed daemon's changes name: in use, whether counted yet or not.
    promised: HashSet<HostCluster>,
    report: CheckReport,
    progress: CheckProgress<'a>,
}

/// Checks an image, and repairs it if requested. If its daemon was killed, the clusters that its
/// redo file names are in use, too, and the redo file stays for the next daemon.
pub fn check(
    name: &str,
    file: &dyn FileIo,
    memory: Option<Place<'_>>,
    options: CheckOptions,
    progress: CheckProgress<'_>,
) -> Result<CheckReport> {
    let mut header = read_header(name, file)?;
    let (left, is_given_up) = match recall(memory, header.autoclear) {
        Ok(left) => (left, false),
        Err(lost) if options.repair && lost.may_be_given_up() => (Left::Nothing, true),
        Err(lost) => return Err(lost.explain(name)),
    };
    let mut promised = replay::named(header.shape, left.changes());
    let keeps = mutated("qcow2.check.knows-nothing-of-the-redo-file", true, false);
    let keeps = mutated("qcow2.repair.punches-what-the-redo-file-names", keeps, !options.repair);
    if !keeps {
        promised.clear();
    }
    let mut report = check_beside(name, file, promised, options, progress)?;
    match left {
        Left::Changes(found, changes) if !changes.is_empty() => {
            let (count, redo) = (changes.len(), found.path());
            let waiting = format!("{count} changes of a killed daemon wait in {}", redo.display());
            let note = waiting + ": they are taken over when the image is opened for writing";
            report.notes.push(note);
        }
        Left::Nothing | Left::Void(_) if options.repair && header.autoclear != 0 => {
            // The redo file is useless now.
            let cleared = clear_mark(file, &mut header);
            cleared.map_err(|errno| Error::host(name, errno, "check the host's file system"))?;
            left.remove();
        }
        _ => {}
    }
    if is_given_up {
        let cost = "writes that a killed daemon had completed since its last commit were given up";
        report.repairs.push(cost.into());
    }
    Ok(report)
}

/// Checks an image in which the `promised` clusters are in use, too.
pub fn check_beside(
    name: &str,
    file: &dyn FileIo,
    promised: HashSet<HostCluster>,
    options: CheckOptions,
    progress: CheckProgress<'_>,
) -> Result<CheckReport> {
    let host = |error: io::Error| Error::host(name, error, "check the host's file system");
    const ADVICE: &str = "restore it from a backup, or try `qemu-img check`";
    let header = read_header(name, file)?;
    if header.snapshots > 0 {
        let why = "it has internal snapshots, which this version does not follow";
        return Err(Error::unsupported(name, why, "use `qemu-img check`"));
    }
    if header.autoclear & 1 != 0 {
        let why = "it has persistent bitmaps, which this version does not follow";
        return Err(Error::unsupported(name, why, "use `qemu-img check`"));
    }
    let file_bytes = file.size().map_err(host)?;
    let mut reader = BlockingFile::new(file).map_err(host)?;
    let sector = sector_bytes(file);
    let l1 = read_l1(&mut reader, &header, sector, file_bytes)
        .map_err(|refusal| refusal.explain(name, ADVICE))?;
    let (table, clusters) = (header.refcount_table_offset, header.refcount_table_clusters);
    let refcounts = Refcounts::load(&mut reader, header.shape, table, clusters, sector)
        .map_err(|errno| host(errno.into()))?;
    let mut checker = Checker {
        file: reader,
        shape: header.shape,
        sector_bytes: sector,
        file_bytes,
        header,
        l1,
        refcounts,
        promised,
        report: CheckReport::default(),
        progress,
    };
    let checked = if options.repair { checker.repair() } else { checker.check() };
    checked.map_err(|errno| host(errno.into()))?;
    let mut report = checker.report;
    if options.data {
        report.notes.push("a qcow2 image has no checksums; its data was not read".into());
    }
    Ok(report)
}

/// A cluster with a wrong refcount.
#[derive(Clone, Copy)]
struct Wrong {
    cluster: HostCluster,
    counted: u64,
    refcount: u64,
}

/// Maximum number of wrong refcounts corrected in one pass.
const REPAIRS_MAX: usize = 1 << 20;

impl Checker<'_> {
    /// Counts, compares and reports.
    fn check(&mut self) -> Outcome {
        self.compare(|report, wrong, shape| {
            if wrong.refcount > wrong.counted {
                report.leaked_bytes += shape.cluster_bytes();
            } else {
                report.error(format!(
                    "cluster {} is used {} times and counted {} times",
                    wrong.cluster.0, wrong.counted, wrong.refcount
                ));
            }
        })
    }

    /// Calls `visit` for each wrong refcount; errors in tables go to the report.
    fn compare(&mut self, mut visit: impl FnMut(&mut CheckReport, Wrong, Shape)) -> Outcome {
        let per_block = self.shape.block_refcounts();
        let file_clusters = self.shape.clusters(self.file_bytes);
        let blocks_end = (self.refcounts.table_entries() as u64).saturating_mul(per_block);
        // Clusters behind that have neither a user nor a refcount.
        let last_block = self.refcounts.blocks().map(|(index, _)| index as u64 + 1).max();
        let counted_end = last_block.unwrap_or(0).saturating_mul(per_block).min(file_clusters);
        let (mut start, mut end) = (0, counted_end);
        loop {
            let window = start..start + WINDOW_CLUSTERS.min((end - start).max(1));
            let counts = Walk { checker: self, window: window.clone() }.run(&mut end)?;
            for index in window.start / per_block..window.end.div_ceil(per_block) {
                self.compare_block(index, &window, &counts, &mut visit)?;
            }
            start = window.end;
            if start >= end {
                break;
            }
        }
        // Clusters beyond the end of the file are not in use.
        for index in file_clusters / per_block..blocks_end / per_block {
            self.compare_block(index, &(file_clusters..blocks_end), &[], &mut visit)?;
        }
        Ok(())
    }

    /// Compares the counts of a refcount block for clusters in `window`.
    fn compare_block(
        &mut self,
        index: u64,
        window: &std::ops::Range<u64>,
        counts: &[u8],
        visit: &mut impl FnMut(&mut CheckReport, Wrong, Shape),
    ) -> Outcome {
        let per_block = self.shape.block_refcounts();
        let order = self.shape.refcount_order;
        let Ok(block) = self.refcounts.block_bytes(&mut self.file, index as usize) else {
            self.report.error(format!("refcount block {index} cannot be read"));
            return Ok(());
        };
        if block.is_none() && counts.is_empty() {
            return Ok(());
        }
        let first = (index * per_block).max(window.start);
        for cluster in first..((index + 1) * per_block).min(window.end) {
            let slot = (cluster % per_block) as usize;
            let refcount = block.map_or(0, |bytes| super::refcounts::refcount(bytes, order, slot));
            let counted = counts.get((cluster - window.start) as usize).copied().unwrap_or(0);
            let counted = match self.promised.contains(&HostCluster(cluster)) {
                true if counted == 0 => refcount.min(1),
                _ => u64::from(counted),
            };
            // Counts are saturated at one byte.
            if refcount != counted && !(counted == 255 && refcount > 255) {
                let wrong = Wrong { cluster: HostCluster(cluster), counted, refcount };
                visit(&mut self.report, wrong, self.shape);
            }
        }
        Ok(())
    }

    /// Corrects refcounts and flags, too low ones first, since these protect data; then checks
    /// again.
    fn repair(&mut self) -> Outcome {
        let (mut low, mut high) = (Vec::new(), Vec::new());
        self.compare(|_, wrong, _| {
            let list = if wrong.refcount < wrong.counted { &mut low } else { &mut high };
            if list.len() < REPAIRS_MAX {
                list.push(wrong);
            }
        })?;
        let raised = self.set_all(&low)?;
        // Writes of a killed daemon may not be durable, and after a crash the medium may hold older
        // entries that name the clusters to be freed.
        let syncs = mutated("qcow2.repair.counts-down-before-a-sync", true, false);
        if syncs {
            self.file.sync()?;
        }
        self.set_all(&high)?;
        // Flags depend on correct refcounts.
        let flags = self.repair_flags()?;
        let free = high.iter().filter(|wrong| wrong.counted == 0).map(|wrong| wrong.cluster);
        let file_clusters = self.shape.clusters(self.file_bytes);
        for run in merged(free.filter(|cluster| cluster.0 < file_clusters).collect()) {
            let offset = FileOffset::new(self.shape.offset(HostCluster(run.start)));
            let bytes = (run.end - run.start) << self.shape.cluster_bits;
            self.file.run(FileOp::Punch { offset, bytes })?;
        }
        let syncs = mutated("qcow2.repair.told-before-durable", true, false);
        if syncs {
            self.file.sync()?;
        }
        self.report = CheckReport::default();
        self.check()?;
        let repairs = &mut self.report.repairs;
        if raised > 0 {
            repairs.push(format!("{raised} clusters in use were counted too low"));
        }
        if flags > 0 {
            repairs.push(format!("{flags} entries said wrongly whether a cluster is shared"));
        }
        if !high.is_empty() {
            let bytes = format_size(high.len() as u64 * self.shape.cluster_bytes());
            repairs.push(format!("{bytes} belonged to nothing"));
        }
        Ok(())
    }

    /// Sets refcounts to the counted value, where a refcount block exists.
    fn set_all(&mut self, wrong: &[Wrong]) -> std::result::Result<u64, flowstone_block::Errno> {
        let mut set = 0;
        for Wrong { cluster, counted, .. } in wrong {
            set += u64::from(self.refcounts.set(&mut self.file, *cluster, *counted).is_ok());
        }
        self.refcounts.write_blocks(&mut self.file)?;
        Ok(set)
    }
}
