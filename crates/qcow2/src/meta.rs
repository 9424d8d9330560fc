//! State shared by all queues of an image, under one lock that is held only briefly and never
//! across I/O: the map, the free clusters, and the locks of entries that are being changed.

use std::collections::{HashMap, HashSet};

use flowstone_block::mutated;

use super::entry::{self, Compressed, Mapping};
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
    /// Guest clusters whose entries are being changed.
    locks: HashMap<GuestCluster, ClusterLock>,
    /// Host clusters with tables: no map entry may direct data there.
    pub tables: HashSet<HostCluster>,
    /// Host clusters that the map has begun to name since the last commit began.
    pub taken: Vec<HostCluster>,
    /// References that the map has given up since the last commit began.
    pub dropped: Vec<HostCluster>,
    /// Guest clusters that hold data of their own; `None` if they have not been counted.
    pub live: Option<u64>,
    /// Freed host clusters that have not been deallocated on the host.
    pub dead: u64,
    /// Redo file: keeps changes across a killed daemon until they are durable.
    pub redo: Option<Redo>,
    /// Clusters reserved for refcount structures: data must not use them, or there could be data
    /// that no commit can make durable.
    pub reserved: u64,
    /// A commit has taken changes that are not durable yet.
    pub committing: bool,
    /// A change of the header failed and could not be undone: the medium may have the new one.
    pub header_in_doubt: bool,
    /// Bytes of the host file; the rest of its last cluster reads as zeroes.
    pub file_bytes: u64,
    /// Bytes of the backing file; 0 if there is none.
    pub backing_bytes: u64,
}

/// Lock of a guest cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClusterLock {
    /// Writes are in flight to a clean host cluster, which the map will name when the first of them
    /// is done. Other writes share the lock.
    Filling { host: HostCluster, writers: usize, named: bool },
    /// One request reads the old content and replaces it.
    Exclusive,
}

/// Location of some bytes of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the host file at `offset`; `ours` if they may be written there.
    File { offset: u64, ours: bool },
    /// Not stored: they read as zeroes.
    Zero,
    /// In the backing file, at the same position.
    Backing,
    /// In a compressed cluster.
    Compressed(Compressed),
    /// The image is damaged here.
    Damaged,
}

/// Bytes of the disk in one contiguous location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedPart {
    pub source: Source,
    pub bytes: u64,
}

