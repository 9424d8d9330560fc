//! The files and folders that the kernel knows. A node has a place (a folder and a name) and the
//! identity of the file that was there. Only folders keep a descriptor.
//!
//! A file has one node, and a second one, its split node, while the first is bound to a mode that
//! does not suit an open. Names lead to the split node while it exists. Its number differs from
//! that of the file: the FUSE library uses node numbers as inode numbers.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use flowstone_memory::mutated;
use rustix::io::{Errno, Result};

use crate::lists::Lists;
use crate::lock::lock;
use crate::places::{NOWHERE, Places};
use crate::source::{self, Source};
use crate::stamp::{Attributes, Identity, Stamp};

/// The root's node.
pub const ROOT: u64 = 1;
/// Numbers from here on are allocated by us, others are inode numbers.
const OWN_NUMBERS: u64 = 1 << 63;

/// A change may go unseen within this time of another one: the clocks of file systems tick.
pub const SETTLED: Duration = Duration::from_secs(2);
/// A change older than this by the server's clock is settled even if it is seen for the first time:
/// clocks may differ by a minute.
const CLOCKS_DIFFER: Duration = Duration::from_secs(60);

/// Time allowed from the reply that redirects an open to a split node until the open arrives there.
/// The kernel looks the name up twice meanwhile, and fails if it is redirected again.
const UNDER_WAY: Duration = Duration::from_secs(2);

/// Most components of a path.
const DEPTH_MAX: usize = 2048;

/// A file or folder that the kernel knows.
pub struct Node {
    /// Its number.
    pub id: u64,
    /// The identity of its file.
    pub identity: Identity,
    state: Mutex<State>,
}

struct State {
    folder: u64,
    name: Box<OsStr>,
    /// Sequence number: of several nodes at a place, the latest is the one there.
    order: u64,
    /// Lookup count: times that the kernel was told of it and has not forgotten.
    lookups: u64,
    /// The stamp last told to the kernel, and the time since which it is the same.
    told: Stamp,
    since: Instant,
    /// The kernel's cached pages were read when `told` was settled.
    pages_are_good: bool,
    held: Option<Arc<OwnedFd>>,
}

/// The changes since the kernel was told last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// The stamp has changed.
    pub changed: bool,
    /// The kernel's cached pages are those of the file.
    pub pages_are_good: bool,
    /// No change can have gone unseen since.
    pub is_settled: bool,
}

impl Node {
    /// Returns its folder and its name there.
    pub fn place(&self) -> (u64, OsString) {
        let state = lock(&self.state);
        (state.folder, state.name.to_os_string())
    }

    /// Returns its descriptor, if it keeps one.
    pub fn held(&self) -> Option<Arc<OwnedFd>> {
        lock(&self.state).held.clone()
    }

    /// Records the stamp that the kernel is being told.
    pub fn told(&self, stamp: Stamp) -> News {
        let mut state = lock(&self.state);
        let changed = state.told != stamp;
        if changed {
            state.told = stamp;
            state.since = Instant::now();
            state.pages_are_good = false;
        }
        let is_settled = state.since.elapsed() >= SETTLED || is_old(stamp);
        let is_settled = mutated("guest.fill.trusts-what-is-new", is_settled, true);
        News { changed, pages_are_good: state.pages_are_good, is_settled }
    }

    /// Records that the kernel starts to cache pages, or drops its pages.
    pub fn pages(&self, are_good: bool) {
        lock(&self.state).pages_are_good = are_good;
    }
}

/// Returns whether a file has not changed for longer than clocks may differ.
pub fn is_old(stamp: Stamp) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let limit = now.saturating_sub(CLOCKS_DIFFER).as_secs();
    u64::try_from(stamp.changed.tv_sec).is_ok_and(|changed| changed < limit)
}

/// All nodes of a mount.
pub struct Nodes {
    table: Mutex<Table>,
}

struct Table {
    by_id: HashMap<u64, Arc<Node>>,
    mains: HashMap<Identity, u64>,
    /// Split nodes, for the few files that have one.
    splits: HashMap<Identity, Split>,
    places: Places,
    lists: Lists,
    next_own: u64,
    next_order: u64,
}

/// A split node.
#[derive(Clone, Copy)]
struct Split {
    id: u64,
    /// The last time that an open was redirected to it.
    sent: Instant,
    /// It is obsolete, except for opens redirected a moment ago.
    joins: bool,
}

impl Split {
    /// Returns whether the file's name leads to it.
    fn is_current(&self) -> bool {
        let is_under_way = self.sent.elapsed() < UNDER_WAY;
        let is_under_way = mutated("guest.bind.joins-at-once", is_under_way, false);
        !self.joins || is_under_way
    }
}

