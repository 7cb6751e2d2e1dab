//! Types of values.

use std::fmt;

use crate::{DType, Dim, NdSbp};

/// A list of dimensions, outermost first.
pub type Shape = Vec<Dim>;

/// The type of a tensor: element type, shape and, on a mesh, its placement.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Dimensions; `None` where not even the rank is known.
    pub shape: Option<Shape>,
    /// Placement on a mesh; `None` for a tensor on one device.
    pub sbp: Option<NdSbp>,
}

impl TensorType {
    /// A tensor on one device.
    pub fn new(dtype: DType, shape: Shape) -> Self {
        Self { dtype, shape: Some(shape), sbp: None }
    }

    /// A tensor with fixed dimensions.
    pub fn fixed(dtype: DType, dims: &[usize]) -> Self {
        Self::new(dtype, dims.iter().map(|d| Dim::from(*d)).collect())
    }

    /// A tensor of unknown rank.
    pub fn unranked(dtype: DType) -> Self {
        Self { dtype, shape: None, sbp: None }
    }

    /// Number of dimensions where known.
    pub fn rank(&self) -> Option<usize> {
        self.shape.as_ref().map(Vec::len)
    }

    /// The dimensions as numbers, where all are known and none is negative.
    pub fn fixed_dims(&self) -> Option<Vec<usize>> {
        self.shape.as_ref()?.iter().map(|d| usize::try_from(d.as_const()?).ok()).collect()
    }

    /// The same shape with another element type. The placement is dropped: results need not be placed like operands.
    pub fn with_dtype(&self, dtype: DType) -> Self {
        Self { dtype, shape: self.shape.clone(), sbp: None }
    }
}

/// The type of a value.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Type {
    /// A tensor.
    Tensor(TensorType),
    /// A list of values of one type, its length known at run time only. A symbol in it is an extent that all elements
    /// share; unknown dimensions may differ from element to element.
    Sequence(Box<Type>),
    /// A value or nothing.
    Optional(Box<Type>),
    /// The type of an operand that is left out.
    None,
}

impl Type {
    /// A tensor with fixed dimensions.
    pub fn fixed(dtype: DType, dims: &[usize]) -> Self {
        Type::Tensor(TensorType::fixed(dtype, dims))
    }

    /// A tensor with the given shape.
    pub fn tensor(dtype: DType, shape: Shape) -> Self {
        Type::Tensor(TensorType::new(dtype, shape))
    }

    /// The tensor type, if it is one.
    pub fn as_tensor(&self) -> Option<&TensorType> {
        match self {
            Type::Tensor(t) => Some(t),
            _ => None,
        }
    }

    /// Applies `f` to every dimension in it.
    pub fn map_dims(&self, f: &mut dyn FnMut(&Dim) -> Dim) -> Type {
        match self {
            Type::Tensor(t) => Type::Tensor(TensorType {
                shape: t.shape.as_ref().map(|s| s.iter().map(&mut *f).collect()),
                ..t.clone()
            }),
            Type::Sequence(t) => Type::Sequence(Box::new(t.map_dims(f))),
            Type::Optional(t) => Type::Optional(Box::new(t.map_dims(f))),
            Type::None => Type::None,
        }
    }

    /// Whether a value of type `self` may be one of type `other`: the same but for dimensions that cannot be compared.
    pub fn compatible(&self, other: &Type) -> bool {
        match (self, other) {
            (Type::Tensor(a), Type::Tensor(b)) => {
                a.dtype == b.dtype
                    && match (&a.shape, &b.shape) {
                        (Some(x), Some(y)) => x.len() == y.len() && x.iter().zip(y).all(|(d, e)| !d.provably_ne(e)),
                        _ => true,
                    }
            }
            (Type::Sequence(a), Type::Sequence(b)) | (Type::Optional(a), Type::Optional(b)) => a.compatible(b),
            (Type::None, Type::None) => true,
            _ => false,
        }
    }
}

impl From<TensorType> for Type {
    fn from(t: TensorType) -> Type {
        Type::Tensor(t)
    }
}

/// The pretty form: `tensor<?(N*2)x64xf32, #of.sbp<@m, [S(0)]>>`, and `?` alone where nothing is known.
impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Tensor(t) => {
                f.write_str("tensor<")?;
                match &t.shape {
                    None => f.write_str("*x")?,
                    Some(s) => {
                        for d in s {
                            match (d.as_const(), d.as_symbol()) {
                                (Some(c), _) if c >= 0 => write!(f, "{c}x")?,
                                (_, Some(s)) if &**s == "?" => f.write_str("?x")?,
                                _ => write!(f, "?({d})x")?,
                            }
                        }
                    }
                }
                write!(f, "{}", t.dtype)?;
                if let Some(sbp) = &t.sbp {
                    write!(f, ", #of.sbp<{sbp}>")?;
                }
                f.write_str(">")
            }
            Type::Sequence(t) => write!(f, "!of.seq<{t}>"),
            Type::Optional(t) => write!(f, "!of.opt<{t}>"),
            Type::None => f.write_str("none"),
        }
    }
}
