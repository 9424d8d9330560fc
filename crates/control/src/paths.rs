//! Mapping between HTTP requests and commands.

use std::path::PathBuf;

use flowstone_block::{Error, SizeChange};
use hyper::{Method, Uri};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::{Map, Value, json};
use toml::Table;

use super::{Command, DiskChange, DiskWord, Refused};

/// Characters of a name that are percent-encoded in a path.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// An HTTP request.
#[derive(Debug, PartialEq)]
pub struct Asked {
    pub method: Method,
    /// Path and query.
    pub target: String,
    pub body: Option<Value>,
}

impl Command {
    /// Returns the request for this command.
    pub(super) fn request(&self) -> Asked {
        let get = |target: &str| (Method::GET, target.to_owned(), None);
        let (method, target, body) = match self {
            Self::Stats { buckets: false } => get("/v1/stats"),
            Self::Stats { buckets: true } => get("/v1/stats?buckets=1"),
            Self::Reload => (Method::POST, "/v1/reload".into(), None),
            Self::Metrics => get("/metrics"),
            Self::Numa => get("/v1/numa"),
            Self::OpenApi => get("/v1/openapi.json"),
            Self::Events => get("/v1/events"),
            Self::Layout(disk) => get(&disk.target("/layout", &[])),
            Self::Disks => get("/v1/disks"),
            Self::Show(name) => get(&disk_target(name)),
            Self::Add(name, table) => (Method::PUT, disk_target(name), Some(json!(table))),
            Self::Remove { name, force } => {
                let force = if *force { "?force=1" } else { "" };
                (Method::DELETE, disk_target(name) + force, None)
            }
            Self::Change(disk, change) => {
                (Method::PATCH, disk.target("", &[]), Some(change.body()))
            }
            Self::Record { disk, coarse } => {
                let coarse = if *coarse { &["coarse=1"][..] } else { &[] };
                (Method::POST, disk.target("/record", coarse), None)
            }
            Self::Groups => get("/v1/groups"),
            Self::AddGroup(name, table) => (Method::PUT, group_target(name), Some(json!(table))),
            Self::RemoveGroup(name) => (Method::DELETE, group_target(name), None),
            Self::SetGroup { group, limit } => {
                (Method::PATCH, group_target(group), Some(json!({ "limit": limit })))
            }
        };
        Asked { method, target, body }
    }

    /// Parses a request; `body` is its body.
    pub(super) fn of(method: &Method, uri: &Uri, body: &[u8]) -> Result<Self, Refused> {
        let mut query = Query::of(uri)?;
        let path: Vec<&str> = uri.path().trim_start_matches('/').split('/').collect();
        let command = match (method.as_str(), &path[..]) {
            ("GET", ["v1", "stats"]) => Self::Stats { buckets: query.flag("buckets")? },
            ("POST", ["v1", "reload"]) => Self::Reload,
            ("GET", ["metrics"]) => Self::Metrics,
            ("GET", ["v1", "numa"]) => Self::Numa,
            ("GET", ["v1", "openapi.json"]) => Self::OpenApi,
            ("GET", ["v1", "events"]) => Self::Events,
            ("GET", ["v1", "disks"]) => Self::Disks,
            ("GET", ["v1", "disks", name]) => Self::Show(decoded(name)?),
            ("PUT", ["v1", "disks", name]) => Self::Add(decoded(name)?, keys_of("disk", body)?),
            ("DELETE", ["v1", "disks", name]) => {
                Self::Remove { name: decoded(name)?, force: query.flag("force")? }
            }
            ("PATCH", ["v1", "disks", name]) => {
                Self::Change(query.disk(name)?, DiskChange::of(object(body)?)?)
            }
            ("GET", ["v1", "disks", name, "layout"]) => Self::Layout(query.disk(name)?),
            ("POST", ["v1", "disks", name, "record"]) => {
                Self::Record { disk: query.disk(name)?, coarse: query.flag("coarse")? }
            }
            ("GET", ["v1", "groups"]) => Self::Groups,
            ("PUT", ["v1", "groups", name]) => {
                Self::AddGroup(decoded(name)?, keys_of("group", body)?)
            }
            ("DELETE", ["v1", "groups", name]) => Self::RemoveGroup(decoded(name)?),
            ("PATCH", ["v1", "groups", name]) => {
                let mut keys = object(body)?;
                let limit = text(&mut keys, "limit")?;
                nothing_else(&keys)?;
                let limit = limit.ok_or_else(|| refuse("`limit` is missing", "add it"))?;
                Self::SetGroup { group: decoded(name)?, limit }
            }
            _ => {
                let what = format!("{method} {}", uri.path());
                let why = "there is no such request";
                let error =
                    Error::invalid(what, why, "see docs/operating.md, \"The control socket\"");
                return Err(Refused::unknown(error));
            }
        };
        query.end()?;
        Ok(command)
    }
}

impl DiskWord {
    fn target(&self, below: &str, more: &[&str]) -> String {
        let path = self.path.as_ref().map(|path| path.display().to_string());
        let path = path.map(|path| format!("path={}", encoded(&path)));
        let query: Vec<String> =
            path.into_iter().chain(more.iter().map(|it| (*it).to_owned())).collect();
        let mark = if query.is_empty() { "" } else { "?" };
        format!("/v1/disks/{}{below}{mark}{}", encoded(&self.name), query.join("&"))
    }
}

