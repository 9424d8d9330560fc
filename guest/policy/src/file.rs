//! A policy's view of a file and of its use.

/// A file, by a number that is stable over reboots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// The kind of an open of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Use {
    /// For reading only.
    Read,
    /// For writing, and perhaps for reading, too.
    Write,
}

/// One open of a file, as a policy sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The file.
    pub file: FileId,
    /// The kind of the open.
    pub usage: Use,
    /// The size of the file.
    pub bytes: u64,
    /// Its usage count in the history, this use included.
    pub uses: u32,
}

/// The link to the shared storage, which determines the cost of a miss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Round-trip time in seconds.
    pub round_trip_s: f64,
    /// Bandwidth in bytes per second.
    pub bytes_per_s: f64,
}

impl Link {
    /// Returns the time to fetch a file.
    pub fn seconds(&self, bytes: u64) -> f64 {
        self.round_trip_s + bytes as f64 / self.bytes_per_s
    }
}

impl Default for Link {
    /// Returns 1 ms and 100 Mbit/s, for lack of a measurement.
    fn default() -> Self {
        Self { round_trip_s: 0.001, bytes_per_s: 12.5e6 }
    }
}
