//! The parts of a configuration file that are not of one disk.

use std::path::PathBuf;

use serde::Deserialize;
use toml::{Spanned, Table};

use super::text::{one_line, optional_text, text_or_default, text_or_number};
use super::{DiskConfig, Refusal};
use crate::cache_config::{CacheConfig, CacheSize, PolicyKind};
use crate::pollers::{PollerChoice, PollersConfig};
use crate::qos_config::GroupTable;
use crate::{CpuList, CpuShare, SocketAccess, SocketGroup, SocketMode};

/// A configuration file: the disks are read one by one, so that a mistake in one costs no other.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConfigFile {
    pub control: Option<PathBuf>,
    /// Where the file caches of guests connect.
    #[serde(rename = "guest-agent", alias = "guest_agent")]
    guest_agent: Option<PathBuf>,
    /// The most that a cache of all disks may take.
    #[serde(default, deserialize_with = "optional_text")]
    cache: Option<CacheSize>,
    /// What the cache takes at least, however short the host's memory is.
    #[serde(default, deserialize_with = "optional_text", rename = "cache-min")]
    #[serde(alias = "cache_min")]
    cache_min: Option<CacheSize>,
    /// Decides what the cache keeps.
    #[serde(default, deserialize_with = "optional_text", rename = "cache-policy")]
    #[serde(alias = "cache_policy")]
    cache_policy: Option<PolicyKind>,
    /// Group of the agents' socket, and of the disks' where a disk does not say.
    #[serde(default, deserialize_with = "optional_text", rename = "socket-group")]
    #[serde(alias = "socket_group")]
    socket_group: Option<SocketGroup>,
    /// Mode of the agents' socket, and of the disks' where a disk does not say.
    #[serde(default, deserialize_with = "optional_text", rename = "socket-mode")]
    #[serde(alias = "socket_mode")]
    socket_mode: Option<SocketMode>,
    /// Which threads run queues.
    #[serde(default, deserialize_with = "text_or_number")]
    pollers: PollerChoice,
    /// CPUs that shared pollers are pinned to, in turn.
    #[serde(default, deserialize_with = "text_or_default", rename = "poller-cpus")]
    #[serde(alias = "poller_cpus")]
    poller_cpus: CpuList,
    /// What the daemon may use of the CPUs.
    #[serde(default, deserialize_with = "optional_text", rename = "cpu-budget")]
    #[serde(alias = "cpu_budget")]
    cpu_budget: Option<CpuShare>,
    #[serde(rename = "group", default)]
    pub groups: Vec<GroupTable>,
    #[serde(rename = "disk", default)]
    pub disks: Vec<Spanned<Table>>,
}

impl ConfigFile {
    /// The cache that it asks for.
    pub fn cache(&self) -> Result<Option<CacheConfig>, Refusal> {
        let Self { cache, cache_min, cache_policy, .. } = self;
        let Some(size) = *cache else {
            let says_how = cache_min.is_some() || cache_policy.is_some();
            let why = "cache-min or cache-policy without a cache".into();
            let advice = "add cache = SIZE, or remove them";
            return if says_how { Err(Refusal { why, advice }) } else { Ok(None) };
        };
        let made = CacheConfig::new(size, *cache_min, cache_policy.unwrap_or_default());
        let advice = "use a smaller cache-min";
        made.map(Some).map_err(|why| Refusal { why, advice })
    }

    /// Where guests' agents connect, and who may: as for disks.
    pub fn guest_agent(&self) -> Option<(PathBuf, SocketAccess)> {
        let access = SocketAccess { group: self.socket_group, mode: self.socket_mode };
        self.guest_agent.clone().map(|path| (path, access))
    }

    /// The threads that it asks for.
    pub fn pollers(&self) -> PollersConfig {
        let (cpus, budget) = (self.poller_cpus.clone(), self.cpu_budget);
        PollersConfig { choice: self.pollers, cpus, budget }
    }

    /// One of its disks, with what the file says of all.
    pub fn disk(&self, table: &Spanned<Table>) -> Result<DiskConfig, Refusal> {
        let disk = DiskConfig::deserialize(table.get_ref().clone()).map_err(|error| Refusal {
            why: one_line(&error.to_string()),
            advice: "see `man flowstone.toml` for the keys",
        })?;
        Ok(DiskConfig {
            socket_group: disk.socket_group.or(self.socket_group),
            socket_mode: disk.socket_mode.or(self.socket_mode),
            ..disk
        })
    }
}
