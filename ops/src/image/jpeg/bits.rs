//! The bit stream of a scan and its Huffman codes.

use super::ENDS;

/// The bits of a scan, most significant first. A marker ends them.
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The lowest `held` bits are still to be given.
    buffer: u32,
    held: u32,
}

impl<'a> Bits<'a> {
    pub fn new(bytes: &'a [u8]) -> Bits<'a> {
        Bits { bytes, at: 0, buffer: 0, held: 0 }
    }

    /// The next bit.
    pub fn bit(&mut self) -> Result<u32, String> {
        if self.held == 0 {
            let byte = *self.bytes.get(self.at).ok_or(ENDS)?;
            if byte == 0xff {
                // An 0xff of data is followed by a zero.
                if self.bytes.get(self.at + 1) != Some(&0) {
                    return Err("a scan ends early".into());
                }
                self.at += 1;
            }
            self.at += 1;
            (self.buffer, self.held) = (u32::from(byte), 8);
        }
        self.held -= 1;
        Ok((self.buffer >> self.held) & 1)
    }

    /// A number of `n` bits, of at most 16.
    pub fn number(&mut self, n: u32) -> Result<i32, String> {
        (0..n).try_fold(0, |x, _| Ok(x << 1 | self.bit()? as i32))
    }

    /// A signed number of `n` bits: those that begin with 0 are negative (T.81, figure F.12).
    pub fn signed(&mut self, n: u32) -> Result<i32, String> {
        let x = self.number(n)?;
        Ok(if n > 0 && x < 1 << (n - 1) { x - (1 << n) + 1 } else { x })
    }

    /// Passes the marker of a restart.
    pub fn restart(&mut self) -> Result<(), String> {
        self.held = 0;
        while self.bytes.get(self.at..self.at + 2) == Some(&[0xff, 0xff]) {
            self.at += 1;
        }
        match self.bytes.get(self.at..self.at + 2) {
            Some([0xff, 0xd0..=0xd7]) => self.at += 2,
            _ => return Err("a restart is missing".into()),
        }
        Ok(())
    }

    /// The bytes that were read.
    pub fn read(&self) -> usize {
        self.at
    }
}

/// A prefix code (T.81, annex C and figure F.16).
pub(super) struct Huffman {
    /// For each length: the first code, the number of codes, and where the values of those begin.
    lengths: [(u32, u32, usize); 16],
    values: Vec<u8>,
}

impl Huffman {
    /// The code of `counts[n]` values of length n + 1.
    pub fn new(counts: &[u8], values: &[u8]) -> Result<Huffman, String> {
        let (mut code, mut at) = (0u32, 0);
        let mut lengths = [(0, 0, 0); 16];
        for (n, (length, count)) in lengths.iter_mut().zip(counts).enumerate() {
            *length = (code, u32::from(*count), at);
            (code, at) = (code + u32::from(*count), at + usize::from(*count));
            if code > 2 << n {
                return Err("a Huffman table has too many codes".into());
            }
            code *= 2;
        }
        Ok(Huffman { lengths, values: values.to_vec() })
    }

    /// The next value.
    pub fn value(&self, bits: &mut Bits<'_>) -> Result<u8, String> {
        let mut code = 0;
        for (first, count, at) in &self.lengths {
            code = code << 1 | bits.bit()?;
            if code >= *first && code - first < *count {
                return Ok(self.values[at + (code - first) as usize]);
            }
        }
        Err("a scan has a code that is none".into())
    }
}
