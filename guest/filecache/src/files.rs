//! The files of a mount: the parts that its operations share, and their lock order.
//!
//! Lock order: `Bindings` and `Copies` are never held together, nor across a call to the source or
//! to the kernel. `Copy::updating` is held while a copy is brought up to date, which does call the
//! source; only `Copies`, `Node` and the copy's stamp are locked under it.

pub mod ahead;
pub mod attributes;
mod conflict;
mod dirty;
mod fill;
pub mod folders;
mod io;
pub mod locks;
pub mod names;
pub mod open;
mod refresh;
mod seen_by_open;
mod unasked;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use flowstone_memory::mutated;
use rustix::io::Result;

use self::ahead::Memory;
use self::fill::Fills;
use self::folders::Folder;
use self::locks::Locks;
use self::seen_by_open::Changes;
use crate::bindings::Bindings;
use crate::copies::Copies;
use crate::counters::{Counters, Report};
use crate::handles::{Handle, Numbered};
use crate::hearing::Hearing;
use crate::history_file::HistoryFile;
use crate::kernel::Kernel;
use crate::nodes::{News, Node, Nodes};
use crate::open_mode::Modes;
use crate::options::Options;
use crate::record::Recorders;
use crate::source::Source;
use crate::stamp::Attributes;
use crate::store::Store;
use crate::write_back::WriteBack;

/// The state of a mount.
pub struct Files {
    pub(crate) source: Source,
    pub(crate) nodes: Nodes,
    pub(crate) copies: Copies,
    pub(crate) bindings: Bindings,
    pub(crate) handles: Numbered<Handle>,
    pub(crate) folders: Numbered<Folder>,
    pub(crate) locks: Locks,
    pub(crate) fills: Fills,
    pub(crate) memory: Memory,
    pub(crate) counters: Counters,
    pub(crate) hearing: Hearing,
    pub(crate) write_back: WriteBack,
    pub(crate) recorders: Recorders,
    pub(crate) changes: Changes,
    pub(crate) window: Duration,
    pub(crate) trust: Duration,
    wanted_modes: Modes,
    /// The kernel supports passthrough, as far as is known.
    passes_through: AtomicBool,
    kernel: OnceLock<Kernel>,
}

impl Files {
    /// Makes a mount with no open files and no copies.
    pub fn new(
        options: &Options,
        source: Source,
        store: Store,
        history: Option<HistoryFile>,
    ) -> Result<Self> {
        let home = source.identity().device;
        Ok(Self {
            nodes: Nodes::new(&source)?,
            source,
            copies: Copies::new(
                store,
                options.place.budget(),
                options.new_policy(),
                home,
                options.windows.usage_threshold,
            ),
            bindings: Bindings::default(),
            handles: Numbered::default(),
            folders: Numbered::default(),
            locks: Locks::default(),
            fills: Fills::default(),
            memory: Memory::new(history),
            counters: Counters::default(),
            hearing: Hearing::default(),
            write_back: WriteBack::new(options.write_back),
            recorders: Recorders::default(),
            changes: Changes::default(),
            window: options.window,
            trust: options.trust,
            wanted_modes: options.modes,
            passes_through: AtomicBool::new(false),
            kernel: OnceLock::new(),
        })
    }

    /// Sets whether the kernel supports passthrough.
    pub fn kernel_passes_through(&self, can: bool) {
        self.passes_through.store(can, Ordering::Relaxed);
    }

    /// Sets the channel for notifications to the kernel.
    pub fn connect(&self, kernel: Kernel) {
        // Called once.
        let _ = self.kernel.set(kernel);
    }

    /// Returns the allowed modes.
    pub(crate) fn modes(&self) -> Modes {
        if self.passes_through.load(Ordering::Relaxed) { self.wanted_modes } else { Modes::PLAIN }
    }

    /// Processes attributes that the kernel is about to be told, or has asked the file for. Retires
    /// or refreshes a copy with another stamp. Returns what the kernel has to invalidate.
    pub(crate) fn learn(&self, node: &Arc<Node>, seen: &Attributes) -> News {
        if let Some(dirty) = self.write_back.of(node.identity) {
            // Its copy is compared when it is written back.
            return node.told(dirty.shown(*seen).stamp);
        }
        let news = node.told(seen.stamp);
        if seen.is_file() {
            if news.changed {
                self.changes.one_more();
            }
            let stale = self.copies.get(node.identity).filter(|it| !it.is_of(seen.stamp));
            let is_stale = mutated("guest.open.skips-comparison", stale.is_some(), false);
            if is_stale {
                self.bring_up_to_date(node, seen.stamp);
            }
        }
        news
    }

    /// Invalidates the attributes that the kernel caches of a node. Pages are not invalidated here:
    /// that may wait for a request that waits for us.
    pub(crate) fn take_back_attributes(&self, node: &Node) {
        if let Some(kernel) = self.kernel.get() {
            kernel.take_back_attributes(node.id);
        }
    }

    /// Returns the report of `stats`.
    pub fn report(&self) -> Report {
        let held = self.copies.holdings();
        Report {
            counters: self.counters.clone(),
            cached_files: held.files,
            cached_bytes: held.bytes,
            pinned_bytes: self.bindings.pinned_bytes(),
            dirty_bytes: self.write_back.bytes(),
            limit_bytes: held.limit.bytes,
            limit_by: held.limit.by.to_owned(),
            evictions: held.evictions,
            epochs: held.epochs,
            source: self.hearing.state(),
        }
    }
}
