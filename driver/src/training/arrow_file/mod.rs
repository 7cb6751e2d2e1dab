//! Columns of Arrow IPC files and streams (arrow.apache.org/docs/format/Columnar.html), which Feather files are: numbers and lists of equal
//! lengths. Record batches are decoded when a batch of samples needs them, and of these only the buffers of the column.

mod flat;
mod images;
mod rows;
mod schema;

use std::fs::File;
use std::io::{Read as _, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use half::f16;
use of_diag::{Code, Diagnostics};

use self::flat::{Read, Table};
use self::rows::Rows;
use self::schema::{Batch, Codec, Cursor, Field, Kind, Number};
use super::columns::{ColumnFile, Decoded, RowImage};
use crate::error::{error, io_error};

/// Whether the name is that of such a file.
pub(super) fn is_arrow(path: &Path) -> bool {
    ["arrow", "arrows", "feather"].iter().any(|end| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(end)))
}

/// The first bytes of a file, and its last ones.
const MAGIC: &[u8] = b"ARROW1";
/// The first bytes of Feather's first version, which is another format.
const FEATHER_1: &[u8] = b"FEA1";
/// What precedes the length of a message, in all but the oldest files.
const CONTINUATION: u32 = u32::MAX;
/// The table in a message.
const SCHEMA: u8 = 1;
const DICTIONARY: u8 = 2;
const RECORDS: u8 = 3;

/// A part of a dictionary.
struct Dictionary {
    id: i64,
    /// The record batches before it; later batches have these values.
    before: usize,
    /// Whether its values are added to those that there are.
    is_delta: bool,
    values: Batch,
}

/// An open file.
struct Opened {
    path: PathBuf,
    // Reads move the position of the file.
    file: Mutex<File>,
    len: u64,
    fields: Vec<Field>,
    /// The name and the number of the field of each column of values.
    leaves: Vec<String>,
    roots: Vec<usize>,
    /// Columns that can have encoded images.
    images: Vec<(String, usize)>,
    batches: Vec<Batch>,
    rows: Vec<usize>,
    dictionaries: Vec<Dictionary>,
}

/// A message and where its body is.
struct Message {
    metadata: Vec<u8>,
    body: u64,
}

impl Opened {
    fn new(path: &Path) -> Result<Opened, Diagnostics> {
        let file = File::open(path).map_err(|e| io_error(path, "read", &e))?;
        let len = file.metadata().map_err(|e| io_error(path, "read", &e))?.len();
        let mut opened = Opened {
            path: path.to_owned(),
            file: Mutex::new(file),
            len,
            fields: Vec::new(),
            leaves: Vec::new(),
            roots: Vec::new(),
            images: Vec::new(),
            batches: Vec::new(),
            rows: Vec::new(),
            dictionaries: Vec::new(),
        };
        opened.read_structure().map_err(|e| damaged(path, &e))?;
        for (root, field) in opened.fields.iter().enumerate() {
            let (count, first) = (field.leaves(), opened.leaves.len());
            opened.images.extend(images::leaf(field).map(|leaf| (field.name.clone(), first + leaf)));
            opened.leaves.extend(std::iter::repeat_n(field.name.clone(), count));
            opened.roots.extend(std::iter::repeat_n(root, count));
        }
        opened.rows = opened.batches.iter().map(|batch| batch.rows).collect();
        Ok(opened)
    }

