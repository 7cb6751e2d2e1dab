//! Tables of FlatBuffers, in which Arrow writes its metadata (flatbuffers.dev/internals). Every read is checked against the bytes.

/// The result of a read, or what is wrong with the bytes.
pub type Read<T> = Result<T, String>;

fn part(bytes: &[u8], at: usize, len: usize) -> Read<&[u8]> {
    let end = at.checked_add(len);
    let outside = || "a part of its metadata is outside of it".to_owned();
    end.and_then(|end| bytes.get(at..end)).ok_or_else(outside)
}

fn fixed<const N: usize>(bytes: &[u8], at: usize) -> Read<[u8; N]> {
    let mut out = [0; N];
    out.copy_from_slice(part(bytes, at, N)?);
    Ok(out)
}

/// Where the offset at `at` leads.
fn target(bytes: &[u8], at: usize) -> Read<usize> {
    Ok(at.saturating_add(u32::from_le_bytes(fixed(bytes, at)?) as usize))
}

/// A table: fields by their numbers, of which absent ones have a default.
#[derive(Clone, Copy)]
pub struct Table<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Table<'a> {
    /// The table that the bytes are.
    pub fn root(bytes: &'a [u8]) -> Read<Table<'a>> {
        Ok(Table { bytes, at: target(bytes, 0)? })
    }

    /// Where a field is.
    fn place(&self, field: usize) -> Read<Option<usize>> {
        let back = i64::from(i32::from_le_bytes(fixed(self.bytes, self.at)?));
        let vtable = usize::try_from(self.at as i64 - back).map_err(|_| "a part of its metadata is before it")?;
        let size = usize::from(u16::from_le_bytes(fixed(self.bytes, vtable)?));
        let entry = 4 + 2 * field;
        if entry + 2 > size {
            return Ok(None);
        }
        let offset = u16::from_le_bytes(fixed(self.bytes, vtable + entry)?);
        Ok((offset != 0).then_some(self.at + usize::from(offset)))
    }

    fn scalar<const N: usize>(&self, field: usize) -> Read<Option<[u8; N]>> {
        self.place(field)?.map(|at| fixed(self.bytes, at)).transpose()
    }

    /// A number of one byte, 0 where it is absent.
    pub fn u8(&self, field: usize) -> Read<u8> {
        Ok(self.scalar::<1>(field)?.map_or(0, |bytes| bytes[0]))
    }

    /// A number of two bytes.
    pub fn i16(&self, field: usize) -> Read<Option<i16>> {
        Ok(self.scalar(field)?.map(i16::from_le_bytes))
    }

    /// A number of four bytes.
    pub fn i32(&self, field: usize) -> Read<Option<i32>> {
        Ok(self.scalar(field)?.map(i32::from_le_bytes))
    }

    /// A number of eight bytes, 0 where it is absent.
    pub fn i64(&self, field: usize) -> Read<i64> {
        Ok(self.scalar(field)?.map_or(0, i64::from_le_bytes))
    }

    /// A table.
    pub fn table(&self, field: usize) -> Read<Option<Table<'a>>> {
        let Some(at) = self.place(field)? else { return Ok(None) };
        Ok(Some(Table { bytes: self.bytes, at: target(self.bytes, at)? }))
    }

    /// Where the elements of a vector begin, and their number.
    fn vector(&self, field: usize) -> Read<Option<(usize, usize)>> {
        let Some(at) = self.place(field)? else { return Ok(None) };
        let at = target(self.bytes, at)?;
        Ok(Some((at.saturating_add(4), u32::from_le_bytes(fixed(self.bytes, at)?) as usize)))
    }

    /// The elements of a vector, which have `N` bytes each; none where it is absent.
    pub fn elements<const N: usize>(&self, field: usize) -> Read<&'a [[u8; N]]> {
        let Some((at, count)) = self.vector(field)? else { return Ok(&[]) };
        Ok(part(self.bytes, at, count.saturating_mul(N))?.as_chunks().0)
    }

    /// The tables of a vector; none where it is absent.
    pub fn tables(&self, field: usize) -> Read<Vec<Table<'a>>> {
        let Some((at, count)) = self.vector(field)? else { return Ok(Vec::new()) };
        part(self.bytes, at, count.saturating_mul(4))?;
        (0..count).map(|i| Ok(Table { bytes: self.bytes, at: target(self.bytes, at + 4 * i)? })).collect()
    }

    /// A text, empty where it is absent.
    pub fn text(&self, field: usize) -> Read<String> {
        let Some((at, len)) = self.vector(field)? else { return Ok(String::new()) };
        Ok(String::from_utf8_lossy(part(self.bytes, at, len)?).into_owned())
    }
}
