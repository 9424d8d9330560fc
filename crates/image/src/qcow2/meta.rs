//! What all queues of an image share, under one lock that is held for moments and never across
//! I/O: the map, the free clusters, and which entries are being changed.

use std::collections::{HashMap, HashSet};

use flowstone_block::mutant;

use super::entry::{self, Compressed, Mapping};
use super::epochs::HasEpoch;
use super::map::{Map, Missing};
use super::redo::{Redo, RedoRecord};
use super::shape::{GuestCluster, HostCluster, Shape};
use super::space::Space;

/// The shared state of an open image.
pub struct Meta {
    pub map: Map,
    pub space: Space,
    /// The present epoch; see [`Epochs`](super::epochs::Epochs).
    pub epoch: u64,
    /// Clusters of the disk whose entries are being changed.
    locks: HashMap<GuestCluster, ClusterLock>,
    /// Host clusters with tables: nothing that the map says may send data there.
    pub tables: HashSet<HostCluster>,
    /// Since the last commit began: host clusters that the map has begun to name.
    pub taken: Vec<HostCluster>,
    /// Since the last commit began: references that the map has given up.
    pub dropped: Vec<HostCluster>,
    /// Clusters of the disk that hold data of their own; `None` if they have not been counted.
    pub live: Option<u64>,
    /// Host clusters that were given up before, and that the host has not got back.
    pub dead: u64,
    /// Where changes survive a killed daemon until they are durable.
    pub redo: Option<Redo>,
    /// Clusters that refcounts may take: not for data, or there could be data that no commit can
    /// make durable.
    pub reserved: u64,
    /// A commit has taken changes over, and they are not durable yet.
    pub committing: bool,
    /// Bytes of the host file; what lies behind reads as zeroes.
    pub file_bytes: u64,
    /// Bytes of the backing file; 0 if there is none.
    pub backing_bytes: u64,
}

/// A lock of a cluster of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClusterLock {
    /// Writes are on their way to a clean cluster, which the map will name when the first of them
    /// is done. Other writes share the lock.
    Filling { host: HostCluster, writers: usize, named: bool },
    /// One request reads what there is and puts something else in its place.
    Exclusive,
}

/// Where some bytes of the disk are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// At this byte of the host file; `ours` if they may be written there.
    File { offset: u64, ours: bool },
    /// Nowhere: they are zero.
    Zero,
    /// In the backing file, at the same place.
    Backing,
    /// In a compressed cluster.
    Compressed(Compressed),
    /// The image is damaged here.
    Damaged,
}

/// Bytes of the disk that are in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedPart {
    pub source: Source,
    pub bytes: u64,
}

/// What a write to a cluster that cannot be written in place is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filling {
    /// Write here, then say [`Meta::filled`].
    Write(HostCluster),
    /// The cluster is locked exclusively.
    Busy,
    /// There is no free cluster.
    NoRoom,
}

