//! `of.string_split`.

use std::sync::Arc;

use of_ir::{DType, Dim, OpError, OpView, Tensor, TensorType, Type};

use super::{operand, strings};
use crate::sample::Rng;
use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// The pieces of each string along a new last axis, filled up with empty strings, and the number of pieces.
    ///
    /// `delimiter` parts the pieces; without it, or where it is empty, runs of white space do and those at the ends do not
    /// count. With `maxsplit`, what remains after that many cuts is the last piece. Source: ONNX StringSplit.
    pub struct StringSplit = "of.string_split" [Primitive, onnx: "StringSplit"] {
        operands: (x),
        results: (y, counts),
        attrs: { delimiter: Option<Arc<str>>, maxsplit: Option<i64> },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(0, 2) as usize;
        let dims = r.dims(rank, 1, 3);
        let list = ["a b", " c  d e ", "", "x,y", ",,", "one"];
        let x = (0..dims.iter().product::<usize>()).map(|_| r.pick(&list).to_string()).collect();
        let op = StringSplit {
            delimiter: r.pick(&[None, Some(""), Some(","), Some(" ")]).map(Arc::from),
            maxsplit: r.pick(&[None, Some(1), Some(2)]),
        };
        Some((vec![Tensor::from_strings(dims, x).ok()?.into()], op))
    };
}

impl StringSplit {
    /// The pieces of `s`.
    fn pieces(&self, s: &str) -> Vec<String> {
        // Python takes a negative number for no limit.
        let cuts = self.maxsplit.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
        match self.delimiter.as_deref() {
            Some(d) if !d.is_empty() => s.splitn(cuts.saturating_add(1), d).map(String::from).collect(),
            _ => {
                let (mut out, mut rest) = (Vec::new(), s.trim_start());
                while !rest.is_empty() {
                    let end = if out.len() < cuts { rest.find(char::is_whitespace) } else { None };
                    let (piece, more) = rest.split_at(end.unwrap_or(rest.len()));
                    out.push(if out.len() < cuts { piece } else { piece.trim_end() }.to_string());
                    rest = more.trim_start();
                }
                out
            }
        }
    }
}

impl Op for StringSplit {
    op_basics!(StringSplit);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let x = operand(cx, 0)?;
        let pieces = x.shape.clone().map(|mut s| {
            s.push(Dim::unknown());
            s
        });
        Ok(vec![
            Type::Tensor(TensorType { dtype: DType::String, shape: pieces, sbp: None }),
            Type::Tensor(TensorType { dtype: DType::I64, shape: x.shape.clone(), sbp: None }),
        ])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let all: Vec<Vec<String>> = strings(x)?.iter().map(|s| self.pieces(s)).collect();
        let most = all.iter().map(Vec::len).max().unwrap_or(0);
        let counts: Vec<i64> = all.iter().map(|p| p.len() as i64).collect();
        let mut dims = x.dims().to_vec();
        dims.push(most);
        let mut out = Vec::new();
        out.try_reserve_exact(shape::count(&dims)?).map_err(|_| OpError::eval("a result does not fit into memory"))?;
        for mut pieces in all {
            pieces.resize(most, String::new());
            out.extend(pieces);
        }
        Ok(vec![Tensor::from_strings(dims, out)?.into(), Tensor::from_slice(x.dims(), &counts)?.into()])
    }
}
