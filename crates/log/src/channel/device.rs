//! Estimates the device's latency and throughput from the records written to it: the latency of a
//! lone record, and the bytes per second. Their product is the number of bytes that must be in
//! flight to keep the device busy (as in BBR, Cardwell 2016, which measures a network path this
//! way).

use std::time::{Duration, Instant};

/// Size up to which a record is small: its latency is that of any request.
const SMALL_BYTES: u64 = 64 << 10;
/// Duration of one measurement of the rate.
const WINDOW: Duration = Duration::from_millis(50);
/// Inverse weight of a new latency in the mean.
const SMOOTHING: u32 = 8;

/// Estimate of one queue; see the module.
#[derive(Debug)]
pub struct Device {
    /// Latency of a small record with nothing else in flight.
    latency: Duration,
    /// Bytes written since the queue was created.
    written: u64,
    on_their_way: u32,
    window: Window,
    /// Highest rate of the window before, in bytes per second.
    rate: u64,
}

/// A period in which writes were in flight throughout.
#[derive(Debug)]
struct Window {
    since: Option<Instant>,
    written: u64,
}

/// State at the start of a record's write.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    at: Instant,
    bytes: u64,
    alone: bool,
}

impl Device {
    pub const fn new() -> Self {
        let window = Window { since: None, written: 0 };
        Self { latency: Duration::ZERO, written: 0, on_their_way: 0, window, rate: 0 }
    }

    /// Starts a write of `bytes` bytes.
    pub fn begin(&mut self, bytes: u64, at: Instant) -> Start {
        let alone = self.on_their_way == 0;
        if alone {
            self.window = Window { since: Some(at), written: self.written };
        }
        self.on_their_way += 1;
        Start { at, bytes, alone }
    }

    /// Ends a write.
    pub fn end(&mut self, start: Start, at: Instant) {
        self.on_their_way -= 1;
        self.written += start.bytes;
        let is_small = start.bytes <= SMALL_BYTES;
        if start.alone && is_small && self.on_their_way == 0 {
            let took = at.duration_since(start.at);
            self.latency = match self.latency {
                Duration::ZERO => took,
                before => before - before / SMOOTHING + took / SMOOTHING,
            };
        }
        let Some(since) = self.window.since else { return };
        let busy = at.duration_since(since);
        if busy >= WINDOW {
            let bytes = self.written - self.window.written;
            self.rate = (bytes as f64 / busy.as_secs_f64()) as u64;
            self.window = Window { since: Some(at), written: self.written };
        }
    }

    /// Returns the bytes that must be in flight to keep the device busy; 0 while unknown.
    pub fn busy_bytes(&self) -> u64 {
        (self.latency.as_secs_f64() * self.rate as f64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes records, `depth` at a time, to a device with this latency and a rate of `RATE` bytes
    /// per second.
    fn write(device: &mut Device, now: &mut Instant, depth: usize, bytes: u64, latency: Duration) {
        const RATE: u64 = 1 << 30;
        let mut free_at = *now;
        let mut starts = std::collections::VecDeque::new();
        for _ in 0..1000 {
            if starts.len() == depth {
                let (start, end) = starts.pop_front().unwrap();
                *now = end;
                device.end(start, end);
            }
            free_at = free_at.max(*now) + Duration::from_secs_f64(bytes as f64 / RATE as f64);
            starts.push_back((device.begin(bytes, *now), free_at.max(*now + latency)));
        }
        for (start, end) in starts {
            *now = end;
            device.end(start, end);
        }
    }

    #[test]
    fn latency_times_rate_is_found() {
        for latency in [Duration::from_micros(50), Duration::from_millis(5)] {
            let (mut device, mut now) = (Device::new(), Instant::now());
            write(&mut device, &mut now, 1, 4096, latency);
            write(&mut device, &mut now, 16, 1 << 20, latency);
            let expected = latency.as_secs_f64() * f64::from(1 << 30);
            let found = device.busy_bytes() as f64;
            assert!((found / expected - 1.0).abs() < 0.1, "{found} for {expected}");
        }
    }

    #[test]
    fn an_idle_time_is_not_counted() {
        let (mut device, mut now) = (Device::new(), Instant::now());
        write(&mut device, &mut now, 16, 1 << 20, Duration::from_micros(50));
        let rate = device.rate;
        now += Duration::from_secs(10);
        write(&mut device, &mut now, 16, 1 << 20, Duration::from_micros(50));
        assert!(device.rate * 10 > rate * 9, "{} after {rate}", device.rate);
    }
}
