//! The VM of a disk, as far as the configuration says it.

use std::str::FromStr;

use flowstone_block::parse_size;

/// As of a disk.
const NAME_BYTES_MAX: usize = 128;
const USE: &str = "name=NAME,cpus=N,memory=SIZE,weight=N";

/// Which VM a disk belongs to, and what that has of the host, where it is not to be found out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmSpec {
    /// Disks with the same one belong to one VM.
    pub name: Option<String>,
    /// vCPUs.
    pub cpus: Option<u32>,
    /// Memory.
    pub memory_bytes: Option<u64>,
    /// What it gets of the devices that its disks are on, where that is not to follow from these.
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
                "name"
                    if (1..=NAME_BYTES_MAX).contains(&value.len())
                        && !value.contains(char::is_control) =>
                {
                    spec.name = Some(value.to_owned());
                }
                "cpus" => {
                    let cpus = value.parse().ok().filter(|cpus| *cpus > 0);
                    spec.cpus = Some(cpus.ok_or_else(wrong)?);
                }
                "memory" => {
                    let bytes = parse_size(value).ok().filter(|bytes| *bytes > 0);
                    spec.memory_bytes = Some(bytes.ok_or_else(wrong)?);
                }
                "weight" => {
                    let weight = value.parse().ok().filter(|weight| *weight > 0);
                    spec.weight = Some(weight.ok_or_else(wrong)?);
                }
                _ => return Err(wrong()),
            }
        }
        Ok(spec)
    }
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
