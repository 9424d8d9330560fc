//! Parses tables of a configuration file as command-line arguments: an option is declared once and
//! checked once.

use std::any::TypeId;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, Error as ClapError, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command};
use flowstone_runner::CpuList;
use toml::{Table, Value};

use super::{DaemonConfig, DiskTable, Refusal};
use crate::SocketMode;

/// Bytes of a value shown in an error.
const SHOWN: usize = 60;

/// Returns the command whose options are the keys of a table.
pub fn keys_of<T: Args>() -> Command {
    let command = Command::new("table").no_binary_name(true).disable_help_flag(true);
    let mut command = T::augment_args(command).args_override_self(true);
    command.build();
    command
}

/// Returns the key of an option: its long name, in the plural if it may be repeated.
pub fn key_of(option: &Arg) -> String {
    let plural = option.get_all_aliases().and_then(|aliases| aliases.first().copied());
    let spelt = plural.or(option.get_long()).unwrap_or(option.get_id().as_str());
    spelt.to_owned()
}

/// Keys of a table, spelt with hyphens, with their values as arguments: tables that mean the same
/// are equal, however they are written.
pub type Keys = BTreeMap<String, Vec<String>>;

/// Returns the table of a `[[disk]]` whose keys were typed as options, as in [`DiskTable`]. Paths
/// become absolute: the reader may have another working directory.
pub fn typed_disk(matches: &ArgMatches) -> Table {
    let mut table = Table::new();
    for option in keys_of::<DiskTable>().get_arguments() {
        let id = option.get_id().as_str();
        if matches.value_source(id) != Some(ValueSource::CommandLine) {
            continue;
        }
        let whole = |value: &OsStr| match is_path(option) {
            true => std::path::absolute(value).unwrap_or_else(|_| value.into()).into_os_string(),
            false => value.to_owned(),
        };
        let values = matches.get_raw(id).into_iter().flatten().map(whole);
        let mut values = values.map(|value| Value::from(&*value.to_string_lossy()));
        let value = match option.get_action() {
            ArgAction::SetTrue => Some(Value::Boolean(true)),
            ArgAction::Append => Some(Value::Array(values.collect())),
            _ => values.next(),
        };
        value.and_then(|value| table.insert(key_of(option), value));
    }
    table
}

/// Returns a table that parses as these keys.
pub fn table_of<T: Args>(keys: &Keys) -> Table {
    let command = keys_of::<T>();
    let value = |key: &String, values: &Vec<String>| {
        let option = command.get_arguments().find(|option| key_of(option) == *key);
        match option.map(|option| (is_flag(option), option.get_action())) {
            Some((true, _)) => Value::Boolean(true),
            Some((_, ArgAction::Append)) => values.clone().into(),
            _ => values.first().cloned().unwrap_or_default().into(),
        }
    };
    keys.iter().map(|(key, values)| (key.clone(), value(key, values))).collect()
}

/// Refuses relative paths, where the working directory of their author is unknown.
pub fn refuse_relative<T: Args>(keys: &Keys) -> Result<(), Refusal> {
    let command = keys_of::<T>();
    for option in command.get_arguments().filter(|option| is_path(option)) {
        let key = key_of(option);
        let values = keys.get(&key).into_iter().flatten();
        if let Some(path) = values.map(Path::new).find(|path| path.is_relative()) {
            let why = format!("`{key}` is {}, and to which folder is not known", path.display());
            return Err(Refusal::new(why, "give it from / on"));
        }
    }
    Ok(())
}

/// Sets the table's `name`; refuses a table with another one.
pub fn call(table: &mut Table, name: &str, what: &str) -> Result<(), Refusal> {
    let called = table.entry("name").or_insert_with(|| name.into());
    if called.as_str() == Some(name) {
        return Ok(());
    }
    let advice = format!("leave it out, or ask for that {what}");
    Err(Refusal::new(format!("its `name` is {called}"), advice))
}

/// Returns whether the values of an option are paths.
pub fn is_path(option: &Arg) -> bool {
    option.get_value_parser().type_id() == TypeId::of::<PathBuf>()
}

/// Parses a table, and returns its keys, too; `typed` are arguments that follow its own and
/// override them.
pub fn read<T: Args>(table: &Table, typed: &[OsString]) -> Result<(T, Keys), Refusal> {
    let mut command = keys_of::<T>();
    let (mut words, mut positional) = (Vec::new(), Vec::new());
    let (mut seen, mut keys) = (BTreeSet::new(), Keys::new());
    for (spelt, value) in table {
        let key = spelt.replace('_', "-");
        let Some(option) = command.get_arguments().find(|option| key_of(option) == key) else {
            return Err(unknown(&mut command, spelt, &key));
        };
        let values = values(&key, option, value)?;
        for value in &values {
            match option.get_long() {
                Some(name) if is_flag(option) => words.push(format!("--{name}")),
                Some(name) => words.push(format!("--{name}={value}")),
                None => positional.push(value.clone()),
            }
        }
        if !seen.insert(key.clone()) {
            return Err(Refusal::new(format!("`{spelt}` is there in two spellings"), "remove one"));
        }
        // A flag that is false equals an absent one.
        if !(values.is_empty() && is_flag(option)) {
            keys.insert(key, values);
        }
    }
    let words = words.into_iter().map(OsString::from).chain(typed.iter().cloned());
    let rest = (!positional.is_empty()).then(|| "--".to_owned()).into_iter().chain(positional);
    let words: Vec<_> = words.chain(rest.map(OsString::from)).collect();
    let matches = command.try_get_matches_from_mut(words);
    let read = matches.and_then(|matches| T::from_arg_matches(&matches));
    read.map(|read| (read, keys)).map_err(|error| explain(&command, &error))
}

