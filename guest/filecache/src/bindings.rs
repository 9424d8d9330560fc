//! Bindings: the open node of each file, its mode, and its number of opens. The kernel does the
//! same accounting; a close reaches us after the kernel has done its part, so a node that is closed
//! here is closed there.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use flowstone_memory::mutated;

use crate::callers::Caller;
use crate::copy::Copy;
use crate::handles::Handle;
use crate::kernel::Backing;
use crate::lock::lock;
use crate::nodes::Node;
use crate::open_mode::{Answer, Ask, Mode, answer};
use crate::stamp::Identity;

/// All open files.
#[derive(Default)]
pub struct Bindings {
    files: Mutex<HashMap<Identity, OpenFile>>,
}

/// An open file.
#[derive(Default)]
struct OpenFile {
    main: Option<Binding>,
    split_opens: u32,
    /// Holds the file while it is open: its name may lead to another file meanwhile.
    anchor: Option<Arc<OwnedFd>>,
    /// The copy of a file that was opened without asking the source.
    trusted: Option<Arc<Copy>>,
}

/// A node that is open in some mode.
struct Binding {
    node: Arc<Node>,
    mode: Mode,
    opens: u32,
    caller: Caller,
    copy: Option<Arc<Copy>>,
    backing: Option<Arc<Backing>>,
    /// The source's file of an open in mode Copy, to compare the copy with.
    checked_by: Option<Arc<File>>,
}

/// The objects that an open has prepared for its binding.
#[derive(Default)]
pub struct Prepared {
    /// The fresh copy.
    pub copy: Option<Arc<Copy>>,
    /// The kernel's registration of the source's file.
    pub backing: Option<Arc<Backing>>,
    /// The source's file.
    pub file: Option<Arc<File>>,
    /// The anchor of the file.
    pub anchor: Option<Arc<OwnedFd>>,
}

impl Prepared {
    /// Returns whether the daemon has a file to read: a copy can be read until it is dropped.
    fn something_to_read(&self) -> bool {
        self.file.is_some() || self.copy.is_some()
    }
}

/// The result of binding an open.
pub enum Bound {
    /// It is bound; with the kernel's registration of the backing file.
    As(Mode, Option<Arc<Backing>>),
    /// Something is missing: the kernel's registration of a file, or the file.
    Needs(Mode),
    /// The kernel must look the name up again, to open another node.
    Elsewhere,
}

/// An open copy, for comparison with the source.
pub struct OpenCopy {
    /// The node.
    pub node: Arc<Node>,
    /// The copy.
    pub copy: Arc<Copy>,
    /// The source's file, if the open has opened it.
    pub file: Option<Arc<File>>,
    /// The caller of the open.
    pub caller: Caller,
}

impl Bindings {
    /// Binds a node for an open of `caller`, or returns what is missing. `ask` has what is not
    /// known here; the rest is filled in.
    pub fn bind(&self, node: &Arc<Node>, caller: &Caller, ask: &Ask, has: &mut Prepared) -> Bound {
        let mut files = lock(&self.files);
        let identity = node.identity;
        let file = files.entry(identity).or_default();
        let bound = file.bind(node, caller, ask, has);
        if file.is_closed() {
            files.remove(&identity);
        } else if file.anchor.is_none() {
            file.anchor.clone_from(&has.anchor);
            file.trusted.clone_from(&has.copy);
        }
        bound
    }

    /// Returns whether a file is open.
    pub fn is_open(&self, identity: Identity) -> bool {
        lock(&self.files).contains_key(&identity)
    }

    /// Returns whether writes of a node may be kept back: the kernel must not have any of its files
    /// open itself.
    pub fn suits_write_back(&self, node: &Node) -> bool {
        lock(&self.files).get(&node.identity).is_none_or(|file| {
            let is_plain = file.main.as_ref().is_none_or(|main| main.mode == Mode::Plain);
            is_plain && file.split_opens == 0
        })
    }

    /// Returns the anchor of a node's file, if it is open and has one.
    pub fn anchor(&self, node: &Node) -> Option<Arc<OwnedFd>> {
        lock(&self.files).get(&node.identity)?.anchor.clone()
    }

    /// Returns the copy of a node that the kernel reads directly (mode Copy).
    pub fn copy_in_kernel(&self, node: &Node) -> Option<Arc<Copy>> {
        let files = lock(&self.files);
        let main = files.get(&node.identity)?.main.as_ref()?;
        let is_it = main.mode == Mode::Copy && main.node.id == node.id;
        main.copy.clone().filter(|_| is_it)
    }

