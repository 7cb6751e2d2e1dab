//! Coefficients from the codes of a scan (T.81, annexes F and G).

use super::bits::{Bits, END, HELD, Huffman, INDEX};
use super::{Fault, Frame, TOO_MANY, ZIGZAG};

/// A component of a scan.
pub(super) struct Member<'a> {
    /// Which one of the frame's.
    pub index: usize,
    pub dc: Option<&'a Huffman>,
    pub ac: Option<&'a Huffman>,
    /// The last DC coefficient, from which the next one differs by what is coded.
    pub last_dc: i32,
}

/// Which coefficients a scan has, and which of their bits.
pub(super) struct Scan {
    pub first: usize,
    pub last: usize,
    /// Whether it adds one bit to what scans before it gave.
    pub refines: bool,
    /// The bit that is the lowest one given.
    pub low: u8,
    /// Units between restarts; 0 for none.
    pub restart: usize,
}

/// What the codes of a scan gave.
pub(super) struct Read {
    /// Bytes up to one that is not after the end of the scan.
    pub bytes: usize,
    /// Whether all samples that are wanted are there, although the scan goes on.
    pub suffices: bool,
}

const NO_TABLE: Fault = "a Huffman table is missing";

/// Where a block has its coefficients in the order of the file; those that damaged files have after the last are the last one.
const PLACES: [u8; 256] = {
    let mut places = [63; 256];
    let mut k = 0;
    while k < 64 {
        places[k] = ZIGZAG[k] as u8;
        k += 1;
    }
    places
};

impl Scan {
    /// Reads the scan into the frame.
    pub fn read(&self, frame: &mut Frame, members: &mut [Member<'_>], codes: &[u8]) -> Result<Read, Fault> {
        let mut bits = Bits::new(codes);
        // Blocks that are still to be left as they are: a run of them was coded as one.
        let mut run = 0;
        // A scan of one component has its blocks row by row, without those that only fill up units.
        let single = members.len() == 1;
        let (across, down) = if single {
            let c = &frame.components[members[0].index];
            (c.width.div_ceil(8), c.height.div_ceil(8))
        } else {
            frame.units
        };
        for y in 0..down {
            let is_over = |m: &Member<'_>| {
                let c = &frame.components[m.index];
                y * if single { 1 } else { c.v } >= c.rows.end
            };
            if !frame.progressive && members.len() == frame.components.len() && members.iter().all(is_over) {
                return Ok(Read { bytes: bits.read(), suffices: true });
            }
            for x in 0..across {
                let unit = y * across + x;
                if self.restart > 0 && unit > 0 && unit.is_multiple_of(self.restart) {
                    bits.restart()?;
                    members.iter_mut().for_each(|m| m.last_dc = 0);
                    run = 0;
                }
                for m in members.iter_mut() {
                    let c = &mut frame.components[m.index];
                    let (h, v) = if single { (1, 1) } else { (c.h, c.v) };
                    for k in 0..h * v {
                        let (row, column) = (y * v + k / h, x * h + k % h);
                        if frame.progressive {
                            self.block(&mut c.blocks[row * c.stride + column], m, &mut bits, &mut run)?;
                        } else if c.rows.contains(&row) && c.columns.contains(&column) {
                            whole_block(&mut c.blocks[k / h * c.stride + column], m, &mut bits)?;
                        } else {
                            pass_block(m, &mut bits)?;
                        }
                    }
                }
            }
            bits.check()?;
            if !frame.progressive {
                for m in &*members {
                    let c = &mut frame.components[m.index];
                    let v = if single { 1 } else { c.v };
                    (0..v).for_each(|k| c.transform(k, y * v + k));
                }
            }
        }
        Ok(Read { bytes: bits.read(), suffices: false })
    }

    /// The coefficients of a block that a scan of a progressive picture has.
    fn block(&self, b: &mut [i16; 64], m: &mut Member<'_>, bits: &mut Bits<'_>, run: &mut u32) -> Result<(), Fault> {
        let mut first = self.first;
        if first == 0 {
            first = 1;
            if self.refines {
                b[0] |= (bits.bit() << self.low) as i16;
            } else {
                b[0] = (m.next_dc(bits)? << self.low) as i16;
            }
        }
        if first > self.last {
            return Ok(());
        }
        let code = m.ac.ok_or(NO_TABLE)?;
        if self.refines { self.refine(b, code, bits, run) } else { self.fill(b, first, code, bits, run) }
    }

    /// The first bits of AC coefficients.
    fn fill(
        &self,
        b: &mut [i16; 64],
        first: usize,
        code: &Huffman,
        bits: &mut Bits<'_>,
        run: &mut u32,
    ) -> Result<(), Fault> {
        if *run > 0 {
            *run -= 1;
            return Ok(());
        }
        let mut k = first;
        while k <= self.last {
            let value = code.value(bits)?;
            let (zeros, size) = (u32::from(value >> 4), u32::from(value & 15));
            if size == 0 && zeros < 15 {
                *run = (1 << zeros) - 1 + bits.number(zeros) as u32;
                return Ok(());
            }
            k += zeros as usize;
            if size > 0 {
                let at = ZIGZAG.get(k).ok_or(TOO_MANY)?;
                b[*at] = (bits.signed(size) << self.low) as i16;
            }
            k += 1;
        }
        Ok(())
    }