    /// Bytes of the file.
    fn bytes(&self, at: u64, len: u64) -> Read<Vec<u8>> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(format!("it ends at byte {}, in the middle of its data", self.len));
        }
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(at)).map_err(|e| e.to_string())?;
        let mut out = vec![0; usize::try_from(len).map_err(|e| e.to_string())?];
        file.read_exact(&mut out).map_err(|e| e.to_string())?;
        Ok(out)
    }

    fn number(&self, at: u64) -> Read<u32> {
        let bytes = self.bytes(at, 4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// The message at a place; none where the stream ends.
    fn message(&self, at: u64) -> Read<Option<Message>> {
        if at >= self.len {
            return Ok(None);
        }
        let first = self.number(at)?;
        let (from, size) = if first == CONTINUATION { (at + 8, self.number(at + 4)?) } else { (at + 4, first) };
        if size == 0 {
            return Ok(None);
        }
        let metadata = self.bytes(from, u64::from(size))?;
        Ok(Some(Message { metadata, body: from + u64::from(size) }))
    }

    /// Reads schema and places of batches: of a file from its end, of a stream from one message to the next.
    fn read_structure(&mut self) -> Read<()> {
        let start = self.bytes(0, self.len.min(MAGIC.len() as u64))?;
        if start.starts_with(FEATHER_1) {
            return Err("it is Feather of version 1; write it again as version 2".into());
        }
        if start == MAGIC { self.read_footer() } else { self.read_stream() }
    }

    fn read_footer(&mut self) -> Read<()> {
        let tail = MAGIC.len() as u64 + 4;
        let place = self.len.checked_sub(tail).ok_or("it has no end")?;
        if self.bytes(place + 4, MAGIC.len() as u64)? != MAGIC {
            return Err("it has no end: it was not written completely".into());
        }
        let size = u64::from(self.number(place)?);
        let bytes = self.bytes(place.checked_sub(size).ok_or("its end has a wrong length")?, size)?;
        let footer = Table::root(&bytes)?;
        let schema = footer.table(1)?.ok_or("it has no schema")?;
        self.fields = schema::fields(&schema, footer.i16(0)?.unwrap_or(0))?;
        for field in [2, 3] {
            for block in footer.elements::<24>(field)? {
                let mut at = [0; 8];
                at.copy_from_slice(&block[..8]);
                let missing = || "it has no message at the place of a batch".to_owned();
                let message = self.message(u64::from_le_bytes(at))?.ok_or_else(missing)?;
                self.add(&message)?;
            }
        }
        // Dictionaries of a file are for all of its batches.
        self.dictionaries.iter_mut().for_each(|dictionary| dictionary.before = 0);
        Ok(())
    }

    fn read_stream(&mut self) -> Read<()> {
        let mut at = 0;
        while let Some(message) = self.message(at)? {
            let len = self.add(&message)?;
            at = message.body.saturating_add(len);
        }
        if self.fields.is_empty() { Err("it has no schema".into()) } else { Ok(()) }
    }

    /// Takes what a message says; returns the length of its body.
    fn add(&mut self, message: &Message) -> Read<u64> {
        let table = Table::root(&message.metadata)?;
        let version = table.i16(0)?.unwrap_or(0);
        let header = table.table(2)?.ok_or("a message is empty")?;
        match table.u8(1)? {
            SCHEMA => self.fields = schema::fields(&header, version)?,
            RECORDS => self.batches.push(Batch::read(&header, message.body)?),
            DICTIONARY => {
                let values = Batch::read(&header.table(1)?.ok_or("a dictionary has no values")?, message.body)?;
                let (id, is_delta) = (header.i64(0)?, header.u8(2)? != 0);
                self.dictionaries.push(Dictionary { id, before: self.batches.len(), is_delta, values });
            }
            other => return Err(format!("it has a message of kind {other}, and tables have none")),
        }
        let len = u64::try_from(table.i64(3)?).map_err(|_| "a length is negative")?;
        // A stream that was cut off is noticed before a training starts.
        if message.body.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(format!("it ends at byte {}, in the middle of its data", self.len));
        }
        Ok(len)
    }

    /// The first `wanted` bytes of a buffer; all of them where that is `None`.
    fn buffer(&self, batch: &Batch, number: usize, wanted: Option<usize>) -> Read<Vec<u8>> {
        let (offset, len) = *batch.buffers.get(number).ok_or("a batch has fewer buffers than the schema")?;
        let at = batch.body.checked_add(offset).ok_or("a buffer is outside of the file")?;
        let wanted = wanted.map_or(u64::MAX, |n| n as u64);
        let (Some(codec), true) = (batch.codec, len > 0) else {
            return complete(self.bytes(at, len.min(wanted))?, wanted);
        };
        if len < 8 {
            return Err("a compressed buffer has no length".into());
        }
        let bytes = self.bytes(at, len)?;
        let (size, data) = bytes.split_at(8);
        let mut own = [0; 8];
        own.copy_from_slice(size);
        // A buffer that does not become smaller is stored as it is.
        let size = i64::from_le_bytes(own);
        if size == -1 {
            return complete(data[..data.len().min(usize::try_from(wanted).unwrap_or(usize::MAX))].to_vec(), wanted);
        }
        let size = u64::try_from(size).map_err(|_| "a length is negative")?.min(wanted);
        let mut out = Vec::new();
        let read = match codec {
            Codec::Lz4 => lz4_flex::frame::FrameDecoder::new(data).take(size).read_to_end(&mut out),
            Codec::Zstd => zstd::Decoder::new(data).and_then(|mut d| d.by_ref().take(size).read_to_end(&mut out)),
        };
        read.map_err(|e| format!("a compressed buffer: {e}"))?;
        if (out.len() as u64) < size {
            return Err("a compressed buffer is too short".into());
        }
        complete(out, wanted)
    }

    /// The values of a field of a batch, of which `rows` says how many each row has.
    fn values(&self, part: usize, batch: &Batch, (field, at): (&Field, &mut Cursor), mut rows: Rows) -> Read<Found> {
        let mut field = field;
        let (first, count) = loop {
            let (len, absent) = at.node(batch)?;
            let (first, last) = rows.range()?;
            if last > len {
                return Err(format!("column '{}' has {len} values instead of {last}", field.name));
            }
            if absent != 0 {
                return Ok(Found::Absent);
            }
            match &field.kind {
                Kind::List { is_large } => {
                    at.buffer();
                    rows = rows.of_lists(&self.offsets(batch, at.buffer(), last, *is_large)?);
                }
                Kind::FixedList(each) => {
                    at.buffer();
                    rows = rows.times(*each)?;
                }
                Kind::Struct => {
                    at.buffer();
                }
                _ => break (first, last),
            }
            // Lists have one child, and structures may have others without columns.
            let inner = field.children.iter().position(|child| child.leaves() > 0).ok_or("a column has no values")?;
            field.children[..inner].iter().try_for_each(|child| at.skip(child, batch))?;
            field = &field.children[inner];
        };
        let values = match &field.kind {
            Kind::Number(number) => {
                at.buffer();
                self.numbers(batch, at.buffer(), (first, count), *number)?
            }
            Kind::Bool => {
                at.buffer();
                let bits = self.buffer(batch, at.buffer(), Some(count.div_ceil(8)))?;
                Decoded::Ints((first..count).map(|i| i64::from(bits[i / 8] >> (i % 8) & 1)).collect())
            }
            Kind::Text { is_large, .. } => {
                at.buffer();
                let offsets = self.offsets(batch, at.buffer(), count, *is_large)?;
                let bytes = self.buffer(batch, at.buffer(), Some(offsets[count]))?;
                let text = |i: usize| String::from_utf8_lossy(&bytes[offsets[i]..offsets[i + 1]]).into_owned();
                Decoded::Texts((first..count).map(text).collect())
            }
            Kind::View => self.views(batch, at, (first, count))?,
            Kind::Dictionary { id, index, values } => {
                at.buffer();
                let Decoded::Ints(chosen) = self.numbers(batch, at.buffer(), (first, count), *index)? else {
                    return Err("the numbers of a dictionary are floats".into());
                };
                match self.dictionary(part, *id, values)? {
                    Found::Values(all, _) => pick(&all, &chosen)?,
                    other => return Ok(other),
                }
            }
            Kind::List { .. } | Kind::FixedList(_) | Kind::Struct | Kind::Other => return Ok(Found::Other),
        };
        Ok(Found::Values(values, rows))
    }

    /// The values of a dictionary for a record batch.
    fn dictionary(&self, part: usize, id: i64, field: &Field) -> Read<Found> {
        let known: Vec<&Dictionary> = self.dictionaries.iter().filter(|d| d.id == id && d.before <= part).collect();
        let first = known.iter().rposition(|d| !d.is_delta).ok_or("a dictionary is missing")?;
        let mut all: Option<Decoded> = None;
        for own in &known[first..] {
            let rows = Rows::plain(own.values.rows);
            match self.values(own.before, &own.values, (field, &mut Cursor::default()), rows)? {
                Found::Values(values, rows) if rows.all_have(1) => {
                    all = Some(match all {
                        None => values,
                        Some(before) => before.and(values).ok_or("a dictionary has several types")?,
                    });
                }
                Found::Values(..) => return Ok(Found::Other),
                other => return Ok(other),
            }
        }
        all.map(|all| Found::Values(all, Rows::plain(0))).ok_or_else(|| "a dictionary is missing".into())
    }

    /// The offsets of so many values and the end of the last one, which never decrease.
    fn offsets(&self, batch: &Batch, number: usize, count: usize, is_large: bool) -> Read<Vec<usize>> {
        if count == 0 {
            // An empty array may have no offsets.
            return Ok(vec![0]);
        }
        let bytes = if is_large { 8 } else { 4 };
        let all = count.checked_add(1).ok_or("a list is too long")?;
        let Decoded::Ints(list) = self.numbers(batch, number, (0, all), Number::Int { bytes, is_signed: true })? else {
            return Err("offsets are floats".into());
        };
        if list[0] < 0 || !list.is_sorted() {
            return Err("offsets of a column decrease".into());
        }
        list.into_iter().map(|n| usize::try_from(n).map_err(|e| e.to_string())).collect()
    }

    /// The numbers of a buffer from one to another.
    fn numbers(&self, batch: &Batch, buffer: usize, (first, end): (usize, usize), number: Number) -> Read<Decoded> {
        let each = number.width();
        let bytes = self.buffer(batch, buffer, Some(end.checked_mul(each).ok_or("a column is too long")?))?;
        let own = bytes[first * each..].chunks_exact(each);
        Ok(match number {
            Number::Int { is_signed, .. } => {
                let whole = |chunk: &[u8]| {
                    let mut out = if is_signed && chunk[each - 1] > 127 { [255; 8] } else { [0; 8] };
                    out[..each].copy_from_slice(chunk);
                    i64::from_le_bytes(out)
                };
                let list: Vec<i64> = own.map(whole).collect();
                if !is_signed && each == 8 && list.iter().any(|n| *n < 0) {
                    return Err("a whole number is 2^63 or more".into());
                }
                Decoded::Ints(list)
            }
            Number::Float { .. } => {
                let float = |chunk: &[u8]| match chunk {
                    [a, b] => f64::from(f16::from_le_bytes([*a, *b])),
                    [a, b, c, d] => f64::from(f32::from_le_bytes([*a, *b, *c, *d])),
                    _ => {
                        let mut out = [0; 8];
                        out.copy_from_slice(chunk);
                        f64::from_le_bytes(out)
                    }
                };
                Decoded::Floats(own.map(float).collect())
            }
        })
    }

    /// Texts as views: of 12 bytes at most in the view itself, longer ones in another buffer.
    fn views(&self, batch: &Batch, at: &mut Cursor, (first, end): (usize, usize)) -> Read<Decoded> {
        at.buffer();
        let views = self.buffer(batch, at.buffer(), Some(end.checked_mul(16).ok_or("a column is too long")?))?;
        let count = at.views(batch)?;
        let data: Vec<Vec<u8>> = (0..count).map(|_| self.buffer(batch, at.buffer(), None)).collect::<Read<_>>()?;
        let text = |view: &[u8]| {
            let word = |i: usize| u32::from_le_bytes([view[i], view[i + 1], view[i + 2], view[i + 3]]) as usize;
            let (len, from) = (word(0), word(12));
            let bytes = match len {
                0..=12 => view.get(4..4 + len),
                _ => data.get(word(8)).and_then(|own| own.get(from..from.checked_add(len)?)),
            };
            let bytes = bytes.ok_or("a text is outside of its buffer")?;
            Ok(String::from_utf8_lossy(bytes).into_owned())
        };
        Ok(Decoded::Texts(views[first * 16..].chunks_exact(16).map(text).collect::<Read<_>>()?))
    }
}

