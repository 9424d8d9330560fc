//! The configured VM of a disk.

use std::num::NonZeroU32;
use std::str::FromStr;

use flowstone_block::parse_size;

use super::NAME_BYTES_MAX;
use super::label::check_label;

const USE: &str = "name=NAME,cpus=N,memory=SIZE,weight=N";

/// The VM of a disk and its resources, where they are not to be detected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmSpec {
    /// Name of the VM; disks with the same name belong to one VM.
    pub name: Option<String>,
    /// Number of vCPUs.
    pub cpus: Option<u32>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Weight on the devices of its disks, if not derived from vCPUs and memory.
    pub weight: Option<u32>,
}

impl FromStr for VmSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut spec = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let wrong = || format!("`{part}` says nothing of a VM; use {USE}");
            match key {
                "name" if check_label("name", "VM", value, NAME_BYTES_MAX).is_ok() => {
                    spec.name = Some(value.to_owned());
                }
                "cpus" => spec.cpus = Some(positive(value).ok_or_else(wrong)?),
                "memory" => {
                    let bytes = parse_size(value).ok().filter(|bytes| *bytes > 0);
                    spec.memory_bytes = Some(bytes.ok_or_else(wrong)?);
                }
                "weight" => spec.weight = Some(positive(value).ok_or_else(wrong)?),
                _ => return Err(wrong()),
            }
        }
        Ok(spec)
    }
}

fn positive(text: &str) -> Option<u32> {
    text.parse().ok().map(NonZeroU32::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_is_named_and_measured() {
        let spec = VmSpec {
            name: Some("web".into()),
            cpus: Some(4),
            memory_bytes: Some(8 << 30),
            weight: Some(250),
        };
        assert_eq!("memory=8G,name=web,cpus=4,weight=250".parse(), Ok(spec));
        assert_eq!("".parse(), Ok(VmSpec::default()));
        for text in
            ["web", "name=", "cpus=0", "cpus=x", "memory=0", "weight=0", "weight=x", "name=a\nb"]
        {
            let why = text.parse::<VmSpec>().unwrap_err();
            assert!(why.ends_with(USE), "{why}");
        }
    }
}
