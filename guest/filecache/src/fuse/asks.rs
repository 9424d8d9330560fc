//! Requests that need the source.

use std::ffi::OsStr;

use rustix::io::{Errno, Result};

use super::replies::{done, entry};
use super::{Answers, caller};
use crate::files::Files;
use crate::files::names::New;
use crate::library::{INodeNo, ReplyEmpty, ReplyEntry, Request};
use crate::requests::{Ask, Nobody, Outcome, Owed, Reply};

impl Answers {
    /// Runs an operation at the source that may change a file, and counts it as a change.
    pub fn change<R: Reply, T: Outcome + 'static>(
        &self,
        by: &Request,
        reply: R,
        work: impl Fn(&Files) -> Result<T> + Send + Sync + 'static,
        send: impl Fn(&Files, R, T) + Send + Sync + 'static,
    ) {
        let work = move |files: &Files| {
            let result = work(files);
            files.changes.one_more();
            result
        };
        self.ask(by, reply, work, send);
    }

    /// Runs a request that only the source can answer.
    pub fn ask<R: Reply, T: Outcome + 'static>(
        &self,
        by: &Request,
        reply: R,
        work: impl Fn(&Files) -> Result<T> + Send + Sync + 'static,
        send: impl Fn(&Files, R, T) + Send + Sync + 'static,
    ) {
        let work = move |files: &Files, _: &Owed<R>, ask| (ask == Ask::Source).then(|| work(files));
        self.requests.ask(by.pid(), reply, work, send);
    }

    /// The same for extended attributes, if the mount has any.
    pub fn ask_for_xattr<R: Reply, T: Outcome + 'static>(
        &self,
        by: &Request,
        reply: R,
        work: impl Fn(&Files) -> Result<T> + Send + Sync + 'static,
        send: impl Fn(&Files, R, T) + Send + Sync + 'static,
    ) {
        if self.has_xattrs {
            // Some change the file.
            self.change(by, reply, work, send);
        } else {
            reply.fail(Errno::NOSYS);
        }
    }

    /// Runs a close, for which no caller waits; it is done even when the source is down.
    pub fn give_back(&self, by: &Request, work: impl Fn(&Files) + Send + Sync + 'static) {
        let work = move |files: &Files| {
            work(files);
            Ok(())
        };
        self.ask(by, Nobody, work, |_, _, ()| {});
    }

    /// Creates a file that is not a regular one.
    pub fn make(&self, by: &Request, parent: INodeNo, name: &OsStr, what: New, reply: ReplyEntry) {
        let (caller, name) = (caller(by), name.to_owned());
        self.change(by, reply, move |files| files.make(parent.0, &name, &what, &caller), entry);
    }

    /// Removes a name.
    pub fn remove(
        &self,
        by: &Request,
        parent: INodeNo,
        name: &OsStr,
        folder: bool,
        to: ReplyEmpty,
    ) {
        let (caller, name) = (caller(by), name.to_owned());
        self.change(by, to, move |files| files.remove(parent.0, &name, folder, &caller), done);
    }
}
