//! The common type of values that come from different places.

use of_ir::{Dim, OpError, TensorType, Type};

/// The type of a value that is either an `a` or a `b`: dimensions in which they differ are unknown, a differing rank is
/// unknown as a whole.
///
/// # Errors
/// When no type holds both.
pub fn join(a: &Type, b: &Type) -> Result<Type, OpError> {
    Ok(match (a, b) {
        (Type::Tensor(x), Type::Tensor(y)) if x.dtype == y.dtype => {
            let shape = match (&x.shape, &y.shape) {
                (Some(s), Some(t)) if s.len() == t.len() => {
                    Some(s.iter().zip(t).map(|(d, e)| if d == e { d.clone() } else { Dim::unknown() }).collect())
                }
                _ => None,
            };
            Type::Tensor(TensorType { dtype: x.dtype, shape, sbp: None })
        }
        (Type::Sequence(x), Type::Sequence(y)) => Type::Sequence(Box::new(element(x, y)?)),
        (Type::Optional(x), Type::Optional(y)) => Type::Optional(Box::new(element(x, y)?)),
        // A value that is not an optional counts as one.
        (Type::Optional(x), y) | (y, Type::Optional(x)) if *y != Type::None => Type::Optional(Box::new(element(x, y)?)),
        (Type::None, Type::None) => Type::None,
        _ => return Err(OpError::ty(format!("a value cannot be {a} here and {b} there"))),
    })
}

/// The same inside a container, whose elements are of no type while it is empty.
fn element(a: &Type, b: &Type) -> Result<Type, OpError> {
    match (a, b) {
        (Type::None, t) | (t, Type::None) => Ok(t.clone()),
        _ => join(a, b),
    }
}

/// [`join`] of two lists of equal length.
pub(super) fn join_all(a: &[Type], b: &[Type]) -> Result<Vec<Type>, OpError> {
    if a.len() != b.len() {
        return Err(super::region_error(format!("one region yields {} values, the other {}", a.len(), b.len())));
    }
    a.iter().zip(b).map(|(x, y)| join(x, y)).collect()
}

#[cfg(test)]
mod tests {
    use of_ir::DType;

    use super::*;

    #[test]
    fn joined_types_keep_equal_dimensions() {
        let t = |d: &[&str]| {
            Type::tensor(
                DType::F32,
                d.iter().map(|s| s.parse::<i64>().map_or_else(|_| Dim::symbol(*s), Dim::from)).collect(),
            )
        };
        assert_eq!(join(&t(&["2", "N"]), &t(&["3", "N"])).unwrap(), t(&["?", "N"]));
        assert_eq!(join(&t(&["2"]), &t(&["2", "2"])).unwrap(), Type::Tensor(TensorType::unranked(DType::F32)));
        assert!(join(&t(&["2"]), &Type::fixed(DType::I32, &[2])).is_err());
        let seq = |t| Type::Sequence(Box::new(t));
        assert_eq!(join(&seq(Type::None), &seq(t(&["2"]))).unwrap(), seq(t(&["2"])));
        let opt = |t| Type::Optional(Box::new(t));
        assert_eq!(join(&opt(t(&["2"])), &t(&["3"])).unwrap(), opt(t(&["?"])));
        assert!(join_all(&[Type::None], &[]).is_err());
    }
}
