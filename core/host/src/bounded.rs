//! Lists of limited length in the messages of another process.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Reads a list of at most `MOST` entries. In memory an entry may take ten times its bytes in a message, so a list of a hostile
/// process is refused before it is whole.
pub fn few<'de, D: Deserializer<'de>, T: Deserialize<'de>, const MOST: usize>(reader: D) -> Result<Vec<T>, D::Error> {
    struct Few<T, const MOST: usize>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Few<T, MOST> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {MOST}")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut all = Vec::new();
            while let Some(next) = list.next_element()? {
                if all.len() == MOST {
                    return Err(A::Error::invalid_length(MOST + 1, &self));
                }
                all.push(next);
            }
            Ok(all)
        }
    }
    reader.deserialize_seq(Few::<T, MOST>(PhantomData))
}
