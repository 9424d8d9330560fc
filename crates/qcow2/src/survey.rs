//! Surveys all tables before an image is written: clusters in use, and consistency of refcounts.
//!
//! Free clusters are determined by the map, not by refcounts alone: in an image that other software
//! left damaged, no cluster in use is ever allocated.

use std::collections::HashSet;
use std::ops::Range;

use flowstone_block::{AlignedBuf, Errno, Error, mutated};
use flowstone_fileio::{BlockingFile, FileOffset};
use flowstone_image::Flaw;

use super::entry;
use super::map::from_bytes;
use super::refcounts::{Refcounts, refcount};
use super::shape::{HostCluster, Shape};

/// Result of a survey.
#[derive(Debug, Default)]
pub struct Survey {
    /// Host clusters with tables.
    pub tables: HashSet<HostCluster>,
    /// Unused clusters before `next`.
    pub holes: Vec<Range<u64>>,
    /// Unused clusters that have refcounts.
    pub leaks: Vec<Range<u64>>,
    /// The first cluster after all that have a refcount.
    pub next: u64,
    /// Guest clusters that hold data; `None` if there were too many tables to read.
    pub live: Option<u64>,
}

/// Why an image cannot be written.
#[derive(Debug)]
pub enum SurveyError {
    Damaged(Flaw),
    Host(Errno),
}

impl SurveyError {
    /// Converts it to an error about the image `name`.
    pub fn explain(self, name: &str, advice: &'static str) -> Error {
        match self {
            Self::Damaged(flaw) => Error::damaged(flaw.in_image(name), advice),
            Self::Host(errno) => Error::host(name, errno, "check the host's file system"),
        }
    }
}

impl From<Errno> for SurveyError {
    fn from(errno: Errno) -> Self {
        Self::Host(errno)
    }
}

/// Maximum bytes of L2 tables read when an image is opened. With more, new data goes only to the
/// end of the file.
pub const TABLES_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of refcount blocks that all count clusters beyond the file, before the image is
/// considered damaged.
const BLOCKS_BEYOND_MAX: usize = 256;
/// Maximum number of clusters for which the survey looks at each one.
const CLUSTERS_MAX: u64 = 1 << 28;
/// Maximum number of runs of unused clusters kept.
const HOLES_MAX: usize = 1 << 16;

/// Input of a survey.
pub struct Surveyor<'a> {
    pub file: &'a mut BlockingFile,
    pub shape: Shape,
    pub file_bytes: u64,
    pub l1_offset: u64,
    pub l1: &'a [u64],
    pub refcounts: &'a mut Refcounts,
    /// Clusters that are in use, although nothing on the medium says so.
    pub promised: &'a HashSet<HostCluster>,
}

