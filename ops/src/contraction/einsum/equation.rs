//! The equation of an einsum: `bij,bjk->bik`, `...i->...`, `ii`.

use std::collections::HashMap;

use of_ir::{Dim, OpError, Shape};

/// A letter, or an axis that an ellipsis stands for, counted from the last one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Label {
    Letter(char),
    Ellipsis(usize),
}

/// Labels of every axis.
pub(super) struct Equation {
    pub operands: Vec<Vec<Label>>,
    pub result: Vec<Label>,
}

/// One side's labels; `ellipsis` axes stand for `...`.
fn term(text: &str, ellipsis: usize) -> Result<Vec<Label>, OpError> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(r) = rest.strip_prefix("...") {
            if out.iter().any(|l| matches!(l, Label::Ellipsis(_))) {
                return Err(OpError::attr(format!("'{text}' has two ellipses")));
            }
            out.extend((0..ellipsis).rev().map(Label::Ellipsis));
            rest = r;
        } else if c.is_ascii_alphabetic() {
            out.push(Label::Letter(c));
            rest = &rest[1..];
        } else {
            return Err(OpError::attr(format!("'{c}' in '{text}' is neither a letter nor an ellipsis")));
        }
    }
    Ok(out)
}

impl Equation {
    /// Reads an equation for operands of the given ranks.
    pub fn parse(text: &str, ranks: &[usize]) -> Result<Equation, OpError> {
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let (left, right) = match text.split_once("->") {
            Some((l, r)) => (l, Some(r)),
            None => (text.as_str(), None),
        };
        let parts: Vec<&str> = left.split(',').collect();
        if parts.len() != ranks.len() {
            return Err(OpError::attr(format!(
                "'{left}' is about {} operands, there are {}",
                parts.len(),
                ranks.len()
            )));
        }
        let (mut operands, mut widest) = (Vec::new(), 0);
        for (part, rank) in parts.iter().zip(ranks) {
            let letters = part.chars().filter(|c| *c != '.').count();
            let dots = part.contains("...");
            let hidden = rank.checked_sub(letters).filter(|h| dots || *h == 0);
            let hidden =
                hidden.ok_or_else(|| OpError::shape(format!("'{part}' does not fit an operand of rank {rank}")))?;
            widest = widest.max(hidden);
            operands.push(term(part, hidden)?);
        }
        let result = match right {
            Some(r) => term(r, widest)?,
            None => {
                // The ellipsis, then every letter that occurs once, in alphabetical order.
                let mut letters: Vec<char> = left.chars().filter(|c| c.is_ascii_alphabetic()).collect();
                letters.sort_unstable();
                let once = letters.iter().filter(|c| letters.iter().filter(|d| d == c).count() == 1);
                (0..widest).rev().map(Label::Ellipsis).chain(once.map(|c| Label::Letter(*c))).collect()
            }
        };
        for (i, l) in result.iter().enumerate() {
            if result[..i].contains(l) {
                return Err(OpError::attr(format!("the result of '{text}' names an axis twice")));
            }
            if !operands.iter().flatten().any(|o| o == l) {
                return Err(OpError::attr(format!("the result of '{text}' names an axis that no operand has")));
            }
        }
        Ok(Equation { operands, result })
    }

    /// The size of every label; ellipsis axes of length 1 broadcast.
    pub fn sizes(&self, shapes: &[Shape]) -> Result<HashMap<Label, Dim>, OpError> {
        let mut out: HashMap<Label, Dim> = HashMap::new();
        for (labels, shape) in self.operands.iter().zip(shapes) {
            for (l, d) in labels.iter().zip(shape) {
                let old = out.entry(*l).or_insert_with(|| d.clone());
                let stretches = |d: &Dim| d.as_const() == Some(1) && matches!(l, Label::Ellipsis(_));
                if old.provably_ne(d) && !stretches(old) && !stretches(d) {
                    return Err(OpError::shape(format!("an axis has size {old} in one place and {d} in another")));
                }
                if old.as_const().is_none_or(|c| c == 1) && !stretches(d) && d.as_const().is_some() || stretches(old) {
                    *old = d.clone();
                }
            }
        }
        Ok(out)
    }
}
