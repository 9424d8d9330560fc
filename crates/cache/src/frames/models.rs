//! Model of a frame that is reused while a queue copies out of it.

use std::sync::Arc;

use flowstone_block::model::{UnsafeCell, check, spawn};
use flowstone_block::sync::Mutex;

use super::*;

/// The state under the table's lock: the free frames, and the frame that holds a block.
struct Table {
    free: FreeFrames,
    held: Option<Frame>,
}

/// Content of the frame. (Frames themselves are memory that loom does not see.)
struct Held(UnsafeCell<u64>);

// SAFETY: loom checks that it is not written while another thread reads it.
unsafe impl Sync for Held {}

#[test]
fn a_frame_is_used_again_when_those_who_read_it_are_done() {
    check("cache, frames", 5, || {
        let memory = Memory::new(1).unwrap();
        let mut free = FreeFrames::new(1);
        let held = free.take(&memory);
        let table = Mutex::new(Table { free, held });
        let shared = Arc::new((memory, table, Held(UnsafeCell::new(7))));
        let readers = [(); 2].map(|()| {
            let shared = Arc::clone(&shared);
            spawn(move || {
                let (memory, table, held) = &*shared;
                let table = table.lock().unwrap();
                let Some(frame) = table.held else { return };
                memory.pin(frame);
                drop(table);
                // SAFETY: as above.
                assert_eq!(held.0.with(|data| unsafe { *data }), 7);
                memory.unpin(frame);
            })
        });
        let (memory, table, held) = &*shared;
        for _ in 0..2 {
            let mut table = table.lock().unwrap();
            if let Some(frame) = table.held.take() {
                table.free.give_back(memory, frame);
            }
            if table.free.take(memory).is_some() {
                // For another block.
                // SAFETY: as above.
                held.0.with_mut(|data| unsafe { *data = 8 });
            }
        }
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}