    /// One more bit of AC coefficients: of those that are not zero, and of some that were until now (T.81, G.1.2.3).
    fn refine(&self, b: &mut [i16; 64], code: &Huffman, bits: &mut Bits<'_>, run: &mut u32) -> Result<(), Fault> {
        let step = 1i16 << self.low;
        let correct = |c: &mut i16, bits: &mut Bits<'_>| -> Result<(), Fault> {
            if bits.bit() == 1 && *c & step == 0 {
                *c = c.wrapping_add(if *c > 0 { step } else { -step });
            }
            Ok(())
        };
        let mut k = self.first;
        while *run == 0 && k <= self.last {
            let value = code.value(bits)?;
            let (mut zeros, size) = (u32::from(value >> 4), value & 15);
            let mut new = 0;
            match size {
                0 if zeros < 15 => {
                    *run = (1 << zeros) + bits.number(zeros) as u32;
                    break;
                }
                0 => {}
                1 => new = if bits.bit() == 1 { step } else { -step },
                _ => return Err("a coefficient grows by more than a bit"),
            }
            while k <= self.last {
                let c = &mut b[ZIGZAG[k]];
                k += 1;
                if *c != 0 {
                    correct(c, bits)?;
                } else if zeros > 0 {
                    zeros -= 1;
                } else {
                    *c = new;
                    break;
                }
            }
        }
        if *run > 0 {
            for at in &ZIGZAG[k..=self.last] {
                if b[*at] != 0 {
                    correct(&mut b[*at], bits)?;
                }
            }
            *run -= 1;
        }
        Ok(())
    }
}

impl Member<'_> {
    /// The next DC coefficient.
    #[inline(always)]
    fn next_dc(&mut self, bits: &mut Bits<'_>) -> Result<i32, Fault> {
        let size = u32::from(self.dc.ok_or(NO_TABLE)?.value(bits)?);
        if size > 15 {
            return Err("a coefficient is too large");
        }
        self.last_dc = self.last_dc.wrapping_add(bits.held_signed(size));
        Ok(self.last_dc)
    }
}

/// Coefficients that are read between two refills. Those of steps have codes as long as the index and numbers of 15 bits.
const COEFFICIENTS_HELD: u32 = HELD / INDEX;
const STEPS_HELD: u32 = HELD / (INDEX + 15);

/// All coefficients of a block, which were zero.
#[inline(always)]
fn whole_block(b: &mut [i16; 64], m: &mut Member<'_>, held: &mut Bits<'_>) -> Result<(), Fault> {
    let mut bits = *held;
    b[0] = m.next_dc(&mut bits)? as i16;
    let code = m.ac.ok_or(NO_TABLE)?;
    let mut k = 1usize;
    let mut place = |k: &mut usize, zeros: u8, value: i16| {
        *k += usize::from(zeros);
        // A zero is written at the end of a block and after 15 others, where one is.
        b[usize::from(PLACES[*k % 256] % 64)] = value;
        *k += 1;
    };
    while k < 64 {
        bits.refill();
        for _ in 0..COEFFICIENTS_HELD {
            if let Some(c) = code.coefficient(&mut bits) {
                place(&mut k, c.zeros, c.value);
            } else {
                let value = code.value(&mut bits)?;
                let (zeros, size) = (value >> 4, u32::from(value & 15));
                let zeros = if size == 0 && zeros < 15 { END } else { zeros };
                place(&mut k, zeros, bits.held_signed(size) as i16);
                break;
            }
            if k >= 64 {
                break;
            }
        }
    }
    *held = bits;
    if (65..usize::from(END)).contains(&k) { Err(TOO_MANY) } else { Ok(()) }
}

/// Passes a block of which no pixel is wanted.
#[inline(always)]
fn pass_block(m: &mut Member<'_>, held: &mut Bits<'_>) -> Result<(), Fault> {
    let mut bits = *held;
    m.next_dc(&mut bits)?;
    let code = m.ac.ok_or(NO_TABLE)?;
    let mut k = 1u32;
    while k < 64 {
        bits.refill();
        for _ in 0..STEPS_HELD {
            if let Some(coefficients) = code.step(&mut bits) {
                k += u32::from(coefficients);
            } else {
                let value = code.value(&mut bits)?;
                let (zeros, size) = (u32::from(value >> 4), u32::from(value & 15));
                bits.held_number(size);
                k += if size == 0 && zeros < 15 { u32::from(END) } else { zeros + 1 };
                break;
            }
            if k >= 64 {
                break;
            }
        }
    }
    *held = bits;
    if (65..u32::from(END)).contains(&k) { Err(TOO_MANY) } else { Ok(()) }
}
