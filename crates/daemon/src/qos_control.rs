//! Limits and weights that are changed while disks run.

use flowstone_block::{Error, Result};
use flowstone_qos::{Limit, QosReport, Weight};
use serde_json::{Value, json};

use crate::control::DiskChange;
use crate::disk::Disk;

/// What is new of a disk's share.
#[derive(Clone, Copy, Debug)]
pub struct NewShare {
    pub limit: Option<Limit>,
    pub weight: Option<Weight>,
}

impl Disk {
    /// Changes what is given, all of it or nothing, but that a size stays when the rest cannot be
    /// kept. Returns what holds then.
    /// `keep` keeps what is new of its share over the end of the daemon, and what it returns is
    /// held until that is in force: it is kept first, so that what cannot be kept is not set.
    pub fn change<Order>(
        &self,
        change: &DiskChange,
        keep: impl FnOnce(&NewShare) -> Result<Order>,
    ) -> Result<Value> {
        let what = format!("disk set {}", self.name);
        let refuse = |why| Error::invalid(&what, why, ADVICE);
        let limit = change.limit.as_deref().map(str::parse::<Limit>).transpose().map_err(refuse)?;
        let weight = change.weight.map(Weight::new).transpose().map_err(refuse)?;
        // First: it may take for ever.
        let grown = change.size.map(|size| self.grow(size)).transpose()?;
        let _in_order = keep(&NewShare { limit, weight })?;
        if let Some(limit) = limit {
            self.stack.limits.set_limit(limit);
        }
        if let Some(weight) = weight {
            self.stack.limits.set_weight(weight);
            self.stack.share.set_weight(weight);
        }
        let mut now = json!(QosReport::of(&self.stack.limits, &self.stack.share));
        now["capacity_bytes"] = json!(self.shared.capacity().bytes());
        if let Some((capacity, is_told)) = grown {
            now["capacity_bytes"] = json!(capacity.bytes());
            now["guest_told"] = json!(is_told);
        }
        Ok(now)
    }
}

const ADVICE: &str = "see `flowstone help disk set`";