impl Surveyor<'_> {
    /// Surveys all tables.
    pub fn run(mut self) -> Result<Survey, SurveyError> {
        let tables = self.tables()?;
        let next = self.next()?;
        let l2_tables = self.l1.iter().filter(|entry| **entry != 0).count() as u64;
        let is_small = l2_tables * self.shape.cluster_bytes() <= TABLES_BYTES_MAX;
        if !is_small || next > CLUSTERS_MAX {
            let (holes, leaks) = Default::default();
            return Ok(Survey { tables, holes, leaks, next, live: None });
        }
        let (used, live) = self.used(&tables)?;
        let [holes, leaks] = self.unused(used, next)?;
        Ok(Survey { tables, holes, leaks, next, live: Some(live) })
    }

    /// Returns the clusters of all tables, after checking that each has one place of its own within
    /// the file.
    fn tables(&self) -> Result<HashSet<HostCluster>, SurveyError> {
        let shape = self.shape;
        let l1_start = shape.host_at(self.l1_offset).0;
        let l1 = l1_start..l1_start + shape.clusters(self.l1.len() as u64 * 8);
        let fixed = [0..1, l1, self.refcounts.table_clusters()];
        let mut all: Vec<HostCluster> = fixed.into_iter().flatten().map(HostCluster).collect();
        for (index, home) in self.refcounts.blocks() {
            all.push(home.map_err(|_| damaged(format!("refcount block {index} is nowhere")))?);
        }
        let homes = self.l1.iter().filter_map(|raw| entry::cluster(shape, *raw).ok().flatten());
        all.extend(homes);
        let file_clusters = shape.clusters(self.file_bytes);
        let mut tables = HashSet::with_capacity(all.len());
        for cluster in all {
            if cluster.0 >= file_clusters {
                let why =
                    format!("a table lies past the end of the file, in cluster {}", cluster.0);
                return Err(damaged(why));
            }
            if !tables.insert(cluster) {
                return Err(damaged(format!("two tables lie in cluster {}", cluster.0)));
            }
        }
        Ok(tables)
    }

    /// Returns the first cluster behind the end of the file and all refcounts.
    fn next(&mut self) -> Result<u64, SurveyError> {
        let (per_block, order) = (self.shape.block_refcounts(), self.shape.refcount_order);
        let file_clusters = self.shape.clusters(self.file_bytes);
        let mut blocks: Vec<usize> = self.refcounts.blocks().map(|(index, _)| index).collect();
        blocks.retain(|index| (*index as u64 + 1) * per_block > file_clusters);
        if blocks.len() > BLOCKS_BEYOND_MAX {
            return Err(damaged("it counts users of clusters far past its end".into()));
        }
        for index in blocks.into_iter().rev() {
            let Some(bytes) = self.refcounts.block_bytes(self.file, index)? else { continue };
            let used =
                (0..per_block).rev().find(|slot| refcount(bytes, order, *slot as usize) != 0);
            if let Some(slot) = used {
                return Ok(file_clusters.max(index as u64 * per_block + slot + 1));
            }
        }
        Ok(file_clusters)
    }

    /// Returns the clusters without a user: those without a refcount, and those with one.
    fn unused(
        &mut self,
        mut used: Vec<HostCluster>,
        next: u64,
    ) -> Result<[Vec<Range<u64>>; 2], SurveyError> {
        used.sort_unstable();
        used.dedup();
        let mut used = used.into_iter().peekable();
        let [mut free, mut leaks]: [Vec<Range<u64>>; 2] = Default::default();
        let (per_block, order) = (self.shape.block_refcounts(), self.shape.refcount_order);
        for index in 0..next.div_ceil(per_block) {
            let clusters = index * per_block..((index + 1) * per_block).min(next);
            let block = self.refcounts.block_bytes(self.file, index as usize)?;
            for cluster in clusters.clone() {
                let slot = (cluster - clusters.start) as usize;
                let users = block.map_or(0, |bytes| refcount(bytes, order, slot));
                let named = used.next_if_eq(&HostCluster(cluster)).is_some();
                if named && users == 0 {
                    let why = format!("cluster {cluster} is in use and counted as free");
                    return Err(damaged(why));
                }
                let promised = self.promised.contains(&HostCluster(cluster));
                let promised =
                    mutated("qcow2.survey.gives-away-what-the-redo-file-names", promised, false);
                if named || promised {
                    continue;
                }
                let runs = if users == 0 { &mut free } else { &mut leaks };
                match runs.last_mut() {
                    Some(last) if last.end == cluster => last.end += 1,
                    _ => runs.push(cluster..cluster + 1),
                }
            }
            if free.len() + leaks.len() > HOLES_MAX {
                break;
            }
        }
        Ok([free, leaks])
    }

    /// Returns all clusters that tables name, including tables, and the number of guest clusters
    /// with data.
    fn used(
        &mut self,
        tables: &HashSet<HostCluster>,
    ) -> Result<(Vec<HostCluster>, u64), SurveyError> {
        let shape = self.shape;
        let mut used: Vec<HostCluster> = tables.iter().copied().collect();
        let mut live = 0;
        let mut bytes = AlignedBuf::zeroed(shape.cluster_bytes() as usize);
        let file_clusters = shape.clusters(self.file_bytes);
        for (index, raw) in self.l1.iter().enumerate() {
            let Some(home) = entry::cluster(shape, *raw).ok().flatten() else { continue };
            self.file.read(FileOffset::new(shape.offset(home)), &mut bytes)?;
            for raw in from_bytes(&bytes) {
                let found = used.len();
                let Ok(mapping) = entry::decode(shape, raw) else {
                    return Err(damaged(format!("L2 table {index} has a bad entry")));
                };
                live += u64::from(mapping.holds_data());
                used.extend(mapping.hosts(shape));
                let sound = |host: &HostCluster| host.0 < file_clusters && !tables.contains(host);
                if !used[found..].iter().all(sound) {
                    let why = format!("L2 table {index} names what cannot be data");
                    return Err(damaged(why));
                }
            }
        }
        Ok((used, live))
    }
}

fn damaged(what: String) -> SurveyError {
    SurveyError::Damaged(Flaw::new(what))
}
