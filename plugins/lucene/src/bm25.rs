//! Lucene 8.11's `BM25Similarity` with Anserini's k1 = 0.9 and b = 0.4. All is in f32, in Lucene's order of operations.

const K1: f32 = 0.9;
const B: f32 = 0.4;
/// Lengths below this are their own code (`SmallFloat.intToByte4`).
const EXACT: u32 = 24;

/// Returns the weight of a term that `documents` of `all` have. `count` is the number of times that the query has it.
pub fn weight(count: u32, documents: u32, all: u32) -> f32 {
    let (documents, all) = (f64::from(documents), f64::from(all));
    count as f32 * (1.0 + (all - documents + 0.5) / (documents + 0.5)).ln() as f32
}

/// Returns a term's part of a score. `saturation` is frequency times inverse norm. It never falls while `saturation` grows,
/// since each operation rounds its exact result.
#[inline]
pub fn part(weight: f32, saturation: f32) -> f32 {
    weight - weight / (1.0 + saturation)
}

/// Returns the inverse norms of the 256 length codes. `tokens` is the number of terms in `documents` documents.
pub fn inverse_norms(tokens: u64, documents: u32) -> [f32; 256] {
    let average = (tokens as f64 / f64::from(documents.max(1))) as f32;
    std::array::from_fn(|code| 1.0 / (K1 * ((1.0 - B) + B * decode(code as u8) as f32 / average)))
}

/// Returns the code of a length: exact below 24, then 4 leading bits.
pub fn encode(length: u32) -> u8 {
    let Some(rest) = length.checked_sub(EXACT) else { return length as u8 };
    let bits = u32::BITS - rest.leading_zeros();
    let code = match bits.checked_sub(4) {
        None => rest,
        Some(shift) => (rest >> shift & 7) | (shift + 1) << 3,
    };
    // Java's greatest length gives 255.
    (EXACT + code).min(255) as u8
}

/// Returns the length that a code means.
fn decode(code: u8) -> u64 {
    let Some(rest) = u64::from(code).checked_sub(u64::from(EXACT)) else { return code.into() };
    match (rest >> 3).checked_sub(1) {
        None => u64::from(EXACT) + rest,
        Some(shift) => u64::from(EXACT) + ((rest & 7 | 8) << shift),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // From org.apache.lucene.util.SmallFloat of Lucene 8.11: intToByte4(length) & 0xff, byte4ToInt of it.
    #[test]
    fn lengths_have_lucene_s_codes() {
        for (length, code, decoded) in CODES {
            assert_eq!((encode(length), decode(code)), (code, decoded), "length {length}");
        }
    }

    const CODES: [(u32, u8, u64); 9] = [
        (0, 0, 0),
        (23, 23, 23),
        (24, 24, 24),
        (39, 39, 39),
        (40, 40, 40),
        (41, 40, 40),
        (57, 48, 56),
        (100000, 140, 98328),
        (2147483647, 255, 2013265944),
    ];
}
