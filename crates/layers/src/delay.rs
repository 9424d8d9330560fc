//! Delays completions: by a fixed time, or by a random one, so that they are reordered.

use std::collections::BTreeMap;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flowstone_block::{Channel, Completion, Layer, NextLook, QueueContext, Request};

/// Shortest and longest delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayRange {
    min: Duration,
    max: Duration,
}

impl FromStr for DelayRange {
    type Err = String;

    /// Parses `2ms`, `500us`, or a range such as `0-5ms`.
    fn from_str(text: &str) -> Result<Self, String> {
        let explain = || format!("`{text}` is not a delay; write 2ms, 500us or a range like 0-5ms");
        let (number, unit) = if let Some(number) = text.strip_suffix("ms") {
            (number, 1000)
        } else if let Some(number) = text.strip_suffix("us") {
            (number, 1)
        } else {
            return Err(explain());
        };
        let (min, max) = number.split_once('-').unwrap_or((number, number));
        let micros = |part: &str| part.parse::<u32>().map_err(|_| explain());
        let time = |part| micros(part).map(|n| Duration::from_micros(u64::from(n) * unit));
        let range = Self { min: time(min)?, max: time(max)? };
        if range.min > range.max { Err(explain()) } else { Ok(range) }
    }
}

/// The delay layer.
pub struct Delay {
    base: Arc<dyn Layer>,
    range: DelayRange,
}

struct DelayChannel {
    base: Box<dyn Channel>,
    range: DelayRange,
    random: fastrand::Rng,
    /// Delayed completions, by the time of their release and a number of their own.
    held: BTreeMap<(Instant, u64), Completion>,
    numbered: u64,
    arrived: Vec<Completion>,
}

impl Delay {
    /// Delays the completions of `base`.
    pub fn new(base: Arc<dyn Layer>, range: DelayRange) -> Self {
        Self { base, range }
    }
}

impl Layer for Delay {
    pass_to_base!(geometry);

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        Ok(Box::new(DelayChannel {
            base: self.base.channel(context)?,
            range: self.range,
            random: fastrand::Rng::new(),
            held: BTreeMap::new(),
            numbered: 0,
            arrived: Vec::new(),
        }))
    }
}

impl DelayChannel {
    fn due(&mut self) -> Instant {
        let spread = (self.range.max - self.range.min).as_micros() as u64;
        let extra = Duration::from_micros(self.random.u64(0..=spread));
        Instant::now() + self.range.min + extra
    }

    fn hold_arrivals(&mut self) {
        let mut arrived = std::mem::take(&mut self.arrived);
        self.base.reap(&mut arrived);
        for completion in arrived.drain(..) {
            let due = self.due();
            self.numbered += 1;
            self.held.insert((due, self.numbered), completion);
        }
        self.arrived = arrived;
    }
}

impl Channel for DelayChannel {
    pass_to_base!(kick, retire);

    fn submit(&mut self, request: Box<Request>) {
        self.base.submit(request);
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        self.hold_arrivals();
        let now = Instant::now();
        while let Some(first) = self.held.first_entry()
            && first.key().0 <= now
        {
            done.push(first.remove());
        }
    }

    fn next_look(&mut self) -> NextLook {
        let first = self.held.first_key_value();
        let due = first.map_or(NextLook::OnWake, |((due, _), _)| NextLook::At(*due));
        due.min(self.base.next_look())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_a_time_or_a_range_of_times() {
        let range = |min, max| DelayRange {
            min: Duration::from_micros(min),
            max: Duration::from_micros(max),
        };
        assert_eq!("2ms".parse(), Ok(range(2000, 2000)));
        assert_eq!("0-5ms".parse(), Ok(range(0, 5000)));
        assert_eq!("10-20us".parse(), Ok(range(10, 20)));
        for text in ["", "5", "5s", "5-1ms", "-ms", "x-yms"] {
            assert!(text.parse::<DelayRange>().is_err(), "{text} was accepted");
        }
    }
}
