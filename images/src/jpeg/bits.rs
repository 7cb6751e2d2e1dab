//! The bit stream of a scan and its Huffman codes.

use super::{ENDS, Fault};

/// The bits of a scan, most significant first. A marker ends them; zeros follow, and [`Bits::check`] says whether some were taken.
///
/// A copy in a local variable stays in registers: what is called and not inlined takes it by value.
#[derive(Clone, Copy)]
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    /// The first byte of which no bit is counted in `held`.
    at: usize,
    /// The next bits, from the highest. Bits below those that are held are zero or those of the next bytes.
    buffer: u64,
    held: u32,
    /// How many of the held bits, the last ones, come after the end, or did when they were taken.
    padding: u32,
}

/// Bits that are held at least after [`Bits::refill`].
pub(super) const HELD: u32 = 56;

impl<'a> Bits<'a> {
    pub fn new(bytes: &'a [u8]) -> Bits<'a> {
        Bits { bytes, at: 0, buffer: 0, held: 0, padding: 0 }
    }

    /// Makes at least [`HELD`] bits available. It costs less than to ask first whether so many are needed, as no one can guess the answer.
    #[inline(always)]
    pub fn refill(&mut self) {
        if let Some(bytes) = self.bytes.get(self.at..).and_then(<[u8]>::first_chunk::<8>) {
            let word = u64::from_be_bytes(*bytes);
            // Whether no byte is 0xff: none of the inverted word is zero (Warren, "Hacker's Delight", 6-1).
            if (!word).wrapping_sub(0x0101_0101_0101_0101) & word & 0x8080_8080_8080_8080 == 0 {
                self.buffer |= word >> self.held;
                let whole = (63 - self.held) / 8;
                (self.at, self.held) = (self.at + whole as usize, self.held + 8 * whole);
                return;
            }
        }
        *self = self.refilled_by_bytes();
    }

    #[cold]
    #[inline(never)]
    fn refilled_by_bytes(mut self) -> Bits<'a> {
        while self.held < HELD {
            let byte = match self.bytes.get(self.at..) {
                // An 0xff of data is followed by a zero.
                Some([0xff, 0, ..]) => {
                    self.at += 2;
                    0xff
                }
                Some([0xff, ..] | []) | None => {
                    self.padding += 8;
                    0
                }
                Some([byte, ..]) => {
                    self.at += 1;
                    *byte
                }
            };
            self.buffer |= u64::from(byte) << (56 - self.held);
            self.held += 8;
        }
        self
    }

    /// The next `n` bits, from 1 to 32, which stay.
    #[inline(always)]
    fn peek(&self, n: u32) -> usize {
        (self.buffer >> (64 - n)) as usize
    }

    /// Takes `n` bits of those that are held.
    #[inline(always)]
    fn take(&mut self, n: u32) {
        self.buffer <<= n;
        self.held = self.held.wrapping_sub(n);
    }

    /// The next bit.
    pub fn bit(&mut self) -> u32 {
        self.number(1) as u32
    }

    /// A number of `n` bits, of at most 16.
    #[inline(always)]
    pub fn number(&mut self, n: u32) -> i32 {
        self.refill();
        self.held_number(n)
    }

    /// A number of `n` bits, of at most 16, of those that are held.
    #[inline(always)]
    pub fn held_number(&mut self, n: u32) -> i32 {
        // Two shifts, as none by 64 is defined.
        let number = (self.buffer >> 1 >> (63 - n)) as i32;
        self.take(n);
        number
    }

    /// A signed number of `n` bits.
    #[inline(always)]
    pub fn signed(&mut self, n: u32) -> i32 {
        self.refill();
        self.held_signed(n)
    }

    /// A signed number of `n` bits of those that are held.
    #[inline(always)]
    pub fn held_signed(&mut self, n: u32) -> i32 {
        signed(self.held_number(n), n)
    }

    /// # Errors
    /// When bits were taken that come after the end.
    pub fn check(&self) -> Result<(), Fault> {
        match self.padding > self.held {
            true if self.at >= self.bytes.len() => Err(ENDS),
            true => Err("a scan ends early"),
            false => Ok(()),
        }
    }

    /// Passes the marker of a restart.
    pub fn restart(&mut self) -> Result<(), Fault> {
        self.check()?;
        if self.held - self.padding >= 8 {
            return Err("a restart is missing");
        }
        (self.buffer, self.held, self.padding) = (0, 0, 0);
        while self.bytes.get(self.at..self.at + 2) == Some(&[0xff, 0xff]) {
            self.at += 1;
        }
        match self.bytes.get(self.at..self.at + 2) {
            Some([0xff, 0xd0..=0xd7]) => self.at += 2,
            _ => return Err("a restart is missing"),
        }
        Ok(())
    }

    /// Bytes up to one that is not after the end of the scan.
    pub fn read(&self) -> usize {
        self.at
    }
}

/// A number of `n` bits with its sign: those that begin with 0 are negative (T.81, figure F.12).
fn signed(x: i32, n: u32) -> i32 {
    if n > 0 && x < 1 << (n - 1) { x - (1 << n) + 1 } else { x }
}

/// Bits by which the tables of a code are indexed. Longer codes are rare.
pub(super) const INDEX: u32 = 10;
const ENTRIES: usize = 1 << INDEX;

