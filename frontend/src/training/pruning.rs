//! Pruning: weights of small magnitude become zero, and stay zero while the others are trained.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use of_diag::{Code, Diagnostic, Diagnostics};
use of_ir::{Attr, DType, Elements, Module, Rewriter, Tensor, TensorError};

use super::plain;
use super::weights::{Weight, weights};

/// Which weights become zero. As text: `0.5`, `global:0.5`, `channels:0.3` or `2:4`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pruning {
    /// This part of every weight tensor, the elements of least magnitude. Source: PyTorch's `prune.l1_unstructured`.
    Tensor(f64),
    /// This part of all weights together. Source: PyTorch's `prune.global_unstructured` with `L1Unstructured`.
    Global(f64),
    /// This part of the output channels of every weight tensor, those of least L2 norm: rows or columns of a product's matrix, filters of a
    /// convolution. Source: PyTorch's `prune.ln_structured` with `n=2` along the axis of outputs. Biases stay, as there.
    Channels(f64),
    /// All but `keep` of every `group` neighbours along the inputs of a product, or the input channels of a convolution. Source:
    /// Mishra et al., "Accelerating Sparse Deep Neural Networks" (2021). Tensors that do not divide into groups stay dense.
    Structured {
        /// Elements of a group that are kept, those of largest magnitude.
        keep: usize,
        /// Elements of a group.
        group: usize,
    },
}

impl FromStr for Pruning {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{text}' is no pruning: 0.5 is a part of each weight tensor, global:0.5 of all together, channels:0.3 of the output channels of each, 2:4 keeps two of four"
            )
        };
        let part = |text: &str| text.parse::<f64>().ok().filter(|p| *p > 0.0 && *p < 1.0);
        match text.split_once(':') {
            None => part(text).map(Pruning::Tensor),
            Some(("global", rest)) => part(rest).map(Pruning::Global),
            Some(("channels", rest)) => part(rest).map(Pruning::Channels),
            Some((keep, group)) => match (keep.parse(), group.parse()) {
                (Ok(keep), Ok(group)) if 0 < keep && keep < group => Some(Pruning::Structured { keep, group }),
                _ => None,
            },
        }
        .ok_or_else(wrong)
    }
}

impl fmt::Display for Pruning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pruning::Tensor(part) => write!(f, "{part}"),
            Pruning::Global(part) => write!(f, "global:{part}"),
            Pruning::Channels(part) => write!(f, "channels:{part}"),
            Pruning::Structured { keep, group } => write!(f, "{keep}:{group}"),
        }
    }
}

