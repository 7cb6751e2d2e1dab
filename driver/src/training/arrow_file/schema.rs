//! Schemas and batches as a file describes them (format/Schema.fbs and format/Message.fbs of Arrow).

use super::flat::{Read, Table};

/// Levels of nested types, and fields of a schema, above which it is taken for damaged.
const DEPTH: usize = 64;
const FIELDS: usize = 1 << 20;

/// How numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// Whole numbers of so many bytes.
    Int { bytes: usize, is_signed: bool },
    /// Floats of so many bytes.
    Float { bytes: usize },
}

impl Number {
    /// Bytes of one.
    pub fn width(self) -> usize {
        match self {
            Number::Int { bytes, .. } | Number::Float { bytes } => bytes,
        }
    }
}

/// How the values of a field are stored.
#[derive(Debug)]
pub enum Kind {
    Number(Number),
    /// A bit each.
    Bool,
    /// Offsets, of four bytes or eight, and texts or other bytes.
    Text {
        is_large: bool,
        is_binary: bool,
    },
    /// Views of texts.
    View,
    /// Offsets, of four bytes or eight, of the only child.
    List {
        is_large: bool,
    },
    /// So many values of the only child.
    FixedList(usize),
    /// Children side by side.
    Struct,
    /// Numbers of values of a dictionary.
    Dictionary {
        id: i64,
        index: Number,
        values: Box<Field>,
    },
    /// No numbers, and no texts.
    Other,
}

/// A field: a column, or a part of one.
#[derive(Debug)]
pub struct Field {
    pub name: String,
    pub kind: Kind,
    /// The parts of its values that are in the same batch.
    pub children: Vec<Field>,
    /// Its own buffers in a batch, those of views aside.
    pub buffers: usize,
    /// Whether a batch has a number of further buffers for it.
    pub is_view: bool,
}

impl Field {
    /// How many columns of values it has.
    pub fn leaves(&self) -> usize {
        match self.kind {
            Kind::List { .. } | Kind::FixedList(_) | Kind::Struct => self.children.iter().map(Field::leaves).sum(),
            _ => 1,
        }
    }

    fn read(table: &Table<'_>, version: i16, depth: usize, count: &mut usize) -> Read<Field> {
        *count += 1;
        if depth > DEPTH || *count > FIELDS {
            return Err("its schema has too many parts".into());
        }
        let name = table.text(0)?;
        let children = table.tables(5)?;
        let children: Vec<Field> =
            children.iter().map(|child| Field::read(child, version, depth + 1, count)).collect::<Read<_>>()?;
        let (kind, buffers, is_view) = kind(table, version, &children)?;
        let Some(dictionary) = table.table(4)? else { return Ok(Field { name, kind, children, buffers, is_view }) };
        let index = match dictionary.table(1)? {
            Some(index) => int(&index)?,
            None => Number::Int { bytes: 4, is_signed: true },
        };
        let values = Box::new(Field { name: name.clone(), kind, children, buffers, is_view });
        let kind = Kind::Dictionary { id: dictionary.i64(0)?, index, values };
        Ok(Field { name, kind, children: Vec::new(), buffers: 2, is_view: false })
    }
}

fn int(table: &Table<'_>) -> Read<Number> {
    match table.i32(0)?.unwrap_or(0) {
        bits @ (8 | 16 | 32 | 64) => Ok(Number::Int { bytes: bits as usize / 8, is_signed: table.u8(1)? != 0 }),
        bits => Err(format!("its whole numbers have {bits} bits")),
    }
}

/// How values are stored, the number of their buffers, and whether they are views.
fn kind(table: &Table<'_>, version: i16, children: &[Field]) -> Read<(Kind, usize, bool)> {
    let own = table.table(3)?.ok_or("a column has no type")?;
    let signed = |bytes: usize| Kind::Number(Number::Int { bytes, is_signed: true });
    let only = |kind: Kind| match children.len() {
        1 => Ok(kind),
        count => Err(format!("a list has {count} types of values")),
    };
    Ok(match table.u8(2)? {
        1 => (Kind::Other, 0, false),
        2 => (Kind::Number(int(&own)?), 2, false),
        3 => {
            let precision = own.i16(0)?.unwrap_or(0);
            let bytes =
                *usize::try_from(precision).ok().and_then(|i| [2, 4, 8].get(i)).ok_or("its floats are unknown")?;
            (Kind::Number(Number::Float { bytes }), 2, false)
        }
        number @ (4 | 5) => (Kind::Text { is_large: false, is_binary: number == 4 }, 3, false),
        number @ (19 | 20) => (Kind::Text { is_large: true, is_binary: number == 19 }, 3, false),
        6 => (Kind::Bool, 2, false),
        // Days have four bytes, milliseconds eight.
        8 => (signed(if own.i16(0)? == Some(0) { 4 } else { 8 }), 2, false),
        9 => (signed(if own.i32(1)?.unwrap_or(32) == 64 { 8 } else { 4 }), 2, false),
        10 | 18 => (signed(8), 2, false),
        // Decimals, intervals, and bytes of one length.
        7 | 11 | 15 => (Kind::Other, 2, false),
        12 | 17 => (only(Kind::List { is_large: false })?, 2, false),
        21 => (only(Kind::List { is_large: true })?, 2, false),
        13 => (Kind::Struct, 1, false),
        14 => {
            let is_dense = own.i16(0)?.unwrap_or(0) == 1;
            // Unions had bits for absent values before version 5, which is number 4.
            (Kind::Other, 1 + usize::from(is_dense) + usize::from(version < 4), false)
        }
        16 => {
            let size = own.i32(0)?.and_then(|n| usize::try_from(n).ok()).ok_or("its lists have no length")?;
            (only(Kind::FixedList(size))?, 1, false)
        }
        22 => (Kind::Other, 0, false),
        23 | 24 => (Kind::View, 2, true),
        25 | 26 => (Kind::Other, 3, false),
        other => return Err(format!("it has a type of the unknown number {other}")),
    })
}

