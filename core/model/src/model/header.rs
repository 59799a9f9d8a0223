//! The header of a safetensors file, read without trust: every claim is checked against the file before it is used. That
//! takes a few milliseconds, and no memory beyond the header's own size.
//!
//! The format (<https://github.com/huggingface/safetensors#format>): 8 bytes of length N, little-endian; N bytes of JSON,
//! `{"name": {"dtype": …, "shape": […], "data_offsets": [begin, end]}, …}`, with `"__metadata__": {text: text}` if there
//! are notes; then the data of the tensors, end to end. Offsets count from the beginning of the data.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{ErrorKind, Read};

use safetensors::Dtype;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, json};

/// Longest header in bytes. A model of 80 blocks has 110,000; a rank's pieces of 72 billion parameters have 700,000.
const MAX_HEADER: u64 = 1 << 20;
/// Longest name of a tensor in bytes.
const MAX_NAME: usize = 256;
/// Most axes of a tensor.
const MAX_AXES: usize = 8;
/// Longest message about a damaged header, which may quote from it.
const MAX_MESSAGE: usize = 300;

/// A tensor in a file.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorEntry {
    pub dtype: Dtype,
    pub shape: Vec<u64>,
    /// First byte in the file; type and shape give the number of bytes.
    pub begin: u64,
}

/// The tensors of a safetensors file of `size` bytes by their names. Only the header is read.
///
/// # Errors
/// One line that names the damage.
pub fn read(file: &mut impl Read, size: u64) -> Result<BTreeMap<String, TensorEntry>, String> {
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::UnexpectedEof => "it has no header".to_string(),
        _ => format!("reading its header: {error}"),
    };
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(failed)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER {
        return Err(format!("its header claims {length} bytes; no model's has more than {MAX_HEADER}"));
    }
    let left = size.saturating_sub(8);
    if length > left {
        return Err(format!("its header claims {length} bytes, of which {left} are there"));
    }
    let mut text = vec![0; length as usize];
    file.read_exact(&mut text).map_err(failed)?;
    let text = std::str::from_utf8(&text).map_err(|_| "its header is not UTF-8")?;
    let Claims(claims) = serde_json::from_str(text).map_err(|error| printable(&format!("its header: {error}")))?;
    check_places(&claims, left - length)?;
    let entry = |claim: Claim| TensorEntry {
        dtype: claim.dtype,
        shape: claim.shape.0,
        begin: 8 + length + claim.data_offsets.0,
    };
    Ok(claims.into_iter().map(|(name, claim)| (name, entry(claim))).collect())
}

/// The bytes before the data of a file that holds tensors of these names and shapes, end to end and all of one type.
///
/// # Errors
/// When the header is longer than [`read`] accepts.
pub fn write(tensors: &[(&str, &[i64])], dtype: Dtype) -> Result<Vec<u8>, String> {
    // transformers requires this note, which names the library whose tensors the file holds.
    let mut header = Map::from_iter([("__metadata__".to_string(), json!({ "format": "pt" }))]);
    let mut begin = 0;
    for (name, shape) in tensors {
        let end = begin + shape.iter().product::<i64>() * dtype.bitsize() as i64 / 8;
        header.insert((*name).to_string(), json!({ "dtype": dtype, "shape": shape, "data_offsets": [begin, end] }));
        begin = end;
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let length = text.len() as u64;
    if length > MAX_HEADER {
        return Err(format!("a header of {length} bytes is too long: at most {MAX_HEADER} can be read again"));
    }
    Ok([&length.to_le_bytes()[..], &text].concat())
}

/// Checks that every tensor has the bytes that its type and shape need, and that the tensors fill the data without gap or
/// overlap.
fn check_places(claims: &BTreeMap<String, Claim>, data: u64) -> Result<(), String> {
    let mut in_order: Vec<_> = claims.iter().collect();
    in_order.sort_by_key(|(_, claim)| claim.data_offsets);
    let mut filled = 0;
    for (name, claim) in in_order {
        let (begin, end) = claim.data_offsets;
        if end > data {
            return Err(format!("tensor {name} ends at byte {end} of the data, which has {data}"));
        }
        let bytes = claim.bytes().ok_or_else(|| format!("tensor {name} has an impossible shape"))?;
        if begin.checked_add(bytes) != Some(end) {
            return Err(format!("tensor {name} needs {bytes} bytes, but occupies bytes {begin} to {end}"));
        }
        if begin < filled {
            return Err(format!(
                "tensor {name} begins at byte {begin}, inside the one before it, which ends at {filled}"
            ));
        }
        if begin > filled {
            return Err(format!("no tensor has the bytes from {filled} to {begin}"));
        }
        filled = end;
    }
    if filled < data {
        return Err(format!("no tensor has the bytes from {filled} to {data}"));
    }
    Ok(())
}

/// A tensor as the header describes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Claim {
    dtype: Dtype,
    shape: TensorShape,
    data_offsets: (u64, u64),
}