/// Prunes the weights of a model whose names are wanted. Returns a mask for each pruned tensor: i1, true where an element is kept.
///
/// # Errors
/// When no weight can be pruned.
pub fn prune(
    module: &mut Module,
    pruning: Pruning,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<HashMap<String, Tensor>, Diagnostics> {
    let func = module.main_mut().ok_or_else(|| plain(Code::NAME, "the module has no function".into()))?;
    let weights: Vec<Weight> = weights(&func.graph).into_iter().filter(|weight| wanted(&weight.name)).collect();
    let values: Vec<Vec<f64>> = weights.iter().map(|weight| weight.value.to_f64s().unwrap_or_default()).collect();
    let kept = match pruning {
        Pruning::Tensor(part) => values.iter().map(|v| Some(largest(&[v], part).remove(0))).collect(),
        Pruning::Global(part) => {
            let all: Vec<&Vec<f64>> = values.iter().collect();
            largest(&all, part).into_iter().map(Some).collect()
        }
        Pruning::Channels(part) => {
            let one =
                |(weight, v): (&Weight, &Vec<f64>)| Some(channels(v, weight.value.dims(), weight.output_axis, part));
            weights.iter().zip(&values).map(one).collect()
        }
        Pruning::Structured { keep, group } => {
            let one = |(weight, v): (&Weight, &Vec<f64>)| {
                structured(v, weight.value.dims(), weight.input_axis, (keep, group))
            };
            weights.iter().zip(&values).map(one).collect::<Vec<_>>()
        }
    };
    let mut masks = HashMap::new();
    for ((weight, values), kept) in weights.iter().zip(values).zip(kept) {
        let Some(kept) = kept else { continue };
        let dims = weight.value.dims().to_vec();
        let pruned = values.iter().zip(&kept).map(|(v, kept)| if *kept { *v } else { 0.0 }).collect();
        let value =
            Tensor::from_elements(weight.value.dtype(), dims.clone(), Elements::Float(pruned)).map_err(wrong)?;
        let flags = kept.iter().map(|kept| i128::from(*kept)).collect();
        let mask = Tensor::from_elements(DType::Bool, dims, Elements::Int(flags)).map_err(wrong)?;
        Rewriter::new(&mut func.graph, "prune").set_attr(weight.constant, "value", Attr::Tensor(value));
        masks.insert(weight.name.clone(), mask);
    }
    if masks.is_empty() {
        let what = format!("pruning {pruning} fits no weight of a product or convolution");
        return Err(plain(Code::UNSUPPORTED, what).into());
    }
    Ok(masks)
}

fn wrong(e: TensorError) -> Diagnostic {
    plain(Code::TYPE, e.to_string())
}

/// Which elements are kept when this part of them is pruned, for each tensor. Of equal magnitudes the first are pruned.
fn largest(tensors: &[&Vec<f64>], part: f64) -> Vec<Vec<bool>> {
    let mut order: Vec<(usize, usize)> =
        tensors.iter().enumerate().flat_map(|(t, values)| (0..values.len()).map(move |i| (t, i))).collect();
    order.sort_by(|a, b| tensors[a.0][a.1].abs().total_cmp(&tensors[b.0][b.1].abs()));
    let pruned = (order.len() as f64 * part).round() as usize;
    let mut kept: Vec<Vec<bool>> = tensors.iter().map(|values| vec![true; values.len()]).collect();
    for (t, i) in &order[..pruned] {
        kept[*t][*i] = false;
    }
    kept
}

/// Which elements are kept when this part of the slices along an axis is pruned, those of least norm. Of equal norms the first are pruned.
fn channels(values: &[f64], dims: &[usize], axis: usize, part: f64) -> Vec<bool> {
    let step: usize = dims[axis + 1..].iter().product();
    let channel = |i: usize| i / step % dims[axis];
    let mut squares = vec![0.0; dims[axis]];
    values.iter().enumerate().for_each(|(i, v)| squares[channel(i)] += v * v);
    let kept = largest(&[&squares], part).remove(0);
    (0..values.len()).map(|i| kept[channel(i)]).collect()
}

/// Which elements are kept when `keep` of every `group` along an axis are; `None` if the axis does not divide into groups.
fn structured(values: &[f64], dims: &[usize], axis: usize, (keep, group): (usize, usize)) -> Option<Vec<bool>> {
    let length = *dims.get(axis)?;
    if length == 0 || !length.is_multiple_of(group) {
        return None;
    }
    let step: usize = dims[axis + 1..].iter().product();
    let mut kept = vec![false; values.len()];
    let starts = (0..values.len()).filter(|i| (i / step % length).is_multiple_of(group));
    for start in starts {
        let mut members: Vec<usize> = (0..group).map(|k| start + k * step).collect();
        members.sort_by(|a, b| values[*b].abs().total_cmp(&values[*a].abs()));
        members.iter().take(keep).for_each(|i| kept[*i] = true);
    }
    Some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_a_pruning() {
        for text in ["0.5", "global:0.25", "channels:0.3", "2:4"] {
            assert_eq!(text.parse::<Pruning>().unwrap().to_string(), text);
        }
        for text in ["", "0", "1", "-0.5", "4:2", "0:4", "global:2", "channels:1", "x:4", "NaN"] {
            assert!(text.parse::<Pruning>().unwrap_err().contains("is no pruning"), "{text}");
        }
    }

    #[test]
    fn smallest_magnitudes_are_pruned() {
        let (a, b) = (vec![0.1, -3.0, 0.2, 4.0], vec![0.3, -0.05]);
        assert_eq!(largest(&[&a], 0.5), [[false, true, false, true]]);
        assert_eq!(largest(&[&a, &b], 0.5), [vec![false, true, false, true], vec![true, false]]);
    }

    #[test]
    fn channels_of_least_norm_are_pruned() {
        // Three filters of two elements, and the same as columns.
        let rows = vec![3.0, 4.0, -1.0, 1.0, 0.0, 2.0];
        assert_eq!(channels(&rows, &[3, 2], 0, 0.3), [true, true, false, false, true, true]);
        let columns = vec![3.0, -1.0, 0.0, 4.0, 1.0, 2.0];
        assert_eq!(channels(&columns, &[2, 3], 1, 0.6), [true, false, false, true, false, false]);
    }

    #[test]
    fn groups_run_along_their_axis() {
        let values: Vec<f64> = (0..16).map(|i| f64::from((i * 7) % 16)).collect();
        for axis in [0, 1] {
            let kept = structured(&values, &[4, 4], axis, (2, 4)).unwrap();
            for line in 0..4 {
                let at = |k: usize| if axis == 0 { k * 4 + line } else { line * 4 + k };
                let (mut in_mask, mut out): (Vec<f64>, Vec<f64>) = Default::default();
                (0..4).for_each(|k| if kept[at(k)] { in_mask.push(values[at(k)]) } else { out.push(values[at(k)]) });
                assert_eq!(in_mask.len(), 2);
                assert!(in_mask.iter().all(|x| out.iter().all(|y| x > y)), "{in_mask:?} {out:?}");
            }
        }
        assert_eq!(structured(&values, &[8, 2], 1, (2, 4)), None);
    }
}