impl Nodes {
    /// Starts with the root only.
    pub fn new(source: &Source) -> Result<Self> {
        let held = source.root().try_clone_to_owned().map_err(|_| Errno::MFILE)?;
        let seen = source::stat(&held)?;
        let root = Node::new(ROOT, &seen, ROOT, OsStr::new("."));
        lock(&root.state).held = Some(Arc::new(held));
        lock(&root.state).lookups = 1;
        let mains = HashMap::from([(seen.identity, ROOT)]);
        let by_id = HashMap::from([(ROOT, Arc::new(root))]);
        let (splits, places) = (HashMap::new(), Places::default());
        let (lists, next_own) = (Lists::default(), OWN_NUMBERS);
        let table = Table { by_id, mains, splits, places, lists, next_own, next_order: 0 };
        Ok(Self { table: Mutex::new(table) })
    }

    /// Returns the node of a number.
    pub fn get(&self, id: u64) -> Result<Arc<Node>> {
        lock(&self.table).by_id.get(&id).cloned().ok_or(Errno::STALE)
    }

    /// Returns the node that was last seen at a place.
    pub fn known_at(&self, folder: u64, name: &OsStr) -> Option<Arc<Node>> {
        let table = lock(&self.table);
        let there = table.all_at(folder, name);
        there.max_by_key(|node| lock(&node.state).order).cloned()
    }

    /// Records that a name is gone. Its node then has no known place.
    pub fn gone(&self, folder: u64, name: &OsStr) {
        let mut table = lock(&self.table);
        let there: Vec<_> = table.all_at(folder, name).cloned().collect();
        there.iter().for_each(|node| table.moved(node, NOWHERE, name));
    }

    /// Records that a file has moved.
    pub fn moved(&self, identity: Identity, folder: u64, name: &OsStr) {
        let mut table = lock(&self.table);
        table.of(identity).iter().for_each(|node| table.moved(node, folder, name));
    }

    /// Registers a file that the kernel is told of, and returns the node that its name leads to.
    pub fn found(&self, seen: &Attributes, folder: u64, name: &OsStr) -> Arc<Node> {
        let mut table = lock(&self.table);
        let split = table.splits.get(&seen.identity).filter(|it| it.is_current());
        let current = split.map(|it| it.id).or_else(|| table.mains.get(&seen.identity).copied());
        let id = current.unwrap_or_else(|| table.new_main(seen, folder, name));
        let known = table.by_id.get(&id).cloned();
        let node = known.unwrap_or_else(|| table.insert(id, seen, folder, name));
        table.next_order += 1;
        table.moved(&node, folder, name);
        let mut state = lock(&node.state);
        state.lookups += 1;
        state.order = table.next_order;
        drop(state);
        node
    }

    /// Reduces a node's lookup count by `times`.
    pub fn forget(&self, id: u64, times: u64) {
        let mut table = lock(&self.table);
        let Some(node) = table.by_id.get(&id).cloned() else { return };
        let mut state = lock(&node.state);
        state.lookups = state.lookups.saturating_sub(times);
        if state.lookups > 0 || id == ROOT {
            return;
        }
        table.by_id.remove(&id);
        table.places.remove(state.folder, &state.name, id);
        table.lists.forgets_in(state.folder);
        table.lists.forget(id);
        // A split node keeps its number: the kernel forgets it once while it looks the name up
        // again.
        let is_known = |id: &u64| table.by_id.contains_key(id);
        let identity = node.identity;
        let main_is_known = table.mains.get(&identity).is_some_and(is_known);
        if !main_is_known && !table.splits.get(&identity).is_some_and(|it| is_known(&it.id)) {
            table.mains.remove(&identity);
            table.splits.remove(&identity);
        }
    }

    /// Records that the kernel was told of files in a folder: see [`Lists::told`].
    pub fn listed(&self, folder: u64, is_first: bool, names: usize, files: usize) {
        lock(&self.table).lists.told(folder, is_first, names, files, Instant::now());
    }

    /// Returns whether the kernel is to keep its cached list of a folder.
    pub fn list_serves(&self, folder: u64, window: Duration) -> bool {
        lock(&self.table).lists.serves(folder, window, Instant::now())
    }

    /// Makes the file's name lead to a split node.
    pub fn split(&self, identity: Identity) {
        let mut table = lock(&self.table);
        let own = table.next_own;
        let sent = Instant::now();
        let split = table.splits.entry(identity).or_insert(Split { id: own, sent, joins: false });
        *split = Split { id: split.id, sent, joins: false };
        table.next_own += u64::from(split.id == own);
    }

    /// Records that a split node is open: names lead there until it is joined.
    pub fn arrived(&self, identity: Identity) {
        if let Some(split) = lock(&self.table).splits.get_mut(&identity) {
            split.joins = false;
        }
    }

    /// Makes the file's name lead to its main node again, once redirected opens have arrived. The
    /// kernel may keep the split node.
    pub fn join(&self, identity: Identity) {
        if let Some(split) = lock(&self.table).splits.get_mut(&identity) {
            split.joins = true;
        }
    }

