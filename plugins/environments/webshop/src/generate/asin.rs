//! Numbers of products that look like Amazon's.

/// Digits of an ASIN.
const DIGITS: &[u8; 36] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
/// Bits of a product's number. 36⁸ is a little more than 2⁴¹, so eight digits have room for them.
const BITS: u32 = 41;
/// Factors of the two rounds. An odd one has an inverse, so no two numbers have the same product.
const FACTORS: [u64; 2] = [0x9E37_79B9_7F4A_7C15, 0xBF58_476D_1CE4_E5B9];
const _: () = assert!(FACTORS[0] % 2 == 1 && FACTORS[1] % 2 == 1);

/// The ASIN of product `n` (below 2⁴¹). Every step is a bijection, so no two products of a key share one.
pub fn asin(key: u64, n: u64) -> String {
    const MASK: u64 = (1 << BITS) - 1;
    let mut x = n.wrapping_add(key) & MASK;
    for factor in FACTORS {
        x = x.wrapping_mul(factor) & MASK;
        x ^= x >> (BITS / 2);
    }
    let mut text = *b"B000000000";
    for digit in text[2..].iter_mut().rev() {
        *digit = DIGITS[(x % 36) as usize];
        x /= 36;
    }
    text.map(char::from).iter().collect()
}

/// The ASIN of product `n` in a little shop: three digits for the first thousand products, so that a small network can
/// copy it.
pub fn short(key: u64, n: u64) -> String {
    // 787 and 1,000 have no common factor, so no two products share one.
    let mixed = (n % 1000 * 787 + key % 1000) % 1000;
    match n / 1000 {
        0 => format!("B{mixed:03}"),
        thousand => format!("B{thousand:04}{mixed:03}"),
    }
}
