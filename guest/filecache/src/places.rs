//! Which nodes were last seen at which place: a folder and a name there.
//!
//! Names stay with their nodes. Here is a hash of each place, sixteen bytes with the node's number,
//! so a node that is found here may be at another place with the same hash.

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::ffi::OsStr;
use std::hash::BuildHasher;

/// A node of this folder is nowhere, as far as is known. No folder has the number.
pub const NOWHERE: u64 = 0;

/// The places of all nodes.
#[derive(Default)]
pub struct Places {
    /// Who makes names must not be able to make many with one hash.
    keys: RandomState,
    nodes: BTreeSet<(u64, u64)>,
}

impl Places {
    /// A node is there.
    pub fn insert(&mut self, folder: u64, name: &OsStr, id: u64) {
        if folder != NOWHERE {
            self.nodes.insert((self.hash(folder, name), id));
        }
    }

    /// A node is not there any more.
    pub fn remove(&mut self, folder: u64, name: &OsStr, id: u64) {
        self.nodes.remove(&(self.hash(folder, name), id));
    }

    /// Numbers of the nodes that may be there. All that are there are among them.
    pub fn at(&self, folder: u64, name: &OsStr) -> impl Iterator<Item = u64> {
        let hash = self.hash(folder, name);
        self.nodes.range((hash, 0)..=(hash, u64::MAX)).map(|(_, id)| *id)
    }

    fn hash(&self, folder: u64, name: &OsStr) -> u64 {
        self.keys.hash_one((folder, name))
    }
}
