//! How many values each row has, and where they are.

use super::flat::Read;

/// Where the values of rows are.
pub enum Rows {
    /// Each of so many rows has as many.
    Even { rows: usize, each: usize },
    /// Where each row begins, and the last one ends.
    At(Vec<usize>),
}

impl Rows {
    /// Rows of one value.
    pub fn plain(rows: usize) -> Rows {
        Rows::Even { rows, each: 1 }
    }

    /// The first value and the end of the last one.
    pub fn range(&self) -> Read<(usize, usize)> {
        match self {
            Rows::Even { rows, each } => Ok((0, rows.checked_mul(*each).ok_or("a column is too long")?)),
            Rows::At(ends) => Ok((ends.first().copied().unwrap_or(0), ends.last().copied().unwrap_or(0))),
        }
    }

    /// Rows of what the values, which are lists, have: `offsets` has the places of all in [`Rows::range`].
    pub fn of_lists(self, offsets: &[usize]) -> Rows {
        Rows::At(match self {
            Rows::Even { rows, each } => (0..=rows).map(|row| offsets[row * each]).collect(),
            Rows::At(ends) => ends.into_iter().map(|end| offsets[end]).collect(),
        })
    }

    /// Rows of what the values, which are lists of one length, have.
    pub fn times(self, length: usize) -> Read<Rows> {
        let many = |n: usize| n.checked_mul(length).ok_or_else(|| "a column is too long".to_owned());
        Ok(match self {
            Rows::Even { rows, each } => Rows::Even { rows, each: many(each)? },
            Rows::At(ends) => Rows::At(ends.into_iter().map(many).collect::<Read<_>>()?),
        })
    }

    /// Whether each row has so many values.
    pub fn all_have(&self, count: usize) -> bool {
        match self {
            Rows::Even { rows, each } => *rows == 0 || *each == count,
            Rows::At(ends) => ends.windows(2).all(|row| row[1] - row[0] == count),
        }
    }

    /// Whether a row has none.
    pub fn some_are_empty(&self) -> bool {
        match self {
            Rows::Even { rows, each } => *rows > 0 && *each == 0,
            Rows::At(ends) => ends.windows(2).any(|row| row[0] == row[1]),
        }
    }
}
