//! A descriptor that ends the sleep of its thread when it becomes readable.

use std::fs::File;
use std::sync::Arc;

use crate::Reactor;

/// Watches a descriptor for as long as it lives.
pub struct Watch {
    reactor: Reactor,
    slot: usize,
}

impl Watch {
    /// Watches `file` from the next sleep on.
    pub fn new(reactor: &Reactor, file: Arc<File>) -> Self {
        let slot = reactor.state().add_watch(file);
        Self { reactor: reactor.clone(), slot }
    }

    /// Returns whether it has become readable since the last call. Until this is called, no sleep
    /// waits for it; so a descriptor that stays readable does not end every sleep of its thread.
    pub fn take_ready(&self) -> bool {
        self.reactor.state().take_ready(self.slot)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.reactor.state().remove_watch(self.slot);
    }
}
