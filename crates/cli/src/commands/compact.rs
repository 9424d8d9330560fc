//! `flowstone compact`

use flowstone_block::{Error, Result, format_size};
use flowstone_fileio::Access;
use flowstone_image::{Layout, sample_reads};

use super::open_image;
use crate::args::Compact;
use crate::output::out;
use crate::progress::{bar, under};

pub fn run(args: &Compact) -> Result<()> {
    let before = Sight::of(args)?;
    {
        let image = open_image(&args.image, args.format, Access::Write, &args.backing_dirs)?;
        let compacted = under(bar("compacting"), |progress| image.compact(progress));
        compacted.and_then(|()| image.close())?;
    }
    // Only now: an image releases its reserve when it is closed.
    let after = Sight::of(args)?;
    out!("{:<20}{:<12}after", "", "before");
    before.lines().zip(after.lines()).for_each(|((name, before), (_, after))| {
        out!("{name:<20}{before:<12}{after}");
    });
    Ok(())
}

/// The layout of an image as a reader sees it.
struct Sight {
    layout: Layout,
    /// `None` if reads would be answered by the page cache.
    read_mb_per_s: Option<f64>,
}

impl Sight {
    fn of(args: &Compact) -> Result<Self> {
        let name = args.image.display();
        let host = |error| Error::host(name.to_string(), error, "check the host's file system");
        let image = open_image(&args.image, args.format, Access::Read, &args.backing_dirs)?;
        let layout = image.layout().map_err(host)?;
        let read_mb_per_s = match layout.direct {
            true => sample_reads(&*image).map_err(host)?.mb_per_s(),
            false => None,
        };
        Ok(Self { layout, read_mb_per_s })
    }

    /// Returns the figures to print, with their names.
    fn lines(&self) -> impl Iterator<Item = (&'static str, String)> {
        let unknown = || "unknown".to_owned();
        let extents = self.layout.host_extents.map_or_else(unknown, |count| count.to_string());
        let reads = self.read_mb_per_s.map_or_else(unknown, |rate| format!("{rate:.0} MB/s"));
        [
            ("on the host", format_size(self.layout.allocated_bytes)),
            ("runs of data", self.layout.data_runs.to_string()),
            ("host extents", extents),
            ("sequential read", reads),
        ]
        .into_iter()
    }
}