/// A prefix code (T.81, annex C and figure F.16). Its values have a number of zeros in their upper half, and in the lower one the bits of a
/// coefficient that follow.
pub(super) struct Huffman {
    /// For each length: the first code, the number of codes, and where the values of those begin.
    lengths: [(u32, u32, usize); 16],
    values: Vec<u8>,
    /// By the next bits: the value of the code that they begin with, and in the lower byte its length, or 0 if it is longer.
    codes: Box<[u16; ENTRIES]>,
    coefficients: Box<[Coefficient; ENTRIES]>,
    steps: Box<[Step; ENTRIES]>,
}

/// What bits say that begin with a code and the coefficient after it.
#[derive(Clone, Copy, Default)]
pub(super) struct Coefficient {
    pub value: i16,
    /// Coefficients of zero before it. The end of a block has [`END`], more than there are.
    pub zeros: u8,
    /// Of both together; 0 where they are longer than the index.
    bits: u8,
}

/// What to pass for a code and the coefficient after it.
#[derive(Clone, Copy, Default)]
struct Step {
    /// Coefficients, with those of zero; [`END`] at the end of a block.
    coefficients: u8,
    /// Of both together; 0 where the code is longer than the index.
    bits: u8,
}

/// Zeros at the end of a block: with any coefficients before it, more than zeros in the midst of a block, which are 15 at most, could give.
pub(super) const END: u8 = 128;

impl Huffman {
    /// The code of `counts[n]` values of length n + 1.
    pub fn new(counts: &[u8], values: &[u8]) -> Result<Huffman, String> {
        let (mut code, mut at) = (0u32, 0);
        let mut lengths = [(0, 0, 0); 16];
        let mut codes = Box::new([0; ENTRIES]);
        for (n, (length, count)) in (1..).zip(lengths.iter_mut().zip(counts)) {
            *length = (code, u32::from(*count), at);
            let own = values.get(at..at + usize::from(*count)).ok_or(ENDS)?;
            if n <= INDEX {
                for (own_code, value) in (code..).zip(own) {
                    let begin = (own_code as usize) << (INDEX - n);
                    let entries = codes.get_mut(begin..begin + (1 << (INDEX - n)));
                    entries.ok_or("a Huffman table has too many codes")?.fill(u16::from(*value) << 8 | n as u16);
                }
            }
            (code, at) = (code + u32::from(*count), at + usize::from(*count));
            if code > 1 << n {
                return Err("a Huffman table has too many codes".into());
            }
            code *= 2;
        }
        let (mut coefficients, mut steps) =
            (Box::new([Coefficient::default(); ENTRIES]), Box::new([Step::default(); ENTRIES]));
        for (index, entry) in codes.iter().enumerate() {
            let (value, length) = (entry >> 8, u32::from(entry & 0xff));
            let (zeros, size) = ((value >> 4) as u8, u32::from(value & 15));
            let bits = length + size;
            if length == 0 || (size == 0 && (1..15).contains(&zeros)) {
                continue;
            }
            let is_end = value == 0;
            steps[index] = Step { coefficients: if is_end { END } else { zeros + 1 }, bits: bits as u8 };
            if bits <= INDEX {
                let number = (index >> (INDEX - bits)) & ((1 << size) - 1);
                let value = signed(number as i32, size) as i16;
                coefficients[index] = Coefficient { value, zeros: if is_end { END } else { zeros }, bits: bits as u8 };
            }
        }
        Ok(Huffman { lengths, values: values.to_vec(), codes, coefficients, steps })
    }

    /// The next value. 40 bits are still held after it.
    #[inline(always)]
    pub fn value(&self, bits: &mut Bits<'_>) -> Result<u8, Fault> {
        bits.refill();
        let entry = self.codes[bits.peek(INDEX)];
        let (value, length) =
            if entry == 0 { self.long_value(bits.buffer)? } else { ((entry >> 8) as u8, u32::from(entry & 0xff)) };
        bits.take(length);
        Ok(value)
    }

    /// The value whose code comes first in a buffer, and the length of that, which is above that of the index.
    #[cold]
    #[inline(never)]
    fn long_value(&self, buffer: u64) -> Result<(u8, u32), Fault> {
        for (n, (first, count, at)) in (1u32..).zip(&self.lengths).skip(INDEX as usize) {
            let code = (buffer >> (64 - n)) as u32;
            if code >= *first && code - first < *count {
                return Ok((self.values[at + (code - first) as usize], n));
            }
        }
        Err("a scan has a code that is none")
    }

    /// The next coefficient of those bits that are held, with its code; none if both together are longer than [`INDEX`].
    #[inline(always)]
    pub fn coefficient(&self, bits: &mut Bits<'_>) -> Option<Coefficient> {
        let found = self.coefficients[bits.peek(INDEX)];
        bits.take(u32::from(found.bits));
        (found.bits > 0).then_some(found)
    }

    /// Passes the next code of those bits that are held, and the coefficient after it: how many coefficients those are.
    #[inline(always)]
    pub fn step(&self, bits: &mut Bits<'_>) -> Option<u8> {
        let found = self.steps[bits.peek(INDEX)];
        bits.take(u32::from(found.bits));
        (found.bits > 0).then_some(found.coefficients)
    }
}
