//! Host files: the lower interface of the stack. [`FileIo`] makes a [`FileChannel`] for each queue,
//! and requests carry [`FileOffset`]s instead of guest sectors.
//!
//! Three engines implement the interface and behave alike: `uring` (the io_uring of the queue's
//! thread), `sync` (a pool of threads, for hosts without io_uring), and `inline` (plain calls on
//! the thread that runs the queue, for memory file systems, where a call never waits for a device).

mod again;
mod block_device;
mod blocking;
mod blocking_file;
mod descriptor;
mod direct;
mod engine;
mod holder;
mod holes;
mod host_calls;
mod host_file;
mod inline;
mod lock;
mod not_begun;
mod open;
mod page_cache;
mod part;
mod pool;
mod request;
mod seam;
mod uring;
mod zeroes;

pub use blocking_file::BlockingFile;
pub use engine::{Engine, EngineChoice};
pub use flowstone_host::may_ask_a_server;
pub use host_file::HostFile;
pub use lock::Access;
pub use open::{
    DirectChoice, FileArgs, FileOpener, FileWrapper, LockPatience, OpenOptions, create_sparse,
    open_host_file,
};
pub use part::PartFile;
pub use request::{FileCompletion, FileOffset, FileOp, FileRequest, MemoryList};
pub use seam::{FileChannel, FileIo, Punched};
