//! PNM images: PBM, PGM and PPM, in text or bytes (P1 to P6), and PAM (P7). Source: netpbm.sourceforge.net/doc.

use super::picture::{Picture, check_size, narrow};

/// What the header says.
struct Header {
    width: usize,
    height: usize,
    channels: usize,
    /// The largest sample.
    most: u32,
}

/// The picture in a PNM file, of at most `most` bytes.
///
/// # Errors
/// When the file is damaged or its picture too large.
pub(super) fn decode(file: &[u8], most: usize) -> Result<Picture, String> {
    let mut file = Reader { rest: &file[2..], kind: file[1] };
    let h = if file.kind == b'7' { file.pam_header()? } else { file.header()? };
    check_size(h.width, h.height, most)?;
    if h.most == 0 || h.most > 65535 {
        return Err(format!("its largest sample is {}, it must be 1 to 65535", h.most));
    }
    let count = h.width * h.height * h.channels;
    let samples = match file.kind {
        b'1' => file.digits(count)?,
        b'2' | b'3' => file.numbers(count)?,
        b'4' => file.bits(h.width, h.height)?,
        _ if h.most < 256 => file.take(count)?.iter().map(|b| u16::from(*b)).collect(),
        _ => file.take(2 * count)?.chunks_exact(2).map(|b| u16::from_be_bytes([b[0], b[1]])).collect(),
    };
    // Samples above the largest are as large as that.
    let scaled = |top: f32| {
        let factor = top / h.most as f32;
        move |s: &u16| (f32::from(*s) * factor).round().min(top)
    };
    let bytes: Vec<u8> = match h.most {
        255 => samples.iter().map(|s| *s as u8).collect(),
        65535 => samples.iter().map(|s| narrow(*s)).collect(),
        0..255 => samples.iter().map(scaled(255.0)).map(|s| s as u8).collect(),
        _ => samples.iter().map(scaled(65535.0)).map(|s| narrow(s as u16)).collect(),
    };
    Picture::from_samples(h.width, h.height, h.channels, &bytes)
}

