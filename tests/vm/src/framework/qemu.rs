//! The QEMU command line, computed from the description of a guest.
//!
//! Memory is a shared memfd, because a vhost-user back end maps the guest's memory.

use std::path::{Path, PathBuf};

use super::accel::Accel;
use super::artifacts::Artifacts;

/// The program.
pub const PROGRAM: &str = "qemu-system-x86_64";

/// Console log in a guest's folder.
pub const CONSOLE: &str = "console.log";
/// QMP socket in a guest's folder.
pub const QMP_SOCKET: &str = "qmp.sock";
/// Socket of the script channel in a guest's folder.
pub const AGENT_SOCKET: &str = "agent.sock";

/// The port of a guest's file cache.
const PORT: &str = "org.flowstone.guest.0";

/// One option and its value; empty for an option without one.
pub type Setting = (&'static str, String);

/// One vhost-user-blk disk of a guest.
#[derive(Clone, Debug)]
pub struct Disk {
    /// The daemon's socket.
    pub socket: PathBuf,
    /// Number of request queues.
    pub queues: u16,
    /// QEMU reconnects by itself when the daemon goes away.
    pub reconnect: bool,
}

/// One end of a network cable between two guests. Datagrams, so that either end may be restarted.
#[derive(Clone, Debug)]
pub struct Cable {
    /// The socket of this end.
    pub here: PathBuf,
    /// The socket of the other end.
    pub there: PathBuf,
}

/// A guest to boot.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Processors; a guest uses at most one queue per processor.
    pub cpus: u16,
    /// Memory at boot.
    pub memory_mib: u32,
    /// NUMA nodes, each with an equal part of the processors and of the memory.
    pub nodes: u16,
    /// Memory that can be plugged in while it runs.
    pub pluggable_mib: u32,
    /// Disks, `/dev/vda` first.
    pub disks: Vec<Disk>,
    /// Additions to the kernel's command line, such as parameters of modules.
    pub kernel_options: &'static str,
    /// Socket to the host for the guest's file cache; free page reporting is then enabled, too.
    pub guest_agent: Option<PathBuf>,
    /// The network: `eth0`.
    pub cable: Option<Cable>,
}

impl Machine {
    /// Makes a small guest with the given disks and one processor per queue.
    #[must_use]
    pub fn with_disks(disks: Vec<Disk>) -> Self {
        let queues = disks.iter().map(|disk| disk.queues).max().unwrap_or(1);
        let cpus = queues.max(2);
        Self {
            cpus,
            memory_mib: 512,
            nodes: 1,
            pluggable_mib: 0,
            disks,
            kernel_options: "",
            guest_agent: None,
            cable: None,
        }
    }

    /// Adds to the kernel's command line.
    #[must_use]
    pub fn with_kernel_options(mut self, options: &'static str) -> Self {
        self.kernel_options = options;
        self
    }

    /// Adds nodes.
    #[must_use]
    pub fn with_nodes(mut self, nodes: u16) -> Self {
        self.nodes = nodes;
        self
    }

    /// Adds a port to the host for a file cache.
    #[must_use]
    pub fn with_guest_agent(mut self, socket: &Path) -> Self {
        self.guest_agent = Some(socket.to_owned());
        self
    }

    /// Adds a network card at an end of a cable.
    #[must_use]
    pub fn with_cable(mut self, cable: Cable) -> Self {
        self.cable = Some(cable);
        self
    }

    /// Returns the settings with which a user's guest gets the same disks.
    #[must_use]
    pub fn user_settings(&self, accel: Accel) -> Vec<Setting> {
        let mut settings = processor_settings(accel);
        settings.extend([("-smp", self.cpus.to_string()), ("-m", self.memory_setting())]);
        settings.extend(self.node_settings());
        settings.extend(self.disks.iter().enumerate().flat_map(disk_settings));
        settings
    }

    /// Returns the settings for manual use: a shell in the tests' guest, on the terminal.
    #[must_use]
    pub fn shell_settings(artifacts: &Artifacts) -> Vec<Setting> {
        vec![
            ("-nographic", String::new()),
            ("-kernel", artifacts.kernel.display().to_string()),
            ("-initrd", artifacts.initrd.display().to_string()),
            ("-append", "'console=ttyS0 quiet shell'".into()),
        ]
    }

    /// Returns the arguments of a test guest whose sockets and logs are in `folder`.
    #[must_use]
    pub fn args(&self, accel: Accel, artifacts: &Artifacts, folder: &Path) -> Vec<String> {
        let settings = [
            self.user_settings(accel),
            boot_settings(artifacts, self.kernel_options),
            channel_settings(folder),
            self.guest_agent.as_deref().map(guest_agent_settings).unwrap_or_default(),
            self.cable.as_ref().map(network_settings).unwrap_or_default(),
        ];
        to_args(settings.concat())
    }

