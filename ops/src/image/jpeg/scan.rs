//! Coefficients from the codes of a scan (T.81, annexes F and G).

use super::bits::{Bits, Huffman};
use super::{Frame, ZIGZAG};

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

impl Scan {
    /// Reads the scan into the frame; gives how many bytes it takes.
    pub fn read(&self, frame: &mut Frame, members: &mut [Member<'_>], codes: &[u8]) -> Result<usize, String> {
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
        for unit in 0..across * down {
            if self.restart > 0 && unit > 0 && unit % self.restart == 0 {
                bits.restart()?;
                members.iter_mut().for_each(|m| m.last_dc = 0);
                run = 0;
            }
            let (x, y) = (unit % across, unit / across);
            for m in members.iter_mut() {
                let c = &mut frame.components[m.index];
                let (h, v) = if single { (1, 1) } else { (c.h, c.v) };
                for k in 0..h * v {
                    let block = &mut c.blocks[(y * v + k / h) * c.stride + x * h + k % h];
                    self.block(block, m, &mut bits, &mut run)?;
                }
            }
        }
        Ok(bits.read())
    }

    fn block(&self, b: &mut [i16; 64], m: &mut Member<'_>, bits: &mut Bits<'_>, run: &mut u32) -> Result<(), String> {
        let missing = "a Huffman table is missing";
        let mut first = self.first;
        if first == 0 {
            first = 1;
            if self.refines {
                b[0] |= (bits.bit()? << self.low) as i16;
            } else {
                let size = u32::from(m.dc.ok_or(missing)?.value(bits)?);
                if size > 15 {
                    return Err("a coefficient is too large".into());
                }
                m.last_dc = m.last_dc.wrapping_add(bits.signed(size)?);
                b[0] = (m.last_dc << self.low) as i16;
            }
        }
        if first > self.last {
            return Ok(());
        }
        let code = m.ac.ok_or(missing)?;
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
    ) -> Result<(), String> {
        if *run > 0 {
            *run -= 1;
            return Ok(());
        }
        let mut k = first;
        while k <= self.last {
            let value = code.value(bits)?;
            let (zeros, size) = (u32::from(value >> 4), u32::from(value & 15));
            if size == 0 && zeros < 15 {
                *run = (1 << zeros) - 1 + bits.number(zeros)? as u32;
                return Ok(());
            }
            k += zeros as usize;
            if size > 0 {
                let at = ZIGZAG.get(k).ok_or("a block has too many coefficients")?;
                b[*at] = (bits.signed(size)? << self.low) as i16;
            }
            k += 1;
        }
        Ok(())
    }

    /// One more bit of AC coefficients: of those that are not zero, and of some that were until now (T.81, G.1.2.3).
    fn refine(&self, b: &mut [i16; 64], code: &Huffman, bits: &mut Bits<'_>, run: &mut u32) -> Result<(), String> {
        let step = 1i16 << self.low;
        let correct = |c: &mut i16, bits: &mut Bits<'_>| -> Result<(), String> {
            if bits.bit()? == 1 && *c & step == 0 {
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
                    *run = (1 << zeros) + bits.number(zeros)? as u32;
                    break;
                }
                0 => {}
                1 => new = if bits.bit()? == 1 { step } else { -step },
                _ => return Err("a coefficient grows by more than a bit".into()),
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