    /// Returns the copy of a node that was opened on trust.
    pub fn trusted_copy(&self, node: &Node) -> Option<Arc<Copy>> {
        lock(&self.files).get(&node.identity)?.trusted.clone()
    }

    /// Removes a closed handle. Returns whether the name can lead to the main node again: the split
    /// node is closed, or the whole file.
    pub fn unbind(&self, handle: &Handle) -> bool {
        let mut files = lock(&self.files);
        let Some(file) = files.get_mut(&handle.node.identity) else { return false };

        let mut unbound = None;
        if handle.mode == Mode::Direct {
            file.split_opens -= 1;
        } else if let Some(main) = &mut file.main {
            main.opens -= 1;
            unbound = file.main.take_if(|main| main.opens == 0);
        }
        let joins = file.is_closed() || (handle.mode == Mode::Direct && file.split_opens == 0);
        if file.is_closed() {
            files.remove(&handle.node.identity);
        }
        drop(files);
        // Outside the lock: closes a file of the source, which may hang.
        drop(unbound);
        joins
    }

    /// Returns the open copy of a file.
    pub fn open_copy(&self, identity: Identity) -> Option<OpenCopy> {
        lock(&self.files).get(&identity)?.main.as_ref()?.open_copy()
    }

    /// Returns all open copies.
    pub fn open_copies(&self) -> Vec<OpenCopy> {
        let files = lock(&self.files);
        let bound = files.values().filter_map(|file| file.main.as_ref());
        bound.filter_map(Binding::open_copy).collect()
    }

    /// Returns the bytes of open copies.
    pub fn pinned_bytes(&self) -> u64 {
        let files = lock(&self.files);
        let bound = files.values().filter_map(|file| file.main.as_ref());
        bound.filter_map(|it| it.copy.as_ref()).map(|copy| copy.space()).sum()
    }
}

impl OpenFile {
    fn is_closed(&self) -> bool {
        self.main.is_none() && self.split_opens == 0
    }

    fn bind(&mut self, node: &Arc<Node>, caller: &Caller, ask: &Ask, has: &mut Prepared) -> Bound {
        let main = self.main.as_ref();
        // A writer may have opened the file since the copy was checked, and the node may be bound
        // to an older copy.
        let bound_copy = main.and_then(|it| it.copy.as_ref());
        has.copy = has.copy.take().filter(|copy| {
            let is_current = copy.is_current();
            let is_current = mutated("guest.bind.takes-a-retired-copy", is_current, true);
            is_current && bound_copy.is_none_or(|bound| Arc::ptr_eq(bound, copy))
        });
        let ask = Ask {
            bound: main.map(|it| it.mode),
            other_is_open: self.split_opens > 0,
            has_fresh_copy: has.copy.is_some(),
            ids_fit: caller.groups.is_some() && main.is_none_or(|it| it.caller == *caller),
            ..*ask
        };
        let Answer::As(mode) = answer(&ask) else { return Bound::Elsewhere };
        if mode == Mode::Direct {
            let Some(_) = has.file else { return Bound::Needs(mode) };
            self.split_opens += 1;
            return Bound::As(mode, None);
        }
        if self.main.is_none() {
            match Binding::new(node, mode, caller, has) {
                Some(binding) => self.main = Some(binding),
                None => return Bound::Needs(mode),
            }
        } else if mode == Mode::Plain && !has.something_to_read() {
            return Bound::Needs(mode);
        }
        let Some(main) = &mut self.main else { return Bound::Elsewhere };
        main.opens += 1;
        Bound::As(mode, main.backing.clone())
    }
}

impl Binding {
    /// Makes the binding of a node's first open, if everything that it needs is there.
    fn new(node: &Arc<Node>, mode: Mode, caller: &Caller, has: &Prepared) -> Option<Self> {
        let copy = has.copy.clone().filter(|_| mode == Mode::Copy);
        let backing = match mode {
            Mode::Copy => Some(copy.as_ref()?.backing.get()?.clone()),
            Mode::Source => Some(has.backing.clone()?),
            Mode::Plain | Mode::Direct => {
                has.something_to_read().then_some(())?;
                None
            }
        };
        let checked_by = has.file.clone().filter(|_| mode == Mode::Copy);
        let (node, caller) = (node.clone(), caller.clone());
        Some(Self { node, mode, opens: 0, caller, copy, backing, checked_by })
    }

    fn open_copy(&self) -> Option<OpenCopy> {
        let copy = self.copy.clone()?;
        let (node, caller) = (self.node.clone(), self.caller.clone());
        Some(OpenCopy { node, copy, file: self.checked_by.clone(), caller })
    }
}

#[cfg(test)]
#[path = "bindings_tests.rs"]
mod tests;
