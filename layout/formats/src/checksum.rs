//! CRC32C of bytes that need not be read: of holes.

use crc32c::crc32c_combine;

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