/// Result of claiming a cluster for a write that cannot be in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filling {
    /// Write to this cluster, then call [`Meta::filled`].
    Write(HostCluster),
    /// The cluster is locked exclusively.
    Busy,
    /// There is no free cluster.
    NoRoom,
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
            header_in_doubt: false,
            file_bytes,
            backing_bytes,
        }
    }

    fn shape(&self) -> Shape {
        self.map.shape
    }

    /// Returns the location of the bytes from `position` on, up to the end of the contiguous part
    /// or `most` bytes.
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
            // The whole table is missing.
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

    /// Clips the range at the end of the file: its last cluster may be partial, and the rest reads
    /// as zeroes.
    fn in_file(&self, offset: u64, ours: bool, bytes: u64) -> (Source, u64) {
        if offset < self.file_bytes {
            return (Source::File { offset, ours }, bytes.min(self.file_bytes - offset));
        }
        let end = self.file_bytes.next_multiple_of(self.shape().cluster_bytes());
        (if offset < end { Source::Zero } else { Source::Damaged }, bytes)
    }

    /// Returns the mapping of a cluster, before it is changed.
    pub fn mapping(&mut self, guest: GuestCluster) -> Result<Option<Mapping>, Missing> {
        let raw = self.map.get(guest)?;
        Ok(entry::decode(self.shape(), raw).ok())
    }

    /// Returns whether an unmapped cluster reads as zeroes.
    pub fn is_zero_below(&self, guest: GuestCluster) -> bool {
        self.shape().position(guest) >= self.backing_bytes
    }

    /// Returns whether there are `clusters` free clusters for data, besides those for tables and
    /// refcounts.
    pub fn has_room(&self, clusters: u64) -> bool {
        // A run of clusters may begin in one table and end in another.
        let tables = clusters.div_ceil(self.shape().l2_entries()) + 1;
        let needed = clusters + tables + self.map.homeless_count() + self.reserved;
        let needed = mutated("qcow2.space.keeps-no-room-for-metadata", needed, clusters);
        self.space.has(needed)
    }

    /// Claims a clean cluster, all zeroes, for writes to parts of the guest cluster.
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
        let named = mutated("qcow2.fill.names-before-the-data", false, true);
        self.locks.insert(guest, ClusterLock::Filling { host, writers: 1, named });
        self.map.pin(guest);
        if named {
            self.name(guest, host);
        }
        Filling::Write(host)
    }

    /// Ends a write to the cluster that [`fill`](Self::fill) returned. Returns whether the claim
    /// has ended, too.
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

    /// Returns whether the entry of the cluster is being changed.
    pub fn is_locked(&self, guest: GuestCluster) -> bool {
        let lock = self.locks.get(&guest);
        let is_shared = lock.is_some() && lock != Some(&ClusterLock::Exclusive);
        mutated("qcow2.locks.slow-path-ignores-exclusive", lock.is_some(), is_shared)
    }

    /// Returns whether it is being changed by a request with an exclusive lock.
    pub fn is_locked_exclusively(&self, guest: GuestCluster) -> bool {
        let is_locked = self.locks.get(&guest) == Some(&ClusterLock::Exclusive);
        mutated("qcow2.locks.queue-ignores-exclusive", is_locked, false)
    }

    /// Locks a cluster that is not locked.
    pub fn lock_exclusive(&mut self, guest: GuestCluster) {
        let before = self.locks.insert(guest, ClusterLock::Exclusive);
        debug_assert_eq!(before, None, "a cluster is changed by one at a time");
        self.map.pin(guest);
    }

    /// Releases a lock, after the entry has been changed if needed.
    pub fn release(&mut self, guest: GuestCluster) {
        self.locks.remove(&guest);
        self.map.unpin(guest);
    }

    /// Maps the guest cluster to this host cluster.
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
        if let Ok(before) = before {
            self.dropped.extend(before.hosts(shape));
        }
    }

    /// Returns whether the whole map is durable.
    pub fn is_clean(&self) -> bool {
        !self.committing && !self.is_changed()
    }

    /// Returns whether there is anything for a commit to write.
    pub fn is_changed(&self) -> bool {
        self.map.is_changed()
            || !self.taken.is_empty()
            || !self.dropped.is_empty()
            || self.header_in_doubt
    }

    /// Returns whether a commit must come before `changes` changes of the map: the redo file must
    /// have room for all claims, and for changes without one.
    pub fn is_full(&self, changes: u64) -> bool {
        let wanted = changes + self.locks.len() as u64;
        self.redo.as_ref().is_some_and(|redo| redo.room() < wanted)
    }

    /// Returns whether a commit should come soon, even without a flush.
    pub fn is_crowded(&self) -> bool {
        const CHANGES_MAX: usize = 1 << 15;
        self.map.is_crowded() || self.taken.len() + self.dropped.len() > CHANGES_MAX
    }

    /// Returns whether every entry of a table that is to be written names clusters that may hold
    /// data.
    pub fn is_sound(&self, entries: &[u64]) -> bool {
        let shape = self.shape();
        let sound = |host: HostCluster| {
            shape.offset(host) < self.file_bytes && !self.tables.contains(&host) && host.0 != 0
        };
        let mut mappings = entries.iter().map(|raw| entry::decode(shape, *raw));
        mappings.all(|mapping| mapping.is_ok_and(|it| it.hosts(shape).all(sound)))
    }
}
