//! Frames of phasor measurement units: IEEE C37.118.2.
//!
//! Every frame begins `SYNC(2) FRAMESIZE(2) IDCODE(2) SOC(4) FRACSEC(4)` and ends with `CHK(2)`,
//! all big-endian. SOC counts seconds since 1970. The low 24 bits of FRACSEC count fractions of a
//! second, in units of 1/TIME_BASE. TIME_BASE is only in configuration frames, so the topic's
//! setting contains it.

use crate::ExtractError;

const SYNC: u8 = 0xaa;
/// The length of a frame without data.
const FRAME_BYTES_MIN: usize = 16;
const FRACTION: u32 = 0x00ff_ffff;

/// The time of the frame in `value`.
pub(crate) fn extract_time(value: &[u8], time_base: u32) -> Result<i64, ExtractError> {
    let bad = |why: String| Err(ExtractError::Frame(why));
    if value.len() < FRAME_BYTES_MIN {
        return bad(format!("it has {} bytes, which is too short", value.len()));
    }
    if value[0] != SYNC {
        return bad(format!("it begins with {:02x}, and not with aa", value[0]));
    }
    let size = usize::from(u16::from_be_bytes([value[2], value[3]]));
    if size != value.len() {
        return bad(format!("it says that it has {size} bytes, and has {}", value.len()));
    }
    let (frame, check) = value.split_at(size - 2);
    let (expected, found) = (crc(frame), u16::from_be_bytes([check[0], check[1]]));
    if expected != found {
        return bad(format!("its checksum is {found:04x}, and should be {expected:04x}"));
    }
    let word =
        |at: usize| u32::from_be_bytes([value[at], value[at + 1], value[at + 2], value[at + 3]]);
    let (seconds, fraction) = (word(6), word(10) & FRACTION);
    if fraction >= time_base {
        return bad(format!(
            "its fraction of a second, {fraction}, does not fit the topic's time base {time_base}"
        ));
    }
    Ok(i64::from(seconds) * 1000 + i64::from(fraction) * 1000 / i64::from(time_base))
}

/// CRC-CCITT: x^16 + x^12 + x^5 + 1, from all ones. Eight bytes a step.
fn crc(bytes: &[u8]) -> u16 {
    let (chunks, rest) = bytes.as_chunks::<8>();
    let crc = chunks.iter().fold(0xffff, |crc: u16, chunk| {
        let head = u16::from_be_bytes([chunk[0], chunk[1]]) ^ crc;
        let [first, second] = head.to_be_bytes();
        let tail = [first, second, chunk[2], chunk[3], chunk[4], chunk[5], chunk[6], chunk[7]];
        tail.iter()
            .zip(TABLES.iter().rev())
            .fold(0, |sum, (byte, table)| sum ^ table[usize::from(*byte)])
    });
    rest.iter().fold(crc, |crc, byte| (crc << 8) ^ TABLES[0][usize::from((crc >> 8) as u8 ^ byte)])
}

/// The contribution of a byte at each distance from the end of a step.
const TABLES: [[u16; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut at = 1;
    while at < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[at - 1][byte];
            tables[at][byte] = (before << 8) ^ tables[0][(before >> 8) as usize];
            byte += 1;
        }
        at += 1;
    }
    tables
};

#[cfg(test)]
mod tests {
    use super::*;

    /// A data frame as a unit sends it: one phasor, the frequency, and its rate of change.
    fn frame(seconds: u32, fraction: u32) -> Vec<u8> {
        let mut frame = vec![0xaa, 0x01, 0, 0, 0x1e, 0x36];
        frame.extend(seconds.to_be_bytes());
        // Time quality in the high byte: a leap second is near.
        frame.extend((fraction | 0x2f00_0000).to_be_bytes());
        frame.extend([0, 0, 0x39, 0x2b, 0xe3, 0x6a, 0x09, 0xc4, 0, 0]);
        frame.extend([0, 0]);
        let size = frame.len() as u16;
        frame[2..4].copy_from_slice(&size.to_be_bytes());
        seal(&mut frame);
        frame
    }

    fn seal(frame: &mut [u8]) {
        let end = frame.len() - 2;
        let crc = crc(&frame[..end]);
        frame[end..].copy_from_slice(&crc.to_be_bytes());
    }

    #[test]
    fn the_checksum_is_ccitt_s() {
        assert_eq!(crc(b"123456789"), 0x29b1);
        let bytes: Vec<u8> = (0..100u8).map(|nth| nth.wrapping_mul(37)).collect();
        for length in 0..bytes.len() {
            let slow = bytes[..length].iter().fold(0xffff_u16, |crc, byte| {
                (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
                    (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 }
                })
            });
            assert_eq!(crc(&bytes[..length]), slow, "{length} bytes");
        }
    }

    #[test]
    fn seconds_and_parts_of_one_are_read_without_the_time_quality() {
        assert_eq!(extract_time(&frame(1_149_577_200, 16_817), 1_000_000), Ok(1_149_577_200_016));
        assert_eq!(extract_time(&frame(1_149_577_200, 463_000), 1_000_000), Ok(1_149_577_200_463));
        assert_eq!(extract_time(&frame(u32::MAX, 59), 60), Ok(4_294_967_295_983));
    }

    #[test]
    fn a_frame_that_is_damaged_is_refused() {
        let whole = frame(1_149_577_200, 16_817);
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(
                matches!(extract_time(&flipped, 1_000_000), Err(ExtractError::Frame(_))),
                "bit {bit}"
            );
        }
        for length in 0..whole.len() {
            assert!(extract_time(&whole[..length], 1_000_000).is_err());
        }
        assert!(extract_time(&[&whole[..], b"x"].concat(), 1_000_000).is_err());
        assert!(extract_time(&whole, 16_817).is_err(), "a fraction of the base is below it");
    }
}