impl Opened {
    /// A column of images of a batch, or that of their paths, and where the reader is in front of its field. `None` where there is none, or a
    /// whole structure is absent.
    fn image_column(&self, part: usize, leaf: usize, is_path: bool) -> Read<Option<(&Field, Cursor)>> {
        let (batch, root) = (&self.batches[part], self.roots[leaf]);
        let mut at = Cursor::default();
        self.fields[..root].iter().try_for_each(|field| at.skip(field, batch))?;
        let field = &self.fields[root];
        if !matches!(field.kind, Kind::Struct) {
            return Ok((!is_path).then_some((field, at)));
        }
        let inner = if is_path { images::path(field) } else { images::child(field) };
        let Some(inner) = inner else { return Ok(None) };
        if at.node(batch)?.1 != 0 {
            return Ok(None);
        }
        at.buffer();
        field.children[..inner].iter().try_for_each(|child| at.skip(child, batch))?;
        Ok(Some((&field.children[inner], at)))
    }

    /// The bytes of each row of a column of texts or binary, one or none, which share the memory of the batch.
    fn optional(&self, batch: &Batch, (field, mut at): (&Field, Cursor)) -> Read<Vec<Option<Bytes>>> {
        let (len, absent) = at.node(batch)?;
        if len < batch.rows {
            return Err(format!("column '{}' has {len} values instead of {}", field.name, batch.rows));
        }
        let Kind::Text { is_large, .. } = field.kind else { return Err("a column has no images".into()) };
        let validity = at.buffer();
        let there = match absent {
            0 => None,
            _ => Some(self.buffer(batch, validity, Some(batch.rows.div_ceil(8)))?),
        };
        let offsets = self.offsets(batch, at.buffer(), batch.rows, is_large)?;
        let bytes = Bytes::from(self.buffer(batch, at.buffer(), offsets.last().copied())?);
        let is_there = |row: usize| there.as_ref().is_none_or(|bits| bits[row / 8] >> (row % 8) & 1 == 1);
        let rows = offsets.windows(2).enumerate();
        Ok(rows.map(|(row, pair)| is_there(row).then(|| bytes.slice(pair[0]..pair[1]))).collect())
    }