impl HasEpoch for Meta {
    fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl Meta {
    pub fn new(map: Map, space: Space, file_bytes: u64, backing_bytes: u64) -> Self {
        Self {
            map,
            space,
            epoch: 1,
            locks: HashMap::new(),
            tables: HashSet::new(),
            taken: Vec::new(),
            dropped: Vec::new(),
            live: None,
            dead: 0,
            redo: None,
            reserved: 0,
            committing: false,
            file_bytes,
            backing_bytes,
        }
    }

    fn shape(&self) -> Shape {
        self.map.shape
    }

    /// Where the bytes from `position` on are: as many as are in one place, at most `most`.
    pub fn find(&mut self, position: u64, most: u64) -> Result<MappedPart, Missing> {
        let mut part = self.find_in_cluster(position, most)?;
        while part.bytes < most {
            let Ok(next) = self.find_in_cluster(position + part.bytes, most - part.bytes) else {
                break;
            };
            let follows = match (part.source, next.source) {
                (Source::File { offset, ours }, Source::File { offset: other, ours: also }) => {
                    offset + part.bytes == other && ours == also
                }
                (Source::Zero, Source::Zero) | (Source::Backing, Source::Backing) => true,
                _ => false,
            };
            if !follows {
                break;
            }
            part.bytes += next.bytes;
        }
        Ok(part)
    }

    fn find_in_cluster(&mut self, position: u64, most: u64) -> Result<MappedPart, Missing> {
        let shape = self.shape();
        let guest = shape.guest_at(position);
        let raw = self.map.get(guest)?;
        let within = position - shape.position(guest);
        let span = if raw == 0 && self.map.is_table_empty(guest) {
            // All of the table is the same.
            (shape.l2_entries() - guest.0 % shape.l2_entries()) * shape.cluster_bytes()
        } else {
            shape.cluster_bytes()
        };
        let bytes = most.min(span - within);
        let (source, bytes) = match entry::decode(shape, raw) {
            Err(_) => (Source::Damaged, bytes),
            Ok(Mapping::Zero { .. }) => (Source::Zero, bytes),
            Ok(Mapping::Compressed(found)) => (Source::Compressed(found), bytes),
            Ok(Mapping::Unallocated) if position < self.backing_bytes => {
                (Source::Backing, bytes.min(self.backing_bytes - position))
            }
            Ok(Mapping::Unallocated) => (Source::Zero, bytes),
            Ok(Mapping::Data { host, ours }) => {
                self.in_file(shape.offset(host) + within, ours, bytes)
            }
        };
        Ok(MappedPart { source, bytes })
    }

    /// The last cluster of a file need not be whole: the rest of it is zero.
    fn in_file(&self, offset: u64, ours: bool, bytes: u64) -> (Source, u64) {
        if offset < self.file_bytes {
            return (Source::File { offset, ours }, bytes.min(self.file_bytes - offset));
        }
        let end = self.file_bytes.next_multiple_of(self.shape().cluster_bytes());
        (if offset < end { Source::Zero } else { Source::Damaged }, bytes)
    }

    /// What the entry of a cluster means, before it is changed.
    pub fn mapping(&mut self, guest: GuestCluster) -> Result<Option<Mapping>, Missing> {
        let raw = self.map.get(guest)?;
        Ok(entry::decode(self.shape(), raw).ok())
    }

    /// Whether a cluster that the map does not name reads as zeroes.
    pub fn is_zero_below(&self, guest: GuestCluster) -> bool {
        self.shape().position(guest) >= self.backing_bytes
    }

    /// Whether there are so many clusters for data, besides those for what is to name and count
    /// them.
    pub fn has_room(&self, clusters: u64) -> bool {
        // A run of clusters may begin in one table and end in another one.
        let tables = clusters.div_ceil(self.shape().l2_entries()) + 1;
        if mutant("qcow2.space.keeps-no-room-for-metadata") {
            return self.space.has(clusters);
        }
        self.space.has(clusters + tables + self.map.homeless_count() + self.reserved)
    }

    /// A place to write parts of a cluster to that is all zeroes now.
    pub fn fill(&mut self, guest: GuestCluster) -> Filling {
        match self.locks.get_mut(&guest) {
            Some(ClusterLock::Exclusive) => return Filling::Busy,
            Some(ClusterLock::Filling { host, writers, .. }) => {
                *writers += 1;
                return Filling::Write(*host);
            }
            None => {}
        }
        let Some(taken) = self.space.take(1) else { return Filling::NoRoom };
        let host = HostCluster(taken.start);
        let named = mutant("qcow2.fill.names-before-the-data");
        self.locks.insert(guest, ClusterLock::Filling { host, writers: 1, named });
        self.map.pin(guest);
        if named {
            self.name(guest, host);
        }
        Filling::Write(host)
    }

    /// A write to where [`fill`](Self::fill) said has ended. Returns whether the claim has, too.
    pub fn filled(&mut self, guest: GuestCluster, written: bool) -> bool {
        let Some(ClusterLock::Filling { host, writers, named }) = self.locks.get_mut(&guest) else {
            unreachable!("a claim lasts as long as its writers");
        };
        *writers -= 1;
        let (host, last, name) = (*host, *writers == 0, written && !*named);
        *named |= written;
        let named = *named;
        if name {
            self.name(guest, host);
        } else if last && !named {
            self.space.spoil(host);
        }
        if last {
            self.release(guest);
        }
        last
    }

    /// Whether the entry of the cluster is being changed.
    pub fn is_locked(&self, guest: GuestCluster) -> bool {
        let lock = self.locks.get(&guest);
        let is_ignored = lock == Some(&ClusterLock::Exclusive)
            && mutant("qcow2.locks.slow-path-ignores-exclusive");
        lock.is_some() && !is_ignored
    }

    /// Whether it is being changed by a request that shares the lock with no other.
    pub fn is_locked_exclusively(&self, guest: GuestCluster) -> bool {
        let is_ignored = mutant("qcow2.locks.queue-ignores-exclusive");
        self.locks.get(&guest) == Some(&ClusterLock::Exclusive) && !is_ignored
    }

    /// Locks a cluster that is not locked.
    pub fn lock_exclusive(&mut self, guest: GuestCluster) {
        let before = self.locks.insert(guest, ClusterLock::Exclusive);
        debug_assert_eq!(before, None, "a cluster is changed by one at a time");
        self.map.pin(guest);
    }

    /// Gives up a claim, after the entry has been changed if it was to be.
    pub fn release(&mut self, guest: GuestCluster) {
        self.locks.remove(&guest);
        self.map.unpin(guest);
    }

    /// The cluster of the disk is in this host cluster from now on.
    pub fn name(&mut self, guest: GuestCluster, host: HostCluster) {
        self.taken.push(host);
        self.change(guest, entry::ours(self.shape(), host));
    }

    /// Changes an entry, whose table is in memory or does not exist.
    pub fn change(&mut self, guest: GuestCluster, raw: u64) {
        let shape = self.shape();
        let before = self.map.get(guest).unwrap_or(0);
        self.map.set(guest, raw);
        if let Some(redo) = &mut self.redo {
            redo.append(RedoRecord { guest, entry: raw });
        }
        let (before, after) = (entry::decode(shape, before), entry::decode(shape, raw));
        let holds_data = |it: &Result<Mapping, _>| it.as_ref().is_ok_and(Mapping::holds_data);
        if let Some(live) = &mut self.live {
            *live += u64::from(holds_data(&after));
            *live -= u64::from(holds_data(&before));
        }
        match before {
            Ok(Mapping::Data { host, .. } | Mapping::Zero { reserved: Some(host) }) => {
                self.dropped.push(host);
            }
            Ok(Mapping::Compressed(found)) => self.dropped.extend(found.clusters(shape)),
            Ok(Mapping::Unallocated | Mapping::Zero { reserved: None }) | Err(_) => {}
        }
    }

    /// Whether everything that the map says is durable.
    pub fn is_clean(&self) -> bool {
        !self.committing && !self.is_changed()
    }

    /// Whether there is anything for a commit to write.
    pub fn is_changed(&self) -> bool {
        self.map.is_changed() || !self.taken.is_empty() || !self.dropped.is_empty()
    }

    /// Whether a commit must come before so many changes of the map: the
    /// redo file has room for all claims, and for what is changed without one.
    pub fn is_full(&self, changes: u64) -> bool {
        let wanted = changes + self.locks.len() as u64;
        self.redo.as_ref().is_some_and(|redo| redo.room() < wanted)
    }

    /// Whether a commit should come soon, flush or not.
    pub fn is_crowded(&self) -> bool {
        const CHANGES_MAX: usize = 1 << 15;
        self.map.is_crowded() || self.taken.len() + self.dropped.len() > CHANGES_MAX
    }

    /// Whether every entry of a table that is to be written names something that may hold data.
    pub fn is_sound(&self, entries: &[u64]) -> bool {
        let shape = self.shape();
        let sound = |host: HostCluster| {
            shape.offset(host) < self.file_bytes && !self.tables.contains(&host) && host.0 != 0
        };
        entries.iter().all(|raw| match entry::decode(shape, *raw) {
            Ok(Mapping::Data { host, .. } | Mapping::Zero { reserved: Some(host) }) => sound(host),
            Ok(Mapping::Compressed(found)) => found.clusters(shape).all(sound),
            Ok(Mapping::Unallocated | Mapping::Zero { reserved: None }) => true,
            Err(_) => false,
        })
    }
}