struct Reader<'a> {
    rest: &'a [u8],
    /// The digit of the magic number.
    kind: u8,
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.rest.split_at_checked(n).ok_or("it ends early")?;
        self.rest = rest;
        Ok(taken)
    }

    /// A number behind white space and comments, and the one byte of white space behind it.
    fn number(&mut self) -> Result<u32, String> {
        loop {
            match self.rest {
                [b'#', ..] => {
                    let end = self.rest.iter().position(|b| matches!(b, b'\n' | b'\r')).ok_or("it ends early")?;
                    self.rest = &self.rest[end..];
                }
                [b, rest @ ..] if is_space(*b) => self.rest = rest,
                _ => break,
            }
        }
        let end = self.rest.iter().position(|b| !b.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        let number = std::str::from_utf8(digits).ok().and_then(|t| t.parse().ok());
        self.rest = match rest {
            [b, rest @ ..] if is_space(*b) => rest,
            [] | [b'#', ..] => rest,
            [b, ..] => return Err(format!("there is a byte {b:#04x} where a number should be")),
        };
        number.ok_or_else(|| "a number is missing or too large".into())
    }

    /// The header of P1 to P6. Bitmaps have no largest sample.
    fn header(&mut self) -> Result<Header, String> {
        let (width, height) = (self.number()? as usize, self.number()? as usize);
        let most = if matches!(self.kind, b'1' | b'4') { 1 } else { self.number()? };
        let channels = if matches!(self.kind, b'3' | b'6') { 3 } else { 1 };
        Ok(Header { width, height, channels, most })
    }

    /// The header of P7: lines of a keyword and a value.
    fn pam_header(&mut self) -> Result<Header, String> {
        let mut values = [None; 4];
        loop {
            let end = self.rest.iter().position(|b| *b == b'\n').ok_or("its header has no end")?;
            let line = std::str::from_utf8(&self.rest[..end]).map_err(|_| "its header is not text")?.trim();
            self.rest = &self.rest[end + 1..];
            let (key, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let slot = match key {
                "ENDHDR" => break,
                "WIDTH" => 0,
                "HEIGHT" => 1,
                "DEPTH" => 2,
                "MAXVAL" => 3,
                // The depth says what channels there are.
                "TUPLTYPE" | "" => continue,
                _ if key.starts_with('#') => continue,
                _ => return Err(format!("its header has an unknown line '{key}'")),
            };
            let number = value.trim().parse::<u32>().map_err(|_| format!("{key} '{value}' is no number"))?;
            if values[slot].replace(number).is_some() {
                return Err(format!("its header has {key} twice"));
            }
        }
        let [Some(width), Some(height), Some(channels @ 1..=4), Some(most)] = values else {
            return Err("its header lacks WIDTH, HEIGHT, MAXVAL or a DEPTH of 1 to 4".into());
        };
        Ok(Header { width: width as usize, height: height as usize, channels: channels as usize, most })
    }

    /// The bits of P1, which need no space between them. 1 is black.
    fn digits(&mut self, count: usize) -> Result<Vec<u16>, String> {
        let bits = self.rest.iter().filter(|b| !is_space(**b)).take(count);
        let bits: Vec<u16> = bits
            .map(|b| match b {
                b'0' => Ok(1),
                b'1' => Ok(0),
                other => Err(format!("there is a byte {other:#04x} where a bit should be")),
            })
            .collect::<Result<_, _>>()?;
        if bits.len() == count { Ok(bits) } else { Err("it ends early".into()) }
    }

    /// The numbers of P2 and P3.
    fn numbers(&mut self, count: usize) -> Result<Vec<u16>, String> {
        // Each is a digit and white space at least, so that the file bounds what is allocated.
        if self.rest.len() / 2 + 1 < count {
            return Err("it ends early".into());
        }
        (0..count).map(|_| u16::try_from(self.number()?).map_err(|_| "a sample is above 65535".into())).collect()
    }

    /// The bits of P4, rows of whole bytes. 1 is black.
    fn bits(&mut self, width: usize, height: usize) -> Result<Vec<u16>, String> {
        let row = width.div_ceil(8);
        let rows = self.take(row * height)?;
        let pixel = |i: usize| {
            let (y, x) = (i / width, i % width);
            u16::from(rows[y * row + x / 8] >> (7 - x % 8) & 1 == 0)
        };
        Ok((0..width * height).map(pixel).collect())
    }
}

/// White space as `isspace` of C.
fn is_space(b: u8) -> bool {
    matches!(b, b'\t'..=b'\r' | b' ')
}

#[cfg(test)]
mod tests {
    use super::decode;

    fn pixels(file: &[u8]) -> Vec<u8> {
        decode(file, 1 << 20).map(|p| p.pixels).unwrap()
    }

    #[test]
    fn all_pnm_kinds_are_decoded() {
        let grey = |samples: &[u8]| samples.iter().flat_map(|s| [*s; 3]).collect::<Vec<u8>>();
        assert_eq!(pixels(b"P1\n# comment\n3 1\n1 01"), grey(&[0, 255, 0]));
        assert_eq!(pixels(b"P2 2 1 3 1 3\n"), grey(&[85, 255]));
        assert_eq!(pixels(b"P3 1 1 255 1 2 3"), [1, 2, 3]);
        assert_eq!(pixels(b"P4 9 1\n\x7f\x80"), grey(&[255, 0, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(pixels(b"P5 2 1 65535\n\xff\xff\x80\x00"), grey(&[255, 128]));
        assert_eq!(pixels(b"P6 1 1 255\n\x0a\x20\x23"), [10, 32, 35]);
        let pam = b"P7\nWIDTH 1\nHEIGHT 1\nDEPTH 4\nMAXVAL 255\nTUPLTYPE RGB_ALPHA\nENDHDR\n\x01\x02\x03\x04";
        assert_eq!(pixels(pam), [1, 2, 3]);
    }

    #[test]
    fn damaged_files_are_refused() {
        for file in [
            b"P1 2 1 1".as_slice(),
            b"P2 1 1 0 0",
            b"P2 1 1 255 x",
            b"P3 1 1 255 1 2",
            b"P4 9 1\n\x7f",
            b"P5 1 1 65536\n\0\0",
            b"P6 1 1 255\n\0\0",
            b"P6 99999999999 1 255\n",
            b"P7\nWIDTH 1\nENDHDR\n\0",
            b"P7\nWIDTH 1\nHEIGHT 1\nDEPTH 5\nMAXVAL 255\nENDHDR\n\0\0\0\0\0",
        ] {
            assert!(decode(file, 1 << 20).is_err(), "{}", String::from_utf8_lossy(file));
        }
    }
}
