//! The keys of a configuration file, as its parser knows them: manual and tests ask for them here.

use serde::de::value::Error as NoValue;
use serde::de::{Deserialize, Deserializer, Error as _, Visitor};

use super::{ConfigFile, DiskConfig};
use crate::qos_config::GroupTable;

/// Keys before the first `[[disk]]`.
pub fn of_file() -> Vec<&'static str> {
    documented(every_spelling::<ConfigFile>())
}

/// Keys of a `[[disk]]`.
pub fn of_disk() -> Vec<&'static str> {
    documented(every_spelling::<DiskConfig>())
}

/// Keys of a `[[group]]`.
pub fn of_group() -> Vec<&'static str> {
    documented(every_spelling::<GroupTable>())
}

/// Each key once: with hyphens, as the options are spelt.
fn documented(keys: &[&'static str]) -> Vec<&'static str> {
    keys.iter().copied().filter(|key| !key.contains('_')).collect()
}

/// All names that the fields of `T` go by.
pub(super) fn every_spelling<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    let mut names: &[&str] = &[];
    // Always an error: there is no value.
    let _ = T::deserialize(FieldNames(&mut names));
    names
}

/// Reads nothing, and keeps the names of the fields that it is asked for.
struct FieldNames<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = NoValue;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, NoValue> {
        Err(NoValue::custom("there is no value"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, NoValue> {
        *self.0 = fields;
        self.deserialize_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}
