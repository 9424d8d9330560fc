//! What policies know of a file and of its use.

/// A file, by a number that stays the same over reboots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// What a file is opened for.
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
    /// Which file.
    pub file: FileId,
    /// What for.
    pub usage: Use,
    /// Its size.
    pub bytes: u64,
    /// How often it has been used, this time included: its usage count in the history.
    pub uses: u32,
}

/// The way to the shared storage: what a miss costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Time of a round trip.
    pub round_trip_s: f64,
    /// Bandwidth.
    pub bytes_per_s: f64,
}

impl Link {
    /// Time to fetch a file.
    pub fn seconds(&self, bytes: u64) -> f64 {
        self.round_trip_s + bytes as f64 / self.bytes_per_s
    }
}

impl Default for Link {
    /// 1 ms and 100 Mbit/s, as long as nothing has been measured.
    fn default() -> Self {
        Self { round_trip_s: 0.001, bytes_per_s: 12.5e6 }
    }
}