impl Claim {
    /// Bytes of the elements; none on overflow or a fraction of a byte.
    fn bytes(&self) -> Option<u64> {
        let elements = self.shape.0.iter().try_fold(1_u64, |product, &n| product.checked_mul(n))?;
        let bits = elements.checked_mul(self.dtype.bitsize() as u64)?;
        (bits % 8 == 0).then_some(bits / 8)
    }
}

/// At most [`MAX_AXES`] numbers.
struct TensorShape(Vec<u64>);

impl<'de> Deserialize<'de> for TensorShape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Axes;
        impl<'de> Visitor<'de> for Axes {
            type Value = TensorShape;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                write!(f, "a shape of at most {MAX_AXES} axes")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<TensorShape, A::Error> {
                let mut axes = Vec::new();
                while let Some(size) = list.next_element()? {
                    if axes.len() == MAX_AXES {
                        return Err(A::Error::invalid_length(MAX_AXES + 1, &self));
                    }
                    axes.push(size);
                }
                Ok(TensorShape(axes))
            }
        }
        deserializer.deserialize_seq(Axes)
    }
}

/// The JSON of a header. Unlike serde's maps it refuses a repeated name.
struct Claims(BTreeMap<String, Claim>);

impl<'de> Deserialize<'de> for Claims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tensors;
        impl<'de> Visitor<'de> for Tensors {
            type Value = Claims;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                write!(f, "an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Claims, A::Error> {
                let mut claims = BTreeMap::new();
                let mut notes = None;
                while let Some(name) = map.next_key::<String>()? {
                    let twice = if name == "__metadata__" {
                        notes.replace(map.next_value::<Notes>()?).is_some()
                    } else if name.len() > MAX_NAME || name.chars().any(char::is_control) {
                        return Err(A::Error::custom("a tensor's name is too long or not printable"));
                    } else {
                        claims.insert(name.clone(), map.next_value()?).is_some()
                    };
                    if twice {
                        return Err(A::Error::custom(format!("{name} occurs twice")));
                    }
                }
                Ok(Claims(claims))
            }
        }
        deserializer.deserialize_map(Tensors)
    }
}

/// The notes of a file: texts by name, not used.
struct Notes;

impl<'de> Deserialize<'de> for Notes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BTreeMap::<String, String>::deserialize(deserializer).map(|_| Self)
    }
}

