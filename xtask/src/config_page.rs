//! flowstone.toml(5): its keys are the options of the structs that the file is parsed into.

use clap::{Arg, ArgAction};
use flowstone_daemon::{DaemonConfig, DiskTable, key_of, keys_of};
use flowstone_qos::GroupArgs;

const HEAD: &str = ".TH flowstone.toml 5
.SH NAME
flowstone.toml \\- the disks that flowstone serve \\-\\-config serves
.SH DESCRIPTION
A TOML file with a table
.B [[disk]]
for each disk. Keys have the names of the options of
.BR flowstone\\-serve (1);
a hyphen in them may be written as an underscore. An unknown key is an error, and so is a key
that is given in both spellings. A disk with an error is refused, and the others are served.
Relative paths are relative to the folder in which the daemon is started.
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

/// Returns the page as roff.
pub fn page() -> String {
    let disk = keys_of::<DiskTable>();
    let of_disks: Vec<String> = disk.get_arguments().map(key_of).collect();
    let mut page = HEAD.to_owned();
    page += ".SH KEYS BEFORE THE FIRST DISK\n";
    page += &paragraph("[[disk]]", "Begins a disk; repeat for several");
    page += &paragraph("[defaults]", "Begins keys for all disks that do not set them themselves");
    page += &paragraph("[[group]]", "Begins a group of disks that share a limit");
    for option in keys_of::<DaemonConfig>().get_arguments() {
        page += &entry(option);
        if of_disks.contains(&key_of(option)) && option.get_id() != "cpu_budget" {
            page += "This is the default for disks without this key.\n";
        }
    }
    page += ".SH KEYS OF A DISK\nsocket and one of image and backend are required.\n";
    page.extend(disk.get_arguments().map(entry));
    page +=
        ".SH KEYS OF A GROUP\nname is required. Disks refer to the group with their key group.\n";
    page.extend(keys_of::<GroupArgs>().get_arguments().map(entry));
    page + EXAMPLE
}

/// Returns the values of a key, and its meaning.
fn entry(option: &Arg) -> String {
    let help = option.get_long_help().or_else(|| option.get_help());
    let mut text = help.map(ToString::to_string).unwrap_or_default();
    let choices = option.get_possible_values();
    if !matches!(option.get_action(), ArgAction::SetTrue) && !choices.is_empty() {
        text += ":";
        for choice in choices {
            let help = choice.get_help().map(|help| format!(" ({help})")).unwrap_or_default();
            text += &format!("\n{}{help},", choice.get_name());
        }
        text.pop();
    }
    if let [default] = option.get_default_values()
        && !matches!(option.get_action(), ArgAction::SetTrue)
    {
        text += &format!(" [default: {}]", default.to_string_lossy());
    }
    paragraph(&format!("{} = {}", key_of(option), value(option)), &text)
}

fn value(option: &Arg) -> String {
    let names = option.get_value_names().unwrap_or_default();
    let name = names.first().map_or("VALUE", |name| name.as_str());
    match option.get_action() {
        ArgAction::SetTrue => "true | false".into(),
        ArgAction::Append => format!("[\"{name}\", ...]"),
        _ if matches!(name, "N" | "LEVEL") => name.into(),
        _ => format!("\"{name}\""),
    }
}

fn paragraph(head: &str, text: &str) -> String {
    format!(".TP\n.B {}\n{}\n", roff(head), roff(text))
}

/// Escapes text so that no line of it is taken for a request.
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
    fn the_page_has_every_key_with_its_help() {
        let page = page();
        let (file, rest) = page.split_once(".SH KEYS OF A DISK").unwrap();
        let (disk, group) = rest.split_once(".SH KEYS OF A GROUP").unwrap();
        let [daemon, table, of_group] =
            [keys_of::<DaemonConfig>(), keys_of::<DiskTable>(), keys_of::<GroupArgs>()];
        for (text, command) in [(file, daemon), (disk, table), (group, of_group)] {
            assert!(command.get_arguments().count() >= 4);
            for option in command.get_arguments() {
                let key = roff(&key_of(option));
                assert!(text.contains(&format!(".B {key} = ")), "no {key} in {text}");
                assert!(option.get_help().is_some(), "{key} has no help");
            }
        }
    }

    #[test]
    fn no_text_is_taken_for_a_request() {
        assert_eq!(roff(".raw\n'quoted' \\ a-b"), "\\&.raw\n\\&'quoted' \\\\ a\\-b");
    }
}