    /// The images of a batch. `None` where one is absent.
    fn encoded_images(&self, part: usize, leaf: usize) -> Read<Option<Vec<RowImage>>> {
        let batch = &self.batches[part];
        let Some(column) = self.image_column(part, leaf, false)? else { return Ok(None) };
        let bytes = self.optional(batch, column)?;
        let are_whole = bytes.iter().all(Option::is_some);
        let column = if are_whole { None } else { self.image_column(part, leaf, true)? };
        let paths = match column {
            Some(column) => self.optional(batch, column)?,
            None => vec![None; bytes.len()],
        };
        Ok(bytes.into_iter().zip(paths).map(|(bytes, path)| RowImage::of(bytes, path)).collect())
    }

    /// About the bytes that the images of a batch take: those of their buffer.
    fn image_bytes(&self, part: usize, leaf: usize) -> Option<usize> {
        let (_, mut at) = self.image_column(part, leaf, false).ok()??;
        // Behind the bits of values that are there come offsets, and then the bytes.
        at.buffer();
        at.buffer();
        usize::try_from(self.batches[part].buffers.get(at.buffer())?.1).ok()
    }
}

/// What is in a field.
enum Found {
    /// Values, and how many each row has.
    Values(Decoded, Rows),
    /// A value is absent.
    Absent,
    /// Neither numbers nor texts.
    Other,
}

