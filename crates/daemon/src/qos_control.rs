//! Changes of limits and weights while disks run.

use flowstone_block::{Error, Result};
use flowstone_control::DiskChange;
use flowstone_qos::{Limit, QosReport, Weight};
use serde_json::{Value, json};

use crate::disk::Disk;

/// New limit and weight of a disk; `None` leaves a setting unchanged.
#[derive(Clone, Copy, Debug)]
pub struct NewShare {
    pub limit: Option<Limit>,
    pub weight: Option<Weight>,
}

impl Disk {
    /// Changes all given settings or none, except that a new size stays if the rest cannot be kept.
    /// Returns the resulting settings. `keep` persists the new share; it runs first, so that a
    /// share that cannot be persisted is not set, and the guard it returns is held until the share
    /// is in force.
    pub fn change<Order>(
        &self,
        change: &DiskChange,
        keep: impl FnOnce(&NewShare) -> Result<Order>,
    ) -> Result<Value> {
        let what = format!("disk set {}", self.name);
        let refuse = |why| Error::invalid(&what, why, ADVICE);
        let limit = change.limit.as_deref().map(str::parse::<Limit>).transpose().map_err(refuse)?;
        let weight = change.weight.map(Weight::new).transpose().map_err(refuse)?;
        // First: it may never return.
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