    /// Returns the path of a file from the root; `None` if the kernel has forgotten a folder above
    /// it.
    pub fn path(&self, node: &Node) -> Option<Box<[u8]>> {
        let (mut folder, name) = node.place();
        let mut names = vec![name];
        while folder != ROOT && names.len() < DEPTH_MAX {
            let above = self.get(folder).ok()?;
            let (next, name) = above.place();
            folder = next;
            names.push(name);
        }
        let names: Vec<&[u8]> = names.iter().rev().map(|it| it.as_bytes()).collect();
        (folder == ROOT).then(|| names.join(&b'/').into())
    }

    /// Returns whether this is a split node.
    pub fn is_split(&self, node: &Node) -> bool {
        lock(&self.table).mains.get(&node.identity).is_some_and(|main| *main != node.id)
    }

    /// Returns the descriptor of a folder, kept from its first use until the kernel forgets it.
    pub fn folder(&self, id: u64) -> Result<Arc<OwnedFd>> {
        let node = self.get(id)?;
        if let Some(held) = node.held() {
            return Ok(held);
        }
        let held = Arc::new(self.anchor(&node)?);
        Ok(lock(&node.state).held.get_or_insert(held).clone())
    }

    /// Opens an anchor of a node by its name, which must lead to the same file as before.
    pub fn anchor(&self, node: &Node) -> Result<OwnedFd> {
        let (folder, name) = node.place();
        let folder = self.folder(folder)?;
        let held = source::anchor(&folder, &name).map_err(source::gone_is_stale)?;
        // The identity is known from looking the name up.
        let is_same = source::known(&held)?.identity == node.identity;
        let is_same = mutated("guest.names.any-file-will-do", is_same, true);
        if is_same { Ok(held) } else { Err(Errno::STALE) }
    }

    /// Asks the source for the attributes of a node.
    pub fn look(&self, node: &Node) -> Result<Attributes> {
        let (folder, name) = node.place();
        if let Some(held) = node.held() {
            return source::stat(held);
        }
        let folder = self.folder(folder)?;
        let seen = source::look(&folder, &name).map_err(source::gone_is_stale)?;
        if seen.identity == node.identity { Ok(seen) } else { Err(Errno::STALE) }
    }
}

impl Table {
    /// Returns the nodes of a file: the main one, and the split one if there is one.
    fn of(&self, identity: Identity) -> Vec<Arc<Node>> {
        let split = self.splits.get(&identity).map(|it| it.id);
        let ids = self.mains.get(&identity).copied().into_iter().chain(split);
        ids.filter_map(|id| self.by_id.get(&id).cloned()).collect()
    }

    /// Returns the nodes at a place.
    fn all_at(&self, folder: u64, name: &OsStr) -> impl Iterator<Item = &Arc<Node>> {
        let maybe = self.places.at(folder, name).filter_map(|id| self.by_id.get(&id));
        maybe.filter(move |node| {
            let state = lock(&node.state);
            state.folder == folder && *state.name == *name
        })
    }

    /// Moves a node to a place, if it is not there already.
    fn moved(&mut self, node: &Node, folder: u64, name: &OsStr) {
        let mut state = lock(&node.state);
        if node.id == ROOT || (state.folder == folder && *state.name == *name) {
            return;
        }
        self.places.remove(state.folder, &state.name, node.id);
        self.places.insert(folder, name, node.id);
        state.folder = folder;
        state.name = name.into();
    }

    /// Allocates the number of a new file: its inode number, unless that is taken.
    fn new_main(&mut self, seen: &Attributes, folder: u64, name: &OsStr) -> u64 {
        let inode = seen.identity.inode;
        let is_free = inode > ROOT && inode < OWN_NUMBERS && !self.by_id.contains_key(&inode);
        let id = if is_free { inode } else { self.next_own };
        self.next_own += u64::from(!is_free);
        self.mains.insert(seen.identity, id);
        self.insert(id, seen, folder, name);
        id
    }

    fn insert(&mut self, id: u64, seen: &Attributes, folder: u64, name: &OsStr) -> Arc<Node> {
        let node = Arc::new(Node::new(id, seen, folder, name));
        self.by_id.insert(id, node.clone());
        self.places.insert(folder, name, id);
        node
    }
}

impl Node {
    fn new(id: u64, seen: &Attributes, folder: u64, name: &OsStr) -> Self {
        let state = State {
            folder,
            name: name.into(),
            order: 0,
            lookups: 0,
            told: seen.stamp,
            since: Instant::now(),
            pages_are_good: false,
            held: None,
        };
        Self { id, identity: seen.identity, state: Mutex::new(state) }
    }
}

#[cfg(test)]
#[path = "nodes_tests.rs"]
mod tests;
