//! Tables of a configuration file, read as the arguments that their keys are on the command line:
//! an option stands once, and is checked once.

use std::any::TypeId;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, Error as ClapError, ErrorKind};
use clap::{Arg, ArgAction, Args, Command};
use toml::{Table, Value};

use super::{DaemonConfig, DiskTable, Refusal};
use crate::{CpuList, SocketMode};

/// As much of a value as an error shows.
const SHOWN: usize = 60;

/// What the keys of a table are the options of.
pub fn keys_of<T: Args>() -> Command {
    let command = Command::new("table").no_binary_name(true).disable_help_flag(true);
    let mut command = T::augment_args(command).args_override_self(true);
    command.build();
    command
}

/// The key of an option: as the option is spelt, in the plural where it may be repeated.
pub fn key_of(option: &Arg) -> String {
    let plural = option.get_all_aliases().and_then(|aliases| aliases.first().copied());
    let spelt = plural.or(option.get_long()).unwrap_or(option.get_id().as_str());
    spelt.to_owned()
}

/// Reads a table; `typed` are arguments that come after its own, and win.
pub fn read<T: Args>(table: &Table, typed: &[OsString]) -> Result<T, Refusal> {
    let mut command = keys_of::<T>();
    let (mut words, mut positional) = (Vec::new(), Vec::new());
    let mut seen = BTreeSet::new();
    for (spelt, value) in table {
        let key = spelt.replace('_', "-");
        let Some(option) = command.get_arguments().find(|option| key_of(option) == key) else {
            return Err(unknown(&mut command, spelt, &key));
        };
        for value in values(&key, option, value)? {
            match option.get_long() {
                Some(name) if value.is_empty() && is_flag(option) => {
                    words.push(format!("--{name}"));
                }
                Some(name) => words.push(format!("--{name}={value}")),
                None => positional.push(value),
            }
        }
        if !seen.insert(key) {
            return Err(Refusal::new(format!("`{spelt}` is there in two spellings"), "remove one"));
        }
    }
    let words = words.into_iter().map(OsString::from).chain(typed.iter().cloned());
    let rest = (!positional.is_empty()).then(|| "--".to_owned()).into_iter().chain(positional);
    let words: Vec<_> = words.chain(rest.map(OsString::from)).collect();
    let matches = command.try_get_matches_from_mut(words);
    let read = matches.and_then(|matches| T::from_arg_matches(&matches));
    read.map_err(|error| explain(&command, &error))
}

/// The arguments of `value`, each as its text; of a flag, the empty one if it is set.
fn values(key: &str, option: &Arg, value: &Value) -> Result<Vec<String>, Refusal> {
    let mut shown = value.to_string();
    shown.truncate(shown.floor_char_boundary(SHOWN));
    let expected =
        |what: &str| Refusal::new(format!("`{key}` is {shown}"), format!("write {what}"));
    match (option.get_action(), value) {
        (ArgAction::SetTrue, Value::Boolean(set)) => {
            Ok(set.then(String::new).into_iter().collect())
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

/// Whether a number is not what is meant. (TOML's octal numbers are not those of chmod: 0660 is
/// none, and 660 is decimal. A list of CPUs is no count of them.)
fn is_text(option: &Arg) -> bool {
    let texts = [
        TypeId::of::<String>(),
        TypeId::of::<PathBuf>(),
        TypeId::of::<CpuList>(),
        TypeId::of::<SocketMode>(),
    ];
    texts.iter().any(|text| option.get_value_parser().type_id() == *text)
}

/// There is no such key: perhaps another one is meant.
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

/// What the parser of arguments says, as of a key.
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