/// The columns of a schema.
pub fn fields(schema: &Table<'_>, version: i16) -> Read<Vec<Field>> {
    if schema.i16(0)?.unwrap_or(0) != 0 {
        return Err("its numbers are big-endian".into());
    }
    let mut count = 0;
    schema.tables(1)?.iter().map(|field| Field::read(field, version, 0, &mut count)).collect()
}

/// How buffers are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    Lz4,
    Zstd,
}

/// A record batch, or the values of a dictionary.
#[derive(Debug)]
pub struct Batch {
    /// Where its buffers begin in the file.
    pub body: u64,
    pub rows: usize,
    /// Length and number of absent values of each field.
    pub nodes: Vec<(usize, i64)>,
    /// Offset in the body and length.
    pub buffers: Vec<(u64, u64)>,
    pub codec: Option<Codec>,
    /// Further buffers of each field of views.
    pub views: Vec<usize>,
}

impl Batch {
    /// Reads the table `RecordBatch`.
    pub fn read(table: &Table<'_>, body: u64) -> Read<Batch> {
        let half = |bytes: &[u8; 16], second: usize| {
            let mut own = [0; 8];
            own.copy_from_slice(&bytes[8 * second..8 * second + 8]);
            i64::from_le_bytes(own)
        };
        let length = |n: i64| usize::try_from(n).map_err(|_| "a length is negative".to_owned());
        let node = |bytes: &[u8; 16]| Ok((length(half(bytes, 0))?, half(bytes, 1)));
        let buffer = |bytes: &[u8; 16]| Ok((length(half(bytes, 0))? as u64, length(half(bytes, 1))? as u64));
        let codec = match table.table(3)? {
            None => None,
            Some(own) => Some(match own.u8(0)? {
                0 => Codec::Lz4,
                1 => Codec::Zstd,
                other => return Err(format!("its buffers are compressed in the unknown way {other}")),
            }),
        };
        Ok(Batch {
            body,
            rows: length(table.i64(0)?)?,
            nodes: table.elements(1)?.iter().map(node).collect::<Read<_>>()?,
            buffers: table.elements(2)?.iter().map(buffer).collect::<Read<_>>()?,
            codec,
            views: table.elements(4)?.iter().map(|n| length(i64::from_le_bytes(*n))).collect::<Read<_>>()?,
        })
    }
}

/// Where the reader of a batch is.
#[derive(Clone, Copy, Default)]
pub struct Cursor {
    node: usize,
    buffer: usize,
    view: usize,
}

impl Cursor {
    /// Length and number of absent values of the next field.
    pub fn node(&mut self, batch: &Batch) -> Read<(usize, i64)> {
        let node = batch.nodes.get(self.node).copied().ok_or("a batch has fewer fields than the schema")?;
        self.node += 1;
        Ok(node)
    }

    /// The number of the next buffer.
    pub fn buffer(&mut self) -> usize {
        self.buffer += 1;
        self.buffer - 1
    }

    /// How many further buffers the next field of views has.
    pub fn views(&mut self, batch: &Batch) -> Read<usize> {
        let count = batch.views.get(self.view).copied().ok_or("a batch has no number of buffers for views")?;
        self.view += 1;
        Ok(count)
    }

    /// Goes over a field.
    pub fn skip(&mut self, field: &Field, batch: &Batch) -> Read<()> {
        self.node(batch)?;
        self.buffer += field.buffers;
        if field.is_view {
            self.buffer = self.buffer.saturating_add(self.views(batch)?);
        }
        field.children.iter().try_for_each(|child| self.skip(child, batch))
    }
}
