//! `flowstone info`

use std::process::ExitCode;

use flowstone_block::{Error, Result, format_size};
use flowstone_fileio::Access;
use serde::Serialize;

use super::{open_image, print_json};
use crate::args::Info;

/// The stable JSON shape.
#[derive(Serialize)]
struct Report {
    image: String,
    format: &'static str,
    virtual_bytes: u64,
    allocated_bytes: u64,
}

pub fn run(args: &Info) -> Result<ExitCode> {
    let image = open_image(&args.image, args.format, Access::Inspect)?;
    let name = args.image.display().to_string();
    let space = image
        .space()
        .map_err(|error| Error::host(name.clone(), error, "check the host's file system"))?;
    let report = Report {
        image: name,
        format: image.format().name(),
        virtual_bytes: space.virtual_bytes,
        allocated_bytes: space.allocated_bytes,
    };
    if args.json {
        print_json(&report);
    } else {
        println!("image       {}", report.image);
        println!("format      {}", report.format);
        println!("size        {}", with_bytes(report.virtual_bytes));
        println!("on host     {}", with_bytes(report.allocated_bytes));
    }
    Ok(ExitCode::SUCCESS)
}

fn with_bytes(bytes: u64) -> String {
    format!("{} ({bytes} bytes)", format_size(bytes))
}