/// Returns the arguments of `value` as texts; for a flag, `true` if it is set.
fn values(key: &str, option: &Arg, value: &Value) -> Result<Vec<String>, Refusal> {
    let mut shown = value.to_string();
    shown.truncate(shown.floor_char_boundary(SHOWN));
    let expected =
        |what: &str| Refusal::new(format!("`{key}` is {shown}"), format!("write {what}"));
    match (option.get_action(), value) {
        (ArgAction::SetTrue, Value::Boolean(set)) => {
            Ok(set.then(|| "true".into()).into_iter().collect())
        }
        (ArgAction::SetTrue, _) => Err(expected("true or false")),
        (ArgAction::Append, Value::Array(list)) => {
            let text = |it: &Value| it.as_str().map(str::to_owned);
            let texts: Option<_> = list.iter().map(text).collect();
            texts.ok_or_else(|| expected("a list of strings"))
        }
        (ArgAction::Append, _) => Err(expected("a list of strings")),
        (_, Value::String(text)) => Ok(vec![text.clone()]),
        (_, Value::Integer(number)) if !is_text(option) => Ok(vec![number.to_string()]),
        _ if is_text(option) => Err(expected("a string")),
        _ => Err(expected("a string or a whole number")),
    }
}

fn is_flag(option: &Arg) -> bool {
    matches!(option.get_action(), ArgAction::SetTrue)
}

/// Returns whether a number is refused, because it would be misread. (TOML's octal numbers differ
/// from chmod's: 0660 is invalid, and 660 is decimal. A list of CPUs is not a count.)
fn is_text(option: &Arg) -> bool {
    let texts = [
        TypeId::of::<String>(),
        TypeId::of::<PathBuf>(),
        TypeId::of::<CpuList>(),
        TypeId::of::<SocketMode>(),
    ];
    texts.iter().any(|text| option.get_value_parser().type_id() == *text)
}

/// Returns the refusal of an unknown key, with a suggestion.
fn unknown(command: &mut Command, spelt: &str, key: &str) -> Refusal {
    let why = format!("unknown key `{spelt}`");
    let has = |command: &Command| command.get_arguments().any(|option| key_of(option) == key);
    if has(&keys_of::<DiskTable>()) {
        return Refusal::new(why, "write it below [[disk]]");
    }
    if has(&keys_of::<DaemonConfig>()) {
        return Refusal::new(why, "write it before the first [[disk]]");
    }
    let error = command.try_get_matches_from_mut([format!("--{key}")]).err();
    let near = match error.as_ref().and_then(|error| error.get(ContextKind::SuggestedArg)) {
        Some(ContextValue::String(option)) => option.trim_start_matches('-'),
        // As the option is spelt.
        _ => key,
    };
    match command.get_arguments().find(|option| option.get_long() == Some(near)) {
        Some(option) => Refusal::new(why, format!("did you mean `{}`?", key_of(option))),
        None => Refusal::new(why, "see `man flowstone.toml` for the keys"),
    }
}

/// Converts an error of the argument parser to one about a key.
fn explain(command: &Command, error: &ClapError) -> Refusal {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        _ => String::new(),
    };
    let argument = text(ContextKind::InvalidArg);
    let option = command.get_arguments().find(|option| option.to_string() == argument);
    let key = option.map_or_else(|| argument.clone(), key_of);
    let (value, choices) = (text(ContextKind::InvalidValue), text(ContextKind::ValidValue));
    match (error.kind(), std::error::Error::source(error)) {
        (ErrorKind::MissingRequiredArgument, _) => {
            Refusal::new(format!("`{key}` is missing"), "add it")
        }
        (ErrorKind::InvalidValue, _) if choices.is_empty() => {
            Refusal::new(format!("`{key}` is empty"), "write something, or leave it out")
        }
        (ErrorKind::InvalidValue, _) => Refusal::new(
            format!("`{value}` is no choice for `{key}`"),
            format!("use one of {choices}"),
        ),
        (_, Some(source)) => {
            let source = source.to_string();
            match source.rsplit_once("; ") {
                Some((why, advice)) => Refusal::new(format!("`{key}`: {why}"), advice),
                None => Refusal::new(format!("`{key}` is `{value}`: {source}"), "correct it"),
            }
        }
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
            Refusal::new(line.to_owned(), "see `man flowstone.toml` for the keys")
        }
    }
}
