//! The kernel's FUSE messages, as far as needed to serve files (linux/fuse.h, protocol 7).

use std::os::unix::fs::MetadataExt;

/// Size of a request's header.
pub const HEAD_BYTES: usize = 40;
/// Largest write of the kernel.
pub const WRITE_BYTES_MAX: u32 = 1 << 20;

/// Makes the enum, and finds its values by their numbers.
macro_rules! calls {
    ($($name:ident = $number:literal,)*) => {
        /// The operation of a request; its number is that of the protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "the names are those of linux/fuse.h")]
        pub enum Call {
            $($name = $number,)*
            /// All others, which are not implemented.
            Other = 0,
        }

        impl Call {
            fn of(number: u32) -> Self {
                match number {
                    $($number => Self::$name,)*
                    _ => Self::Other,
                }
            }
        }
    };
}

calls! {
    Lookup = 1,
    Forget = 2,
    GetAttr = 3,
    SetAttr = 4,
    ReadLink = 5,
    Symlink = 6,
    Mkdir = 9,
    Unlink = 10,
    Rmdir = 11,
    Rename = 12,
    Open = 14,
    Read = 15,
    Write = 16,
    StatFs = 17,
    Release = 18,
    Fsync = 20,
    Flush = 25,
    Init = 26,
    OpenDir = 27,
    ReadDir = 28,
    ReleaseDir = 29,
    FsyncDir = 30,
    Create = 35,
    Interrupt = 36,
    BatchForget = 42,
    Fallocate = 43,
    Rename2 = 45,
    Lseek = 46,
    Tmpfile = 51,
}

impl Call {
    /// Returns whether the kernel expects no answer.
    pub fn is_silent(self) -> bool {
        matches!(self, Self::Forget | Self::BatchForget | Self::Interrupt)
    }
}

/// A request of the kernel.
pub struct Message {
    /// Its operation.
    pub call: Call,
    /// Its unique number, repeated in the answer.
    pub unique: u64,
    /// The node that it is about.
    pub node: u64,
    /// The user of the caller.
    pub uid: u32,
    /// The group of the caller.
    pub gid: u32,
    /// The calling thread.
    pub thread: u32,
    body: Vec<u8>,
}

impl Message {
    /// Parses a message read from the device.
    pub fn parse(bytes: &[u8]) -> Self {
        let number = u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes"));
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
        Self {
            call: Call::of(number),
            unique: word(8),
            node: word(16),
            uid: word(24) as u32,
            gid: (word(24) >> 32) as u32,
            thread: word(32) as u32,
            body: bytes[HEAD_BYTES..].to_vec(),
        }
    }

    /// Returns a field of eight bytes.
    pub fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.body[at..at + 8].try_into().expect("eight bytes"))
    }

    /// Returns a field of four bytes.
    pub fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.body[at..at + 4].try_into().expect("four bytes"))
    }

    /// Returns the bytes behind its fields.
    pub fn rest(&self, at: usize) -> &[u8] {
        &self.body[at..]
    }

    /// Returns the name behind its fields.
    pub fn name(&self, at: usize) -> String {
        self.names(at).next().unwrap_or_default()
    }

    /// Returns the names behind its fields.
    pub fn names(&self, at: usize) -> impl Iterator<Item = String> {
        let names = self.body[at..].split(|byte| *byte == 0);
        names.map(|name| String::from_utf8_lossy(name).into_owned())
    }
}

/// The body of an answer.
#[derive(Default)]
pub struct Answer(pub Vec<u8>);

impl Answer {
    /// Adds fields of eight bytes.
    pub fn u64s(mut self, fields: &[u64]) -> Self {
        fields.iter().for_each(|field| self.0.extend(field.to_le_bytes()));
        self
    }

    /// Adds fields of four bytes.
    pub fn u32s(mut self, fields: &[u32]) -> Self {
        fields.iter().for_each(|field| self.0.extend(field.to_le_bytes()));
        self
    }

    /// Adds the attributes of a file.
    pub fn attributes(self, node: u64, meta: &std::fs::Metadata) -> Self {
        let nanos = [meta.atime_nsec(), meta.mtime_nsec(), meta.ctime_nsec()];
        let times = [meta.atime(), meta.mtime(), meta.ctime()].map(|time| time as u64);
        let [atime, mtime, ctime] = nanos.map(|time| time as u32);
        self.u64s(&[node, meta.size(), meta.blocks()])
            .u64s(&times)
            .u32s(&[atime, mtime, ctime, meta.mode(), meta.nlink() as u32])
            .u32s(&[meta.uid(), meta.gid(), 0, 4096, 0])
    }

    /// Encodes the answer with its header.
    pub fn message(outcome: Result<Self, i32>, unique: u64) -> Vec<u8> {
        let (errno, body) = match outcome {
            Ok(answer) => (0, answer.0),
            Err(errno) => (errno, Vec::new()),
        };
        let head = Self::default().u32s(&[16 + body.len() as u32, (-errno) as u32]);
        let mut message = head.u64s(&[unique]).0;
        message.extend(body);
        message
    }
}
