//! The engine for files in memory: each request is a plain call on the thread that runs
//! the queue.
//!
//! io_uring hands requests on tmpfs to worker threads, which costs more than the copy itself.

use std::sync::Arc;

use flowstone_block::NextLook;

use crate::blocking::execute;
use crate::descriptor::Descriptors;
use crate::{FileChannel, FileCompletion, FileRequest};

/// A queue's way into a file in memory.
pub(crate) struct InlineChannel {
    file: Arc<Descriptors>,
    done: Vec<FileCompletion>,
}

impl InlineChannel {
    pub fn new(file: Arc<Descriptors>) -> Self {
        Self { file, done: Vec::new() }
    }
}

impl FileChannel for InlineChannel {
    fn submit(&mut self, request: FileRequest) {
        self.done.push(execute(&self.file, &request));
    }

    fn kick(&mut self) {}

    fn reap(&mut self, done: &mut Vec<FileCompletion>) {
        done.append(&mut self.done);
    }

    fn next_look(&mut self) -> NextLook {
        NextLook::now_if(!self.done.is_empty())
    }
}
