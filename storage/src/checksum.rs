//! Combining two checksums.

/// The polynomial of CRC-32C, its bits reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// The polynomial 1.
const ONE: u32 = 1 << 31;
/// x to the power of 2^n, modulo the polynomial: enough for the number of bits in any slice of
/// memory.
const POWERS: [u32; 67] = powers();

/// The CRC-32C of some bytes followed by `length` others, from the checksums of both. It takes as
/// long as reading some thousand bytes: one product for every bit that is set in `length`.
pub(crate) fn combine_checksums(first: u32, second: u32, length: usize) -> u32 {
    let mut factor = ONE;
    let (mut remaining, mut power) = (length, 3);
    while remaining > 0 {
        if remaining & 1 == 1 {
            factor = product(POWERS[power], factor);
        }
        remaining >>= 1;
        power += 1;
    }
    product(factor, first) ^ second
}

const fn powers() -> [u32; 67] {
    let mut powers = [ONE >> 1; 67];
    let mut index = 1;
    while index < powers.len() {
        powers[index] = product(powers[index - 1], powers[index - 1]);
        index += 1;
    }
    powers
}

/// The product of two polynomials modulo the polynomial of the checksum.
const fn product(left: u32, mut right: u32) -> u32 {
    let (mut sum, mut bit) = (0, ONE);
    while bit > 0 {
        if left & bit != 0 {
            sum ^= right;
        }
        bit >>= 1;
        right = (right >> 1) ^ (POLYNOMIAL & (right & 1).wrapping_neg());
    }
    sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn checksums_of_any_length_combine_to_that_of_both() {
        let bytes: Vec<u8> = (0..(3 << 20)).map(|index: u32| (index % 251) as u8).collect();
        for length in [0, 1, 2, 3, 255, 4096, 16_323, 1_000_000, 1 << 20, (2 << 20) + 12_345] {
            let (head, rest) = bytes[..41 + length].split_at(41);
            let (first, second) = (crc32c::crc32c(head), crc32c::crc32c(rest));
            let whole = crc32c::crc32c(&bytes[..41 + length]);
            assert_eq!(combine_checksums(first, second, length), whole, "{length}");
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_another_way(first: u32, second: u32, length in 1_usize..1 << 31) {
            let other = crc32c::crc32c_combine(first, second, length);
            prop_assert_eq!(combine_checksums(first, second, length), other);
        }
    }
}