/// The values of these numbers.
fn pick(all: &Decoded, chosen: &[i64]) -> Read<Decoded> {
    fn of<T: Clone>(list: &[T], chosen: &[i64]) -> Read<Vec<T>> {
        let one = |i: &i64| usize::try_from(*i).ok().and_then(|i| list.get(i)).cloned();
        chosen.iter().map(|i| one(i).ok_or_else(|| format!("a dictionary has no value {i}"))).collect()
    }
    Ok(match all {
        Decoded::Ints(list) => Decoded::Ints(of(list, chosen)?),
        Decoded::Floats(list) => Decoded::Floats(of(list, chosen)?),
        Decoded::Texts(list) => Decoded::Texts(of(list, chosen)?),
    })
}

/// Bytes, of which there must be so many, where that is known.
fn complete(bytes: Vec<u8>, wanted: u64) -> Read<Vec<u8>> {
    if wanted != u64::MAX && (bytes.len() as u64) < wanted {
        return Err(format!("a buffer has {} bytes instead of {wanted}", bytes.len()));
    }
    Ok(bytes)
}

fn damaged(path: &Path, what: &str) -> Diagnostics {
    error(Code::INPUT, format!("'{}' cannot be read as Arrow: {what}", path.display())).into()
}

impl ColumnFile for Opened {
    fn path(&self) -> &Path {
        &self.path
    }

