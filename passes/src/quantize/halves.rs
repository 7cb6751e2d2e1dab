//! Weights in 16-bit floats.

use half::{bf16, f16};
use of_diag::{Code, Diagnostic, Diagnostics};
use of_ir::{DType, Func, Rewriter, Tensor};
use of_ops::structural::Constant;

use super::product;

/// Rounds the constant weights of products and convolutions of floats in `func` (primitives alone, pipeline `primitives`),
/// loops and branches included, to numbers that `dtype`, f16 or bf16, holds. They stay f32: code generation keeps what
/// 16 bits hold in 16 bits. Gives how many products and convolutions there are.
///
/// # Errors
/// When a weight is beyond the range of `dtype`.
pub fn round_weights(func: &mut Func, dtype: DType) -> Result<usize, Diagnostics> {
    let mut rw = Rewriter::new(&mut func.graph, "quantize");
    let mut count = 0;
    for op in rw.graph().walk() {
        if product(rw.graph(), op).is_none() {
            continue;
        }
        let w = rw.graph().op(op).operands[1];
        let Some(tensor) = rw.graph().constant(w) else { continue };
        let Some(numbers) = tensor.as_slice::<f32>() else { continue };
        let round = |x: &f32| match dtype {
            DType::F16 => f16::from_f32(*x).to_f32(),
            _ => bf16::from_f32(*x).to_f32(),
        };
        let rounded: Vec<f32> = numbers.iter().map(round).collect();
        let loc = || rw.graph().op(op).loc.clone();
        if let Some((x, _)) = numbers.iter().zip(&rounded).find(|(x, r)| x.is_finite() && !r.is_finite()) {
            let d = Diagnostic::error(
                Code::UNSUPPORTED,
                loc(),
                format!("a weight of {x:e} is beyond the range of {dtype}"),
            );
            return Err(d.hint("bf16 has the range of f32").into());
        }
        let fits = |e: of_ir::TensorError| Diagnostic::error(Code::TYPE, loc(), e.to_string());
        let value = Tensor::from_slice(tensor.dims(), &rounded).map_err(fits)?;
        rw.rewrite(op, &[]);
        let w = rw.create_one(Constant { value }, &[])?;
        rw.set_operand(op, 1, w);
        count += 1;
    }
    crate::dce::dce(func);
    Ok(count)
}

#[cfg(test)]
mod tests {
    use of_ir::text::parse_module;

    use super::*;

    fn rounded(w: &str, dtype: DType) -> Result<Vec<f32>, Diagnostics> {
        let text = format!(
            "func @main(%x: tensor<2x2xf32>) -> (tensor<2x1xf32>) {{
  %w = of.constant {{value = dense<[[{w}], [1.0]]> : tensor<2x1xf32>}}
  %0 = of.matmul %x, %w
  of.return %0
}}
"
        );
        let mut module = parse_module(&text, "test.of", &of_ops::registry(), None).unwrap();
        let main = module.main_mut().unwrap();
        assert_eq!(round_weights(main, dtype)?, 1);
        let g = &main.graph;
        let w = g.walk().into_iter().find_map(|op| g.constant(*g.op(op).operands.get(1)?)).unwrap();
        Ok(w.as_slice::<f32>().unwrap().into_owned())
    }

    #[test]
    fn weights_are_rounded_to_nearest_even() {
        // One and a half units of the last place of f16 over 1, so to the even neighbour; bf16 keeps 8 bits.
        assert_eq!(rounded("1.00146484375", DType::F16).unwrap(), [1.0 + 1.0 / 512.0, 1.0]);
        assert_eq!(rounded("1.00146484375", DType::BF16).unwrap(), [1.0, 1.0]);
        assert_eq!(rounded("1.0e5", DType::BF16).unwrap(), [99840.0, 1.0]);
        assert!(rounded("1.0e5", DType::F16).unwrap_err().to_string().contains("beyond the range of f16"));
    }
}
