//! TFRecord files: records between lengths and checksums.
//!
//! Source of the format: TensorFlow, `tensorflow/core/lib/io/record_writer.h`: length (u64), masked CRC-32C of the length (u32), data,
//! masked CRC-32C of the data (u32), all little-endian.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};

use super::features::Extent;

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

/// The records of a file of so many bytes: the data of each, with its checksum. What is wrong is said with the position of the record.
///
/// # Errors
/// When the file cannot be read.
pub fn index(file: &mut BufReader<File>, bytes: u64) -> io::Result<Result<Vec<Extent>, String>> {
    let (mut at, mut out) = (0, Vec::new());
    while at < bytes {
        let wrong = |what: &str| Ok(Err(format!("record {} at byte {at}: {what}", out.len())));
        if bytes - at < HEAD {
            return wrong("the file ends in it");
        }
        let mut head = [0; HEAD as usize];
        file.read_exact(&mut head)?;
        let (length, stored) = head.split_at(8);
        if masked(length).to_le_bytes() != stored {
            return wrong("its length is damaged");
        }
        let length = length.try_into().map_or(u64::MAX, u64::from_le_bytes);
        let end = length.checked_add(CHECKSUM).and_then(|length| length.checked_add(at + HEAD));
        let Some(end) = end.filter(|end| *end <= bytes) else { return wrong("the file ends in it") };
        let (offset, Ok(own)) = (at + HEAD, u32::try_from(length + CHECKSUM)) else {
            return wrong("it has 4 GiB or more");
        };
        out.push(Extent { offset, bytes: own });
        file.seek_relative(i64::from(own))?;
        at = end;
    }
    Ok(Ok(out))
}

/// The data of a record without its checksum.
///
/// # Errors
/// When it is damaged.
pub fn checked(record: &[u8]) -> Result<&[u8], String> {
    let Some((data, stored)) = record.split_last_chunk::<4>() else { return Err("it has no checksum".into()) };
    if masked(data).to_le_bytes() == *stored { Ok(data) } else { Err("its data is damaged".into()) }
}

/// Bytes of a length and its checksum.
const HEAD: u64 = 12;
/// Bytes of a checksum.
const CHECKSUM: u64 = 4;

/// The records of a file.
///
/// # Errors
/// What is wrong, with the position of the record.
#[cfg(test)]
pub fn read(bytes: &[u8]) -> Result<Vec<&[u8]>, String> {
    use std::io::Seek;

    let mut file = tempfile::tempfile().map_err(|e| e.to_string())?;
    file.write_all(bytes).and_then(|()| file.rewind()).map_err(|e| e.to_string())?;
    let records = index(&mut BufReader::new(file), bytes.len() as u64).map_err(|e| e.to_string())??;
    let data = |(number, extent): (usize, Extent)| {
        let data = checked(&bytes[extent.offset as usize..][..extent.bytes as usize]);
        let at = extent.offset - HEAD;
        data.map_err(|what| format!("record {number} at byte {at}: {what}"))
    };
    records.into_iter().enumerate().map(data).collect()
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
