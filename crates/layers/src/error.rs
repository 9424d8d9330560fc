//! Fault injection: every n-th request of a kind fails, with a chosen errno.

use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flowstone_block::{Channel, Completion, Errno, Layer, NextLook, OpKind, QueueContext, Request};

/// The requests that fail, and their error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorRule {
    /// The kind of requests that fail; `None` for all.
    kind: Option<OpKind>,
    errno: Errno,
    /// Fail one request in `every`.
    every: u64,
}

impl FromStr for ErrorRule {
    type Err = String;

    /// Parses `OP[:ERRNO[:EVERY]]`, e.g. `write`, `write:enospc`, `any:eio:100`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(':');
        let kind = parse_kind(parts.next().unwrap_or_default())?;
        let errno = parts.next().map_or(Ok(Errno::IO), parse_errno)?;
        let every =
            match parts.next() {
                None => 1,
                Some(part) => part.parse().ok().filter(|every| *every > 0).ok_or_else(|| {
                    format!("`{part}` must be a number from 1 on: one request in N")
                })?,
            };
        match parts.next() {
            None => Ok(Self { kind, errno, every }),
            Some(_) => Err(format!("`{text}` is too long; write OP[:ERRNO[:EVERY]]")),
        }
    }
}

fn parse_kind(text: &str) -> Result<Option<OpKind>, String> {
    if text == "any" {
        return Ok(None);
    }
    let found = OpKind::ALL.into_iter().find(|kind| kind.name() == text);
    found.map(Some).ok_or_else(|| {
        format!("`{text}` is not an operation; use any, read, write, flush, discard, write_zeroes")
    })
}

fn parse_errno(text: &str) -> Result<Errno, String> {
    match text {
        "eio" => Ok(Errno::IO),
        "enospc" => Ok(Errno::NOSPC),
        "eopnotsupp" => Ok(Errno::OPNOTSUPP),
        _ => Err(format!("`{text}` is not an errno of this layer; use eio, enospc, eopnotsupp")),
    }
}

/// The fault injection layer.
pub struct Errors {
    base: Arc<dyn Layer>,
    rule: ErrorRule,
    seen: Arc<AtomicU64>,
}

struct ErrorsChannel {
    base: Box<dyn Channel>,
    rule: ErrorRule,
    seen: Arc<AtomicU64>,
    failed: Vec<Completion>,
}

impl Errors {
    /// Fails some of the requests to `base`; they do not reach it.
    pub fn new(base: Arc<dyn Layer>, rule: ErrorRule) -> Self {
        Self { base, rule, seen: Arc::default() }
    }
}

impl Layer for Errors {
    pass_to_base!(geometry);

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        Ok(Box::new(ErrorsChannel {
            base: self.base.channel(context)?,
            rule: self.rule,
            seen: Arc::clone(&self.seen),
            failed: Vec::new(),
        }))
    }
}

impl ErrorsChannel {
    fn fails(&self, request: &Request) -> bool {
        let meant = self.rule.kind.is_none_or(|kind| kind == request.op.kind());
        meant && (self.seen.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(self.rule.every)
    }
}

impl Channel for ErrorsChannel {
    pass_to_base!(kick, retire);

    fn submit(&mut self, request: Box<Request>) {
        if self.fails(&request) {
            self.failed.push(Completion { request, outcome: Err(self.rule.errno) });
        } else {
            self.base.submit(request);
        }
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.failed);
        self.base.reap(done);
    }

    fn next_look(&mut self) -> NextLook {
        NextLook::now_if(!self.failed.is_empty()).min(self.base.next_look())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_name_operation_errno_and_rate() {
        let rule = |kind, errno, every| Ok(ErrorRule { kind, errno, every });
        assert_eq!("write".parse(), rule(Some(OpKind::Write), Errno::IO, 1));
        assert_eq!("any:enospc:100".parse(), rule(None, Errno::NOSPC, 100));
        for text in ["", "write:efoo", "write:eio:0", "write:eio:1:2", "trim"] {
            assert!(text.parse::<ErrorRule>().is_err(), "{text} was accepted");
        }
    }
}
