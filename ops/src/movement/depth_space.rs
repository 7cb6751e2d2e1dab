//! `of.depth_to_space` and `of.space_to_depth`.

use std::sync::Arc;

use of_diag::Location;
use of_ir::{Dim, DimFn, OpError, OpView, Rewriter, SbpSignature, TensorType, Type, ValueId};

use super::spec::{Part, reshape};
use super::{Transpose, first_only, partials, split};
use crate::sample::Rng;
use crate::{Expanded, Inferred, Op, op, op_basics};

op! {
    /// Moves channels into blocks of pixels: `[N, C, H, W] -> [N, C / b^2, H b, W b]`. In mode `DCR` the block is the
    /// outer factor of the channels, in `CRD` the inner one.
    pub struct DepthToSpace = "of.depth_to_space" [Composite, onnx: "DepthToSpace"] {
        operands: (x),
        results: (y),
        attrs: { blocksize: i64, mode: Arc<str> },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let b = r.int(1, 3);
        let dims = [r.int(1, 2) as usize, (r.int(1, 2) * b * b) as usize, r.int(1, 3) as usize, r.int(1, 3) as usize];
        Some((vec![r.f32s(&dims)], DepthToSpace { blocksize: b, mode: r.pick(&["DCR", "CRD"]).into() }))
    };
}

op! {
    /// Moves blocks of pixels into channels: `[N, C, H, W] -> [N, b^2 C, H / b, W / b]`; the inverse of depth to space in
    /// mode `DCR`.
    pub struct SpaceToDepth = "of.space_to_depth" [Composite, onnx: "SpaceToDepth"] {
        operands: (x),
        results: (y),
        attrs: { blocksize: i64 },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let b = r.int(1, 3);
        let dims = [r.int(1, 2) as usize, r.int(1, 3) as usize, (r.int(1, 2) * b) as usize, (r.int(1, 2) * b) as usize];
        Some((vec![r.f32s(&dims)], SpaceToDepth { blocksize: b }))
    };
}

/// Larger blocks than any image has; their square does not overflow.
const MAX_BLOCK: i64 = 1 << 16;

/// The operand's type and its four dimensions, where the rank is known.
fn image<'a>(cx: &OpView<'a>, block: i64) -> Result<(&'a TensorType, Option<&'a [Dim; 4]>), OpError> {
    if !(1..=MAX_BLOCK).contains(&block) {
        return Err(OpError::attr(format!("blocksize is {block}, it must be in 1..={MAX_BLOCK}")));
    }
    let t = cx.tensor(0)?;
    let dims = match &t.shape {
        Some(s) => Some(s.as_slice().try_into().map_err(|_| OpError::shape("the operand must have four axes"))?),
        None => None,
    };
    Ok((t, dims))
}

/// `d / by`, which leaves no remainder.
fn exact(d: &Dim, by: i64) -> Result<Dim, OpError> {
    match (d.exact_div(&by.into()), d.as_const()) {
        (Some(q), _) => Ok(q),
        (None, Some(n)) => Err(OpError::shape(format!("a dimension of {n} does not divide by {by}"))),
        (None, None) => Ok(Dim::call(DimFn::FloorDiv, d, &by.into())),
    }
}

fn splits(cx: &OpView<'_>) -> Vec<SbpSignature> {
    let mut out = partials(1);
    if cx.tensor(0).is_ok_and(|t| t.rank() == Some(4)) {
        out.extend(split(0).map(|s| first_only(1, s, s)));
    }
    out
}

/// The axes that a reshape splits, their permutation, and the axes that a second reshape merges.
fn shuffle(rw: &mut Rewriter<'_>, x: ValueId, apart: &[Part; 6], perm: [i64; 6], joined: &[Part; 4]) -> Expanded {
    let apart = reshape(rw, x, apart)?;
    let moved = rw.create_one(Transpose { perm: Some(perm.to_vec()) }, &[apart])?;
    Ok(vec![reshape(rw, moved, joined)?])
}

fn checked(rw: &Rewriter<'_>, operands: &[ValueId], block: i64, name: &str) -> Result<(), of_diag::Diagnostic> {
    let attrs = of_ir::Attrs::new();
    let cx = OpView { graph: rw.graph(), operands, attrs: &attrs, regions: &[] };
    let ranked = image(&cx, block)
        .and_then(|(_, d)| d.map(|_| ()).ok_or_else(|| OpError::shape("the rank of the operand is not known")));
    ranked.map_err(|e| e.at(name, &Location::Unknown))
}

impl Op for DepthToSpace {
    op_basics!(DepthToSpace);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        if !matches!(&*self.mode, "DCR" | "CRD") {
            return Err(OpError::attr(format!("mode '{}' is unknown", self.mode)).hint("DCR or CRD"));
        }
        let (t, dims) = image(cx, self.blocksize)?;
        let b = Dim::from(self.blocksize);
        let out = match dims {
            Some([n, c, h, w]) => vec![n.clone(), exact(c, self.blocksize * self.blocksize)?, h * &b, w * &b],
            None => vec![Dim::unknown(); 4],
        };
        Ok(vec![Type::tensor(t.dtype, out)])
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        checked(rw, operands, self.blocksize, "of.depth_to_space")?;
        let b = self.blocksize;
        let (n, c, h, w) = (Part::axis(0), Part::axis(1).over(b * b), Part::axis(2), Part::axis(3));
        let (block, other) = (Part::number(b), Part::number(b));
        let (apart, perm, channels) = match &*self.mode {
            "CRD" => ([n, c, block, other, h, w], [0, 1, 4, 2, 5, 3], 1),
            _ => ([n, block, other, c, h, w], [0, 3, 4, 1, 5, 2], 1),
        };
        let joined = [Part::axis(0), Part::axis(channels), Part::product(vec![2, 3]), Part::product(vec![4, 5])];
        shuffle(rw, operands[0], &apart, perm, &joined)
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        splits(cx)
    }
}

impl Op for SpaceToDepth {
    op_basics!(SpaceToDepth);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (t, dims) = image(cx, self.blocksize)?;
        let out = match dims {
            Some([n, c, h, w]) => {
                let channels = c * &Dim::from(self.blocksize * self.blocksize);
                vec![n.clone(), channels, exact(h, self.blocksize)?, exact(w, self.blocksize)?]
            }
            None => vec![Dim::unknown(); 4],
        };
        Ok(vec![Type::tensor(t.dtype, out)])
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        checked(rw, operands, self.blocksize, "of.space_to_depth")?;
        let b = self.blocksize;
        let (h, w) = (Part::axis(2).over(b), Part::axis(3).over(b));
        let apart = [Part::axis(0), Part::axis(1), h, Part::number(b), w, Part::number(b)];
        let joined = [Part::axis(0), Part::product(vec![1, 2, 3]), Part::axis(4), Part::axis(5)];
        shuffle(rw, operands[0], &apart, [0, 3, 5, 1, 2, 4], &joined)
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        splits(cx)
    }
}
