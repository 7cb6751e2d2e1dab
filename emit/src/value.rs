//! SSA values of the text, and their properties that need no graph.

use of_ir::DType;

/// Element type and extents of a tensor.
pub type Port = (DType, Vec<usize>);

/// An SSA value of the text: a tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Val {
    /// `%v1`.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub dims: Vec<usize>,
}

impl Val {
    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }
}

/// A type as a word of a payload's header line: ` f32:2,3`.
pub fn port_word((dtype, dims): &Port) -> String {
    format!(" {}:{}", dtype.mlir_name(), dims.iter().map(usize::to_string).collect::<Vec<_>>().join(","))
}

/// The inverse of [`port_word`], without the space.
pub fn port_of_word(word: &str) -> Option<Port> {
    let (dtype, dims) = word.split_once(':')?;
    let dims = dims.split(',').filter(|d| !d.is_empty()).map(|d| d.parse().ok()).collect::<Option<_>>()?;
    Some((DType::from_mlir_name(dtype)?, dims))
}

/// A ranked tensor type as MLIR writes it: `tensor<2x3xf32>`.
pub fn tensor_type(element: &str, dims: &[usize]) -> String {
    format!("tensor<{}>", shaped(element, dims))
}

/// Extents and element type inside a shaped type: `2x3xf32`.
pub fn shaped(element: &str, dims: &[usize]) -> String {
    let dims: String = dims.iter().map(|d| format!("{d}x")).collect();
    format!("{dims}{element}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_round_trips() {
        for port in [(DType::F32, vec![2, 3]), (DType::Bool, vec![])] {
            assert_eq!(port_of_word(port_word(&port).trim_start()), Some(port));
        }
        assert_eq!(port_of_word("f32:2,x"), None);
    }

    #[test]
    fn types_have_an_extent_for_each_axis() {
        assert_eq!(tensor_type("f32", &[2, 3]), "tensor<2x3xf32>");
        assert_eq!(tensor_type("i1", &[]), "tensor<i1>");
    }
}