    /// Returns the memory of each node, shared with the back end.
    fn node_settings(&self) -> Vec<Setting> {
        let part = self.memory_mib / u32::from(self.nodes);
        let memory =
            |id: &str| ("-object", format!("memory-backend-memfd,id={id},size={part}M,share=on"));
        if self.nodes == 1 {
            return vec![memory("mem"), ("-machine", "q35,memory-backend=mem".into())];
        }
        let cpus = self.cpus / self.nodes;
        let node = |node: u16| {
            let (id, first) = (format!("mem{node}"), node * cpus);
            let last = first + cpus - 1;
            [memory(&id), ("-numa", format!("node,nodeid={node},cpus={first}-{last},memdev={id}"))]
        };
        let nodes = (0..self.nodes).flat_map(node);
        [("-machine", "q35".into())].into_iter().chain(nodes).collect()
    }

    fn memory_setting(&self) -> String {
        match self.pluggable_mib {
            0 => format!("{}M", self.memory_mib),
            more => format!("{}M,slots=2,maxmem={}M", self.memory_mib, self.memory_mib + more),
        }
    }
}

/// Returns the arguments of a guest without disks that only prints to its console.
#[must_use]
pub fn probe_args(accel: Accel, artifacts: &Artifacts) -> Vec<String> {
    let machine =
        vec![("-machine", "q35".into()), ("-m", "512M".into()), ("-serial", "stdio".into())];
    to_args([processor_settings(accel), machine, boot_settings(artifacts, "")].concat())
}

fn processor_settings(accel: Accel) -> Vec<Setting> {
    vec![("-accel", accel.qemu_accel().into()), ("-cpu", accel.qemu_cpu().into())]
}

fn disk_settings((index, disk): (usize, &Disk)) -> [Setting; 2] {
    let reconnect = if disk.reconnect { ",reconnect=1" } else { "" };
    let (path, queues) = (disk.socket.display(), disk.queues);
    [
        ("-chardev", format!("socket,id=disk{index},path={path}{reconnect}")),
        ("-device", format!("vhost-user-blk-pci,chardev=disk{index},num-queues={queues}")),
    ]
}

fn boot_settings(artifacts: &Artifacts, more: &str) -> Vec<Setting> {
    // The clock options avoid the slow clock calibration of an emulated guest; entropy from the
    // processor avoids a wait. Self-tests of ciphers and AppArmor are a sixth of a boot.
    let kernel_options = "console=ttyS0 panic=-1 quiet mitigations=off nokaslr tsc=reliable \
                          no_timer_check random.trust_cpu=on cryptomgr.notests apparmor=0";
    vec![
        ("-nodefaults", String::new()),
        ("-no-user-config", String::new()),
        ("-display", "none".into()),
        ("-machine", "hpet=off".into()),
        ("-kernel", artifacts.kernel.display().to_string()),
        ("-initrd", artifacts.initrd.display().to_string()),
        ("-append", format!("{kernel_options} {more}")),
    ]
}

fn channel_settings(folder: &Path) -> Vec<Setting> {
    let folder = folder.display();
    vec![
        ("-serial", format!("file:{folder}/{CONSOLE}")),
        ("-qmp", format!("unix:{folder}/{QMP_SOCKET},server=on,wait=off")),
        ("-device", "virtio-serial-pci".into()),
        ("-chardev", format!("socket,id=agent,path={folder}/{AGENT_SOCKET},server=on,wait=off")),
        ("-device", "virtserialport,chardev=agent,name=agent".into()),
    ]
}

fn guest_agent_settings(socket: &Path) -> Vec<Setting> {
    let socket = socket.display();
    vec![
        ("-chardev", format!("socket,id=guest-agent,path={socket},reconnect=1")),
        ("-device", format!("virtserialport,chardev=guest-agent,name={PORT}")),
        ("-device", "virtio-balloon-pci,free-page-reporting=on".into()),
    ]
}

fn network_settings(cable: &Cable) -> Vec<Setting> {
    let (here, there) = (cable.here.display(), cable.there.display());
    let ends = format!("local.type=unix,local.path={here},remote.type=unix,remote.path={there}");
    // QEMU's default is the same in each guest.
    let mac = if cable.here < cable.there { "52:54:00:00:00:01" } else { "52:54:00:00:00:02" };
    vec![
        ("-netdev", format!("dgram,id=net,{ends}")),
        // Without a boot ROM, which is in a separate package of Debian.
        ("-device", format!("virtio-net-pci,netdev=net,mac={mac},romfile=")),
    ]
}

fn to_args(settings: Vec<Setting>) -> Vec<String> {
    settings
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value])
        .filter(|arg| !arg.is_empty())
        .collect()
}