    fn rows(&self) -> &[usize] {
        &self.rows
    }

    fn leaves(&self) -> &[String] {
        &self.leaves
    }

    fn decode(&self, part: usize, leaf: usize, each: Option<usize>) -> Result<Decoded, Diagnostics> {
        let failed = |e: String| damaged(&self.path, &e);
        let (batch, root) = (&self.batches[part], self.roots[leaf]);
        let mut at = Cursor::default();
        self.fields[..root].iter().try_for_each(|field| at.skip(field, batch)).map_err(failed)?;
        let no = |what: &str| self.wrong(&format!("column '{}', record batch {part}: {what}", self.leaves[leaf]));
        let field = (&self.fields[root], &mut at);
        let (values, rows) = match self.values(part, batch, field, Rows::plain(batch.rows)).map_err(failed)? {
            Found::Values(values, rows) => (values, rows),
            Found::Absent => return Err(no("a value is absent")),
            Found::Other => return Err(no("its type is none of numbers and texts")),
        };
        let each = each.unwrap_or_else(|| values.len() / batch.rows.max(1));
        if rows.some_are_empty() {
            return Err(no("a value is absent"));
        }
        if !rows.all_have(each) {
            return Err(no(&format!("lists have different lengths, and {each} values a row are expected")));
        }
        Ok(values)
    }

    fn images(&self) -> &[(String, usize)] {
        &self.images
    }

    fn encoded(&self, part: usize, leaf: usize) -> Result<Vec<RowImage>, Diagnostics> {
        let absent = || {
            let what = format!("column '{}', record batch {part}: a value is absent", self.leaves[leaf]);
            self.wrong(&what)
        };
        self.encoded_images(part, leaf).map_err(|e| damaged(&self.path, &e))?.ok_or_else(absent)
    }

    fn encoded_bytes(&self, part: usize, leaf: usize) -> usize {
        self.image_bytes(part, leaf).unwrap_or(0)
    }
}

/// Opens a file.
///
/// # Errors
/// When it cannot be read, or is none of this format.
pub(super) fn open(path: &Path) -> Result<Arc<dyn ColumnFile>, Diagnostics> {
    Ok(Arc::new(Opened::new(path)?))
}

#[cfg(test)]
mod tests;
