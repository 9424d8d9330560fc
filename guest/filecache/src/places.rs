//! Index of nodes by their last known place: a folder and a name there.
//!
//! Names are stored in the nodes. This has a hash of each place, sixteen bytes with the node's
//! number, so a node found here may be at another place with the same hash.

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::ffi::OsStr;
use std::hash::BuildHasher;

/// Folder number of nodes without a known place. No folder has this number.
pub const NOWHERE: u64 = 0;

/// The places of all nodes.
#[derive(Default)]
pub struct Places {
    /// Random, so that names cannot be chosen to collide.
    keys: RandomState,
    nodes: BTreeSet<(u64, u64)>,
}

impl Places {
    /// Adds a node at a place.
    pub fn insert(&mut self, folder: u64, name: &OsStr, id: u64) {
        if folder != NOWHERE {
            self.nodes.insert((self.hash(folder, name), id));
        }
    }

    /// Removes a node from a place.
    pub fn remove(&mut self, folder: u64, name: &OsStr, id: u64) {
        self.nodes.remove(&(self.hash(folder, name), id));
    }

    /// Returns the numbers of nodes that may be at a place, including all that are.
    pub fn at(&self, folder: u64, name: &OsStr) -> impl Iterator<Item = u64> {
        let hash = self.hash(folder, name);
        self.nodes.range((hash, 0)..=(hash, u64::MAX)).map(|(_, id)| *id)
    }

    fn hash(&self, folder: u64, name: &OsStr) -> u64 {
        self.keys.hash_one((folder, name))
    }
}