impl DiskChange {
    fn body(&self) -> Value {
        let mut keys = Map::new();
        let size = self.size.map(|size| match size {
            SizeChange::To(bytes) => json!(bytes),
            SizeChange::Grow(bytes) => json!(format!("+{bytes}")),
            SizeChange::Shrink(bytes) => json!(format!("-{bytes}")),
        });
        let limit = self.limit.as_ref().map(|limit| json!(limit));
        let weight = self.weight.map(|weight| json!(weight));
        for (key, value) in [("size", size), ("limit", limit), ("weight", weight)] {
            value.and_then(|value| keys.insert(key.into(), value));
        }
        Value::Object(keys)
    }

    fn of(mut keys: Map<String, Value>) -> Result<Self, Refused> {
        let size = match keys.remove("size") {
            None => None,
            Some(Value::Number(number)) => {
                let bytes = number.as_u64();
                let whole = || refuse("`size` is no whole number of bytes", "write one");
                Some(SizeChange::To(bytes.ok_or_else(whole)?))
            }
            Some(Value::String(size)) => {
                Some(SizeChange::parse(&size).map_err(|why| refuse(why, "write e.g. 16G or +1G"))?)
            }
            Some(_) => return Err(refuse("`size` is no size", "write e.g. \"16G\" or \"+1G\"")),
        };
        let limit = text(&mut keys, "limit")?;
        let weight = match keys.remove("weight") {
            None => None,
            Some(value) => {
                let weight = value.as_u64().and_then(|weight| u32::try_from(weight).ok());
                let whole = || refuse("`weight` is no weight", "write a number from 1 to 10000");
                Some(weight.ok_or_else(whole)?)
            }
        };
        nothing_else(&keys)?;
        Ok(Self { size, limit, weight })
    }
}

/// The query of a request.
struct Query(Vec<(String, String)>);

impl Query {
    fn of(uri: &Uri) -> Result<Self, Refused> {
        let pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
        let pairs: Vec<_> = pairs.into_owned().collect();
        let is_text = pairs.iter().all(|(_, value)| !value.contains(char::REPLACEMENT_CHARACTER));
        let not_text = || refuse("the query is not UTF-8", "encode it as UTF-8");
        is_text.then_some(Self(pairs)).ok_or_else(not_text)
    }

    fn take(&mut self, key: &str) -> Option<String> {
        let index = self.0.iter().position(|(name, _)| name == key)?;
        Some(self.0.remove(index).1)
    }

    fn flag(&mut self, key: &str) -> Result<bool, Refused> {
        match self.take(key).as_deref() {
            None | Some("0" | "false") => Ok(false),
            Some("" | "1" | "true") => Ok(true),
            Some(_) => Err(refuse(format!("`{key}` is neither 0 nor 1"), "write one of them")),
        }
    }

    /// Returns the disk of this name, with the client's path from the query.
    fn disk(&mut self, name: &str) -> Result<DiskWord, Refused> {
        let path = self.take("path").map(PathBuf::from);
        if path.as_ref().is_some_and(|path| path.is_relative()) {
            let why = "the `path` is relative, and to which folder is not known here";
            return Err(refuse(why, "give it from / on"));
        }
        Ok(DiskWord { name: decoded(name)?, path })
    }

    fn end(self) -> Result<(), Refused> {
        match self.0.first() {
            None => Ok(()),
            Some((key, _)) => Err(refuse(format!("unknown `{key}` in the query"), "leave it out")),
        }
    }
}

fn refuse(why: impl Into<String>, advice: &'static str) -> Refused {
    Error::invalid("request", why.into(), advice).into()
}

fn disk_target(name: &str) -> String {
    format!("/v1/disks/{}", encoded(name))
}

fn group_target(name: &str) -> String {
    format!("/v1/groups/{}", encoded(name))
}

fn encoded(name: &str) -> String {
    utf8_percent_encode(name, ENCODED).to_string()
}

fn decoded(name: &str) -> Result<String, Refused> {
    let text = percent_decode_str(name).decode_utf8();
    Ok(text.map_err(|_| refuse("the name is not UTF-8", "encode it as UTF-8"))?.into_owned())
}

/// Parses a body that is a table of the configuration.
fn keys_of(table: &str, body: &[u8]) -> Result<Table, Refused> {
    serde_json::from_slice(body).map_err(|error| {
        let what = format!("request for a {table}");
        let advice = format!("send the keys of a [[{table}]] as an object of JSON");
        Error::invalid(what, error, advice).into()
    })
}

/// Parses a body that is a JSON object.
fn object(body: &[u8]) -> Result<Map<String, Value>, Refused> {
    serde_json::from_slice(body)
        .map_err(|error| refuse(error.to_string(), "send an object of JSON as the body"))
}

fn text(keys: &mut Map<String, Value>, key: &str) -> Result<Option<String>, Refused> {
    match keys.remove(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(refuse(format!("`{key}` is no string"), "write it in quotes")),
    }
}

fn nothing_else(keys: &Map<String, Value>) -> Result<(), Refused> {
    match keys.keys().next() {
        None => Ok(()),
        Some(key) => Err(refuse(format!("unknown key `{key}`"), "leave it out")),
    }
}

#[cfg(test)]
mod tests;
