//! Injected faults.

use std::ops::Range;

use flowstone_block::Errno;
use flowstone_fileio::{FileOffset, FileOp};

/// The kinds of calls to the file, by which faults are selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// [`FileOp::Read`]
    Read,
    /// [`FileOp::Write`]
    Write,
    /// [`FileOp::Datasync`]
    Datasync,
    /// [`FileOp::Punch`] and [`FileOp::Discard`]
    Punch,
    /// [`FileOp::Zero`] and [`FileOp::Clear`]
    Zero,
    /// [`FileOp::Allocate`]
    Allocate,
    /// [`FileIo::set_size`](flowstone_fileio::FileIo::set_size)
    SetSize,
}

/// A fault of the next call of its kind and range that is submitted.
///
/// Of several faults that match a call, the first one injected strikes.
#[derive(Clone, Debug)]
pub struct Fault {
    effect: Effect,
    call: Option<Call>,
    range: Option<Range<u64>>,
    skipped: u64,
    always: bool,
}

/// The effect of a fault.
#[derive(Clone, Copy, Debug)]
pub enum Effect {
    Fail(Errno, Landed),
    Lose,
    Misdirect(FileOffset),
}

/// The part of a failing call that has been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landed {
    /// Nothing.
    Nothing,
    /// The first half of its sectors, or pages.
    FirstHalf,
    /// The second half: a host executes the parts of a call in any order.
    SecondHalf,
    /// Everything.
    Whole,
}

impl Landed {
    /// All values, for tests that try each.
    pub const ALL: [Self; 4] = [Self::Nothing, Self::FirstHalf, Self::SecondHalf, Self::Whole];

    /// Cycles through the values by number.
    pub const fn nth(number: u64) -> Self {
        Self::ALL[(number % 4) as usize]
    }

    /// Returns the part of a range that is done, in multiples of `unit` bytes.
    pub fn part_of(self, range: Range<u64>, unit: u64) -> Range<u64> {
        let middle = range.start + (range.end - range.start) / 2 / unit * unit;
        match self {
            Self::Nothing => range.start..range.start,
            Self::FirstHalf => range.start..middle,
            Self::SecondHalf => middle..range.end,
            Self::Whole => range,
        }
    }
}

impl Fault {
    /// The call fails and does nothing. A failing datasync does more harm: what it should have made
    /// durable is not made so by any later, successful one either, as with a kernel that reports a
    /// lost write once.
    pub const fn fail(errno: Errno) -> Self {
        Self::new(Effect::Fail(errno, Landed::Nothing), None)
    }

    /// The call fails after the first half of its work.
    pub const fn fail_partly(errno: Errno) -> Self {
        Self::fail(errno).landed(Landed::FirstHalf)
    }

    /// Sets the part of its work that a failing call has done. A datasync has either made
    /// everything durable in spite of its error, or nothing; a change of size has no parts; a read
    /// that fails after a part leaves all of its data in memory.
    #[must_use]
    pub const fn landed(mut self, landed: Landed) -> Self {
        if let Effect::Fail(errno, _) = self.effect {
            self.effect = Effect::Fail(errno, landed);
        }
        self
    }

    /// The call reports success and does nothing. A read leaves its memory unchanged; a datasync
    /// makes nothing durable.
    pub const fn lose() -> Self {
        Self::new(Effect::Lose, None)
    }

    /// The write reports success, but writes to `target` instead. Strikes writes only.
    pub const fn misdirect(target: FileOffset) -> Self {
        Self::new(Effect::Misdirect(target), Some(Call::Write))
    }

    const fn new(effect: Effect, call: Option<Call>) -> Self {
        Self { effect, call, range: None, skipped: 0, always: false }
    }

    /// Restricts the fault to calls of this kind.
    #[must_use]
    pub const fn on(mut self, call: Call) -> Self {
        self.call = Some(call);
        self
    }

    /// Restricts the fault to calls that touch these bytes of the file. Datasyncs and changes of
    /// size touch none.
    #[must_use]
    pub const fn within(mut self, bytes: Range<u64>) -> Self {
        self.range = Some(bytes);
        self
    }

    /// Skips this many calls that it would strike.
    #[must_use]
    pub const fn after(mut self, calls: u64) -> Self {
        self.skipped = calls;
        self
    }

    /// Makes it strike repeatedly, until the faults are cleared.
    #[must_use]
    pub const fn always(mut self) -> Self {
        self.always = true;
        self
    }

    fn matches(&self, call: Call, touched: &Range<u64>) -> bool {
        let overlaps = |bytes: &Range<u64>| bytes.start < touched.end && touched.start < bytes.end;
        self.call.is_none_or(|wanted| wanted == call) && self.range.as_ref().is_none_or(overlaps)
    }
}

/// The faults that wait for their calls.
#[derive(Default)]
pub struct Faults {
    pub waiting: Vec<Fault>,
    /// Number of calls struck.
    pub struck: u64,
}

impl Faults {
    /// Returns the effect on this call.
    pub fn strike(&mut self, call: Call, touched: &Range<u64>) -> Option<Effect> {
        let due = |fault: &mut Fault| {
            let matches = fault.matches(call, touched);
            if matches && fault.skipped > 0 {
                fault.skipped -= 1;
                return false;
            }
            matches
        };
        // All of them count the call, even if an earlier one strikes it.
        let due: Vec<usize> =
            (0..self.waiting.len()).filter(|n| due(&mut self.waiting[*n])).collect();
        let first = *due.first()?;
        self.struck += 1;
        let effect = self.waiting[first].effect;
        if !self.waiting[first].always {
            self.waiting.remove(first);
        }
        Some(effect)
    }
}

/// Returns the kind of an operation, and the bytes of the file that it touches.
pub fn call_of(op: FileOp) -> (Call, Range<u64>) {
    let (call, offset, bytes) = match op {
        FileOp::Read { offset, bytes } => (Call::Read, offset, bytes),
        FileOp::Write { offset, bytes, .. } => (Call::Write, offset, bytes),
        FileOp::Datasync => (Call::Datasync, FileOffset::new(0), 0),
        FileOp::Punch { offset, bytes } | FileOp::Discard { offset, bytes } => {
            (Call::Punch, offset, bytes)
        }
        FileOp::Clear { offset, bytes } | FileOp::Zero { offset, bytes } => {
            (Call::Zero, offset, bytes)
        }
        FileOp::Allocate { offset, bytes } => (Call::Allocate, offset, bytes),
    };
    (call, offset.get()..offset.get().saturating_add(bytes))
}