/// A message that may quote the file, as one line of bounded length.
fn printable(message: &str) -> String {
    let plain: String =
        message.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).take(MAX_MESSAGE).collect();
    if plain.len() < message.len() { plain + " …" } else { plain }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn file(header: impl AsRef<[u8]>, data: usize) -> Vec<u8> {
        let header = header.as_ref();
        [&(header.len() as u64).to_le_bytes(), header, &vec![0; data]].concat()
    }

    fn claim(shape: &str, begin: u64, end: u64) -> String {
        format!(r#"{{"dtype":"F32","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
    }

    #[test]
    fn a_whole_file_is_read() {
        let header =
            format!(r#"{{"__metadata__":{{"format":"pt"}},"b":{},"a":{}}}  "#, claim("[2]", 0, 8), claim("[]", 8, 12));
        let bytes = file(&header, 12);
        let entries = read(&mut &bytes[..], bytes.len() as u64).expect("whole");
        let data = 8 + header.len() as u64;
        let found: Vec<_> = entries.iter().map(|(n, e)| (n.as_str(), &e.shape[..], e.begin)).collect();
        assert_eq!(found, [("a", &[][..], data + 8), ("b", &[2][..], data)]);
    }

    #[test]
    fn a_written_header_is_read() {
        let mut bytes = write(&[("b", &[3, 2]), ("a[2..4]", &[2])], Dtype::BF16).expect("short enough");
        let data = bytes.len() as u64;
        assert_eq!(data % 8, 0);
        bytes.resize(bytes.len() + 16, 0);
        let entries = read(&mut &bytes[..], bytes.len() as u64).expect("whole");
        let found: Vec<_> = entries.iter().map(|(n, e)| (n.as_str(), &e.shape[..], e.dtype, e.begin)).collect();
        assert_eq!(found, [("a[2..4]", &[2][..], Dtype::BF16, data + 12), ("b", &[3, 2][..], Dtype::BF16, data)]);
        let names: Vec<String> = (0..MAX_HEADER / 64).map(|i| format!("{i:064}")).collect();
        let many: Vec<(&str, &[i64])> = names.iter().map(|name| (name.as_str(), &[1][..])).collect();
        assert!(write(&many, Dtype::F32).expect_err("too long").contains("too long"));
    }

    /// Every damage is refused with its message, and no slower than a sound header of about the largest size is read. Other
    /// work on the machine only adds time, so the fastest of many tries counts, of either.
    #[test]
    fn damage_is_refused_at_once() {
        let one = |entry: String| file(format!(r#"{{"a":{entry}}}"#), 8);
        let two = |a: String, b: String| file(format!(r#"{{"a":{a},"b":{b}}}"#), 16);
        let many = |entry: &str| entry.repeat((MAX_HEADER as usize - 64) / entry.len());
        let huge = |length: u64| [&length.to_le_bytes()[..], b"{}"].concat();
        let full: String = (0..7_000).map(|i| format!(r#""{i}":{},"#, claim("[1]", 4 * i, 4 * i + 4))).collect();
        let cases: Vec<(&str, Vec<u8>, &str)> = vec![
            ("empty", vec![], "no header"),
            ("seven bytes", vec![0; 7], "no header"),
            ("huge length", huge(u64::MAX), "18446744073709551615 bytes"),
            ("long length", huge(MAX_HEADER + 1), "no model's"),
            ("length beyond the file", huge(100), "100 bytes, of which 2"),
            ("no JSON", file("", 0), "EOF"),
            ("spaces", file(vec![b' '; MAX_HEADER as usize], 0), "EOF"),
            ("not UTF-8", file([b'{', b'"', 0xff, b'"'], 0), "not UTF-8"),
            ("a list", file("[]", 0), "an object of tensors"),
            ("deep lists", file("[".repeat(100_000), 0), "an object of tensors"),
            ("deep objects", file(r#"{"a":"#.repeat(100_000), 0), "unknown field"),
            ("deep shape", one(claim(&"[".repeat(100_000), 0, 8)), "expected u64"),
            ("deep notes", file(format!(r#"{{"__metadata__":{}"#, many("[")), 0), "expected a map"),
            ("unknown type", one(claim("[2]", 0, 8).replace("F32", "F33")), "F33"),
            ("a long type", one(claim("[2]", 0, 8).replace("F32", &many("x"))), "…"),
            ("lines in a name", file(format!(r#"{{"a\nb":{}}}"#, claim("[2]", 0, 8)), 8), "not printable"),
            ("a long name", file(format!(r#"{{"{}":{}}}"#, many("x"), claim("[2]", 0, 8)), 8), "too long"),
            ("unknown field", one(claim("[2]", 0, 8).replace("dtype", "kind")), "unknown field"),
            ("missing field", one(r#"{"dtype":"F32","shape":[2]}"#.into()), "missing field"),
            ("negative shape", one(claim("[-2]", 0, 8)), "-2"),
            ("shape overflows", one(claim("[9223372036854775807,2,3]", 0, 8)), "impossible shape"),
            ("bytes overflow", one(claim("[9223372036854775807]", 0, 8)), "impossible shape"),
            ("too many axes", one(claim(&format!("[{}1]", "1,".repeat(250_000)), 0, 8)), "at most 8 axes"),
            ("huge offsets", one(claim("[2]", u64::MAX - 8, u64::MAX)), "ends at byte"),
            ("offsets beyond", one(claim("[2]", 4, 12)), "ends at byte 12"),
            ("offsets reversed", one(claim("[2]", 8, 0)), "bytes 8 to 0"),
            ("too few bytes", one(claim("[3]", 0, 8)), "needs 12 bytes"),
            ("overlap", two(claim("[2]", 0, 8), claim("[2]", 4, 12)), "inside the one before"),
            ("the same place", two(claim("[2]", 0, 8), claim("[2]", 0, 8)), "inside the one before"),
            ("gap", two(claim("[1]", 0, 4), claim("[2]", 8, 16)), "from 4 to 8"),
            ("data after", two(claim("[1]", 0, 4), claim("[2]", 4, 12)), "from 12 to 16"),
            ("no tensors", file("{}", 4), "from 0 to 4"),
            ("duplicate tensor", file(format!(r#"{{"a":{0},"a":{0}}}"#, claim("[2]", 0, 8)), 8), "a occurs twice"),
            ("duplicate field", one(claim("[2]", 0, 8).replacen('{', r#"{"dtype":"F32","#, 1)), "duplicate field"),
            ("duplicate notes", file(r#"{"__metadata__":{},"__metadata__":{}}"#, 0), "twice"),
            ("trailing text", file("{}{}", 0), "trailing"),
            ("many tensors", file(format!("{{{full}"), 0), "EOF"),
        ];
        let timed = |bytes: &[u8]| {
            let begin = Instant::now();
            let entries = read(&mut &bytes[..], bytes.len() as u64);
            (begin.elapsed(), entries)
        };
        let sound = file(format!("{{{}}}", full.trim_end_matches(',')), 4 * 7_000);
        assert_eq!(timed(&sound).1.map(|entries| entries.len()), Ok(7_000));
        let limit = 2 * (0..20).map(|_| timed(&sound).0).min().expect("20 tries");
        for (what, bytes, part) in cases {
            let mut fastest = Duration::MAX;
            for _ in 0..100 {
                let (seconds, entries) = timed(&bytes);
                let message = entries.expect_err(what);
                fastest = fastest.min(seconds);
                assert!(message.contains(part) && message.chars().count() < 400, "{what}: {message}");
                assert!(!message.contains('\n'), "{what}: {message}");
                if fastest <= limit {
                    break;
                }
            }
            println!("{what}: {fastest:?} of {limit:?}");
            assert!(fastest <= limit, "{what}: {fastest:?}, but a sound header takes {limit:?} / 2");
        }
    }
}
