//! The wire format: frames of data, and strings and numbers of the rendezvous. All numbers are little endian.

use std::io::{self, Read, Write};

/// Bytes of a frame's header.
pub const HEADER: usize = 28;

/// The first bytes of a frame.
const MAGIC: [u8; 4] = *b"OFfr";

/// The longest text or list in a message of the rendezvous.
const MAX_LEN: u32 = 1 << 20;

/// What precedes the bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The number of the rendezvous.
    pub id: u32,
    /// Bytes of the whole message, of which a part follows.
    pub length: u64,
    /// The CRC-32 of that part, which begins with its place in the message.
    pub crc: u32,
    /// The number of the message among those of its connection, from 1 on.
    pub number: u32,
}

impl Header {
    /// With a checksum of its own, so that a damaged length is not believed.
    pub fn encode(self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[..4].copy_from_slice(&MAGIC);
        out[4..8].copy_from_slice(&self.id.to_le_bytes());
        out[8..16].copy_from_slice(&self.length.to_le_bytes());
        out[16..20].copy_from_slice(&self.crc.to_le_bytes());
        out[20..24].copy_from_slice(&self.number.to_le_bytes());
        let own = crc32fast::hash(&out[..24]);
        out[24..].copy_from_slice(&own.to_le_bytes());
        out
    }

    /// `None` where the bytes are no header, or a damaged one.
    pub fn decode(bytes: &[u8; HEADER]) -> Option<Header> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[..4] != MAGIC || crc32fast::hash(&bytes[..24]) != word(24) {
            return None;
        }
        let length = u64::from(word(8)) | u64::from(word(12)) << 32;
        Some(Header { id: word(4), length, crc: word(16), number: word(20) })
    }
}

/// Reads a number.
pub fn read_u32(from: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

/// Reads the length of a list or text.
pub fn read_len(from: &mut impl Read) -> io::Result<u32> {
    let len = read_u32(from)?;
    if len > MAX_LEN {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a length is out of range"));
    }
    Ok(len)
}

/// Reads a text.
pub fn read_text(from: &mut impl Read) -> io::Result<String> {
    let mut bytes = vec![0; read_len(from)? as usize];
    from.read_exact(&mut bytes)?;
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a text is not UTF-8"))
}

/// Writes a text, cut where it is too long.
pub fn write_text(to: &mut impl Write, text: &str) -> io::Result<()> {
    let text = &text[..text.floor_char_boundary(MAX_LEN as usize)];
    to.write_all(&(text.len() as u32).to_le_bytes())?;
    to.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_and_flipped_bits_are_noticed() {
        let header = Header { id: 7, length: 10, crc: crc32fast::hash(b"some bytes"), number: 3 };
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Some(header));
        for bit in 0..HEADER * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&damaged), None, "bit {bit}");
        }
    }

    #[test]
    fn random_bytes_are_errors() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..100_000 {
            let bytes: Vec<u8> = (0..rng.usize(0..64)).map(|_| rng.u8(..)).collect();
            if let Ok(header) = <&[u8; HEADER]>::try_from(&bytes[..]) {
                assert_eq!(Header::decode(header), None);
            }
            // Whatever is read, it was there.
            if let Ok(text) = read_text(&mut &bytes[..]) {
                assert!(text.len() + 4 <= bytes.len());
            }
        }
    }

    #[test]
    fn texts_survive() {
        let mut bytes = Vec::new();
        write_text(&mut bytes, "rank 3: größer").unwrap();
        assert_eq!(read_text(&mut &bytes[..]).unwrap(), "rank 3: größer");
        let long = "é".repeat(MAX_LEN as usize);
        bytes.clear();
        write_text(&mut bytes, &long).unwrap();
        assert_eq!(read_text(&mut &bytes[..]).unwrap().len(), MAX_LEN as usize);
    }
}
