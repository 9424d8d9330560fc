//! flowstone.toml(5): the keys are those of the parser, and what they do is the help of `serve`.

use anyhow::{Context, Result};
use clap::{Arg, ArgAction, CommandFactory};
use flowstone_cli::args::Args;
use flowstone_daemon::keys;

const HEAD: &str = ".TH flowstone.toml 5
.SH NAME
flowstone.toml \\- the disks that flowstone serve \\-\\-config serves
.SH DESCRIPTION
A TOML file with a table
.B [[disk]]
for each disk. Keys have the names of the options of
.BR flowstone\\-serve (1);
a hyphen in them may be written as an underscore. A key that is not known is an error, and so is one
that is given in both spellings. A disk with a mistake is refused, and the others are served. Relative paths start where the daemon is started.
";

const EXAMPLE: &str = ".SH EXAMPLE
.nf
control = \"/run/flowstone/control.sock\"
socket\\-group = \"kvm\"

[[disk]]
name = \"vm1\"
image = \"/var/lib/flowstone/vm1.raw\"
socket = \"/run/flowstone/vm1.sock\"
.fi
.SH SEE ALSO
.BR flowstone\\-serve (1)
";

/// The page as roff.
pub fn page() -> Result<String> {
    let args = Args::command();
    let serve = args.find_subcommand("serve").context("there is no `serve`")?;
    let mut page = HEAD.to_owned();
    page += ".SH KEYS BEFORE THE FIRST DISK\n";
    for key in keys::of_file() {
        page += &match key {
            "disk" => paragraph("[[disk]]", "Begins a disk; repeat for several"),
            "group" => paragraph("[[group]]", "Begins a group of disks that share a limit"),
            _ if keys::of_disk().contains(&key) => {
                paragraph(&entry(serve, key)?.0, "For each disk that does not say itself")
            }
            _ => of_option(serve, key)?,
        };
    }
    page += ".SH KEYS OF A DISK\nName, socket and one of image and backend are needed.\n";
    for key in keys::of_disk() {
        page += &match of_several(key) {
            Some((value, help)) => paragraph(&format!("{key} = {value}"), help),
            None => of_option(serve, key)?,
        };
    }
    page += ".SH KEYS OF A GROUP\nA name is needed. Disks name it with their key group.\n";
    for key in keys::of_group() {
        let (value, help) = of_a_group(key).with_context(|| format!("a group's {key}"))?;
        page += &paragraph(&format!("{key} = {value}"), help);
    }
    Ok(page + EXAMPLE)
}

/// What a disk has only beside others, which `serve` has no option for.
fn of_several(key: &str) -> Option<(&'static str, &'static str)> {
    match key {
        "group" => Some(("\"NAME\"", "The [[group]] whose limit it shares")),
        "weight" => Some((
            "N",
            "How much the disk gets, beside others, of a device and of its group's limit: 1 to 10000 \
             [default: 100]",
        )),
        _ => None,
    }
}

fn of_a_group(key: &str) -> Option<(&'static str, &'static str)> {
    match key {
        "name" => Some(("\"NAME\"", "What disks call it")),
        "iops" => Some(("N", "Requests that its disks may use together in a second")),
        "bw" => Some(("\"SIZE\"", "Bytes that its disks may use together in a second")),
        "burst" => Some((
            "\"TIME\"",
            "So much of what its disks have not used they may use later, as 2s or 500ms [default: 10ms]",
        )),
        _ => None,
    }
}

fn of_option(serve: &clap::Command, key: &str) -> Result<String> {
    let (head, help) = entry(serve, key)?;
    Ok(paragraph(&head, &help))
}

/// What a key is set to, and what it does.
fn entry(serve: &clap::Command, key: &str) -> Result<(String, String)> {
    let id = key.replace('-', "_");
    let option = serve.get_arguments().find(|option| option.get_id() == id.as_str());
    let option = option.with_context(|| format!("`serve` has no option for the key {key}"))?;
    let help = option.get_long_help().or_else(|| option.get_help());
    let help = help.with_context(|| format!("the option for the key {key} has no help"))?;
    Ok((format!("{key} = {}", value(option)), help.to_string()))
}

fn value(option: &Arg) -> String {
    let names = option.get_value_names().unwrap_or_default();
    let name = names.first().map_or("VALUE", |name| name.as_str());
    match option.get_action() {
        ArgAction::SetTrue => "true | false".into(),
        ArgAction::Append => format!("[\"{name}\", ...]"),
        _ if name == "N" => name.into(),
        _ => format!("\"{name}\""),
    }
}

fn paragraph(head: &str, text: &str) -> String {
    format!(".TP\n.B {}\n{}\n", roff(head), roff(text))
}

/// Text that no line of is taken for a request.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('-', "\\-");
    let lines = text.lines().map(|line| match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_key_that_the_parser_knows() {
        let page = page().unwrap();
        let (file, rest) = page.split_once(".SH KEYS OF A DISK").unwrap();
        let (disk, group) = rest.split_once(".SH KEYS OF A GROUP").unwrap();
        let keys = [(file, keys::of_file()), (disk, keys::of_disk()), (group, keys::of_group())];
        for (text, keys) in keys {
            assert!(keys.len() >= 4, "{keys:?}");
            for key in keys {
                let wanted = match key {
                    "disk" | "group" if text == file => format!(".B [[{key}]]"),
                    _ => format!(".B {} = ", roff(key)),
                };
                assert!(text.contains(&wanted), "no {key} in {text}");
            }
        }
    }

    #[test]
    fn no_text_is_taken_for_a_request() {
        assert_eq!(roff(".raw\n'quoted' \\ a-b"), "\\&.raw\n\\&'quoted' \\\\ a\\-b");
    }
}
