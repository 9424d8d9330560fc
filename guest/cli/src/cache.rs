//! `cache`: a mount in the foreground.

use std::io::Write;

use flowstone_filecache::open_mode::Modes;
use flowstone_filecache::{Options, Place, TroubleOptions, WriteBackOptions, serve};
use flowstone_policy::Windows;

use crate::Failure;
use crate::args::{Cache, OpenMode, WhenDown};

/// Serves a mount until a signal or an unmount.
pub fn run(args: &Cache) -> Result<(), Failure> {
    let shown = args.mount.display();
    let is_up = |_: &std::path::Path| {
        println!("serving {shown}");
        // The parent process may not read our output.
        let _ = std::io::stdout().flush();
    };
    serve(&options(args), is_up)
}

fn options(args: &Cache) -> Options {
    let place = match (&args.dir, args.size) {
        (Some(folder), Some(bytes)) => Place::Folder(folder.clone(), bytes),
        _ => Place::Memory(args.memory),
    };
    Options {
        source: args.source.clone(),
        mount: args.mount.clone(),
        place,
        state: args.state.clone(),
        policy: args.policy,
        windows: Windows {
            usage_threshold: args.usage_threshold,
            mem_threshold: args.mem_threshold,
            ..Windows::default()
        },
        epoch: args.epoch,
        window: args.window,
        trust: args.trust,
        modes: Modes {
            copy: args.modes.contains(&OpenMode::Copy),
            source: args.modes.contains(&OpenMode::Source),
        },
        trouble: TroubleOptions {
            timeout: args.source_timeout,
            fails_when_down: args.when_down == WhenDown::Fail,
        },
        write_back: args.write_back.map(|(time, bytes)| WriteBackOptions {
            time,
            bytes,
            lazy_close: args.lazy_close,
        }),
        xattrs: args.xattrs,
        agent: args.agent.clone(),
    }
}
