//! CRC32C of bytes that need not be read: of holes, and of parts whose checksums are known.

use crc32c::crc32c_combine;

/// The polynomial, with the coefficient of x^31 in the lowest bit (RFC 3720, B.4).
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// x^(2^n) modulo the polynomial, for each n.
const POWERS: [u32; 67] = {
    let mut powers = [1 << 30; 67];
    let mut n = 1;
    while n < powers.len() {
        powers[n] = multiply(powers[n - 1], powers[n - 1]);
        n += 1;
    }
    powers
};

/// The product of two polynomials, modulo the polynomial.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let (mut product, mut bit) = (0, 1_u32 << 31);
    while bit != 0 {
        if a & bit != 0 {
            product ^= b;
        }
        b = if b & 1 == 1 { b >> 1 ^ POLYNOMIAL } else { b >> 1 };
        bit >>= 1;
    }
    product
}

/// x^(8 `len`): what appending so many bytes multiplies by.
fn shift(len: u64) -> u32 {
    let bits = (0..64).filter(|n| len >> n & 1 == 1);
    bits.fold(1 << 31, |product, n| multiply(product, POWERS[n + 3]))
}

/// The checksum of parts that follow one another, from the length and the checksum of each. A million of one length
/// take some 50 ms (as zlib's `crc32_combine_op` does it).
pub fn crc32c_join(parts: impl IntoIterator<Item = (u64, u32)>) -> u32 {
    let (mut known, mut by) = (0, shift(0));
    parts.into_iter().fold(0, |crc, (len, next)| {
        if len != known {
            (known, by) = (len, shift(len));
        }
        multiply(by, crc) ^ next
    })
}

/// The checksum of what had the checksum `crc`, and so many zeroes behind it. Takes no longer for many than for few.
pub fn crc32c_zeroes(crc: u32, count: u64) -> u32 {
    // Of 2^n zeroes, n by n, and of those that are counted so far.
    let (mut power, mut of_power) = (1_usize, crc32c::crc32c(&[0]));
    let (mut crc, mut left) = (crc, count);
    while left > 0 {
        if left & 1 == 1 {
            crc = crc32c_combine(crc, of_power, power);
        }
        left >>= 1;
        if left > 0 {
            of_power = crc32c_combine(of_power, of_power, power);
            power <<= 1;
        }
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;
    use crc32c::{crc32c, crc32c_append};

    #[test]
    fn parts_are_joined_as_if_they_had_been_one() {
        let bytes: Vec<u8> = (0..100_000_u64).map(|n| ((n * n) >> 7) as u8).collect();
        for lens in [&[][..], &[100_000], &[1, 99_999], &[4096; 24], &[0, 3, 0, 70_000, 3, 3, 1]] {
            let (mut at, mut parts) = (0, Vec::new());
            for len in lens {
                parts.push((*len as u64, crc32c(&bytes[at..at + len])));
                at += len;
            }
            assert_eq!(crc32c_join(parts), crc32c(&bytes[..at]), "{lens:?}");
        }
        for len in [1 << 20, 1 << 40, (1 << 62) + 12_345] {
            let combined = crc32c_combine(7, 0x1234_5678, len);
            assert_eq!(crc32c_join([(1, 7), (len as u64, 0x1234_5678)]), combined, "{len}");
        }
    }

    #[test]
    fn zeroes_need_not_be_read() {
        for count in [0, 1, 2, 3, 7, 8, 4095, 4096, 100_001] {
            let zeroes = vec![0; count];
            assert_eq!(crc32c_zeroes(0, count as u64), crc32c(&zeroes), "{count}");
            assert_eq!(crc32c_zeroes(crc32c(b"abc"), count as u64), crc32c_append(crc32c(b"abc"), &zeroes), "{count}");
        }
        // In two parts, whatever their size.
        let (some, more) = (15 << 40, u64::MAX >> 1);
        assert_eq!(crc32c_zeroes(crc32c_zeroes(7, some), more), crc32c_zeroes(7, some + more));
    }
}
