//! TFRecord files: records between lengths and checksums.
//!
//! Source of the format: TensorFlow, `tensorflow/core/lib/io/record_writer.h`: length (u64), masked CRC-32C of the length (u32), data,
//! masked CRC-32C of the data (u32), all little-endian.

use std::io::{self, Write};

/// A checksum as the format stores it: checksums of data that contains checksums would be weak.
fn masked(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Writes a record.
///
/// # Errors
/// When `to` cannot be written.
pub fn write(to: &mut impl Write, data: &[u8]) -> io::Result<()> {
    let length = (data.len() as u64).to_le_bytes();
    to.write_all(&length)?;
    to.write_all(&masked(&length).to_le_bytes())?;
    to.write_all(data)?;
    to.write_all(&masked(data).to_le_bytes())
}

/// The records of a file.
///
/// # Errors
/// What is wrong, with the position of the record.
pub fn read(bytes: &[u8]) -> Result<Vec<&[u8]>, String> {
    let (mut at, mut out) = (0, Vec::new());
    while at < bytes.len() {
        let record = || -> Option<Result<(&[u8], usize), &'static str>> {
            let head = bytes.get(at..at + 8)?;
            let stored = u32::from_le_bytes(bytes.get(at + 8..at + 12)?.try_into().ok()?);
            if masked(head) != stored {
                return Some(Err("its length is damaged"));
            }
            let length = usize::try_from(u64::from_le_bytes(head.try_into().ok()?)).ok()?;
            let end = at.checked_add(12)?.checked_add(length)?;
            let data = bytes.get(at + 12..end)?;
            let stored = u32::from_le_bytes(bytes.get(end..end.checked_add(4)?)?.try_into().ok()?);
            if masked(data) != stored {
                return Some(Err("its data is damaged"));
            }
            Some(Ok((data, end + 4)))
        };
        let number = out.len();
        match record() {
            Some(Ok((data, next))) => {
                out.push(data);
                at = next;
            }
            Some(Err(what)) => return Err(format!("record {number} at byte {at}: {what}")),
            None => return Err(format!("record {number} at byte {at}: the file ends in it")),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written() {
        let records: [&[u8]; 3] = [b"first", b"", &[7; 300]];
        let mut file = Vec::new();
        for record in records {
            write(&mut file, record).unwrap();
        }
        assert_eq!(read(&file).unwrap(), records);
        // The checksums that TensorBoard's own writer gives for this length and data.
        let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        assert_eq!((word(8), word(17)), (0x3e04_b2ea, 0xe523_ff55));
        for (at, words) in
            [(0, "record 0 at byte 0: its length"), (13, "record 0 at byte 0: its data"), (40, "record 2 at byte 37")]
        {
            let mut damaged = file.clone();
            damaged[at] ^= 1;
            assert!(read(&damaged).unwrap_err().contains(words), "{at}: {:?}", read(&damaged));
        }
        assert!(read(&file[..file.len() - 1]).unwrap_err().contains("record 2 at byte 37: the file ends in it"));
    }
}
