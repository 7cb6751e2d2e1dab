//! The domain ai.onnx.ml: classical models, as linear algebra where possible.

mod features;
mod labels;
mod linear;
mod maps;
mod svm;
mod trees;

use of_ir::{Attr, AttrValue, DType, Elements, Tensor, ValueId};
use of_ops::ml::{Probit, SoftmaxIgnoreZero};

use super::compose::nothing_left;
use super::entry::ImporterEntry;
use crate::import::{ImportError, Importer, Node};

/// The operators of ai.onnx.ml, alphabetical.
pub(super) const TABLE: &[ImporterEntry] = table! { "ai.onnx.ml";
    "ArrayFeatureExtractor": 1 features::array_feature_extractor;
    "Binarizer": 1 features::binarizer;
    "CastMap": 1 maps::cast_map;
    "CategoryMapper": 1 labels::category_mapper;
    "DictVectorizer": 1 maps::dict_vectorizer;
    "FeatureVectorizer": 1 features::feature_vectorizer;
    "Imputer": 1 features::imputer;
    "LabelEncoder": 1 labels::label_encoder_1, 2 labels::label_encoder;
    "LinearClassifier": 1 linear::classifier;
    "LinearRegressor": 1 linear::regressor;
    "Normalizer": 1 features::normalizer;
    "OneHotEncoder": 1 features::one_hot_encoder;
    "SVMClassifier": 1 svm::classifier;
    "SVMRegressor": 1 svm::regressor;
    "Scaler": 1 features::scaler;
    "TreeEnsemble": 5 trees::ensemble;
    "TreeEnsembleClassifier": 1 trees::classifier;
    "TreeEnsembleRegressor": 1 trees::regressor;
    "ZipMap": 1 maps::zip_map;
};

/// A list attribute; empty where it is not given.
fn list<T: AttrValue + Default>(node: &mut Node<'_>, name: &str) -> Result<T, ImportError> {
    Ok(node.attrs.take(name)?.unwrap_or_default())
}

/// A list of floats, which a tensor may give instead under the name with `_as_tensor`.
fn floats(node: &mut Node<'_>, name: &str) -> Result<Vec<f64>, ImportError> {
    match node.attrs.take::<Tensor>(&format!("{name}_as_tensor"))? {
        Some(t) => t.to_f64s().ok_or_else(|| ImportError::invalid(format!("'{name}_as_tensor' must hold numbers"))),
        None => list(node, name),
    }
}

/// A tensor of floats.
fn matrix(cx: &mut Importer<'_, '_>, dtype: DType, dims: &[usize], values: Vec<f64>) -> Result<ValueId, ImportError> {
    let t = Tensor::from_elements(dtype, dims.to_vec(), Elements::Float(values));
    cx.constant(t.map_err(|e| ImportError::invalid(e.to_string()))?)
}

/// `x` in another element type.
fn cast(cx: &mut Importer<'_, '_>, x: ValueId, to: DType) -> Result<ValueId, ImportError> {
    if cx.tensor_ty(x)?.dtype == to {
        return Ok(x);
    }
    Ok(cx.rw.create_one(of_ops::elementwise::Cast::to(to), &[x])?)
}

/// An operator of two inputs.
fn pair(cx: &mut Importer<'_, '_>, op: &str, a: ValueId, b: ValueId) -> Result<ValueId, ImportError> {
    cx.emit_one(op, &[Some(a), Some(b)], [])
}

/// What the attribute `post_transform` does to scores.
fn post_transform(cx: &mut Importer<'_, '_>, node: &mut Node<'_>, scores: ValueId) -> Result<ValueId, ImportError> {
    let kind: Option<std::sync::Arc<str>> = node.attrs.take("post_transform")?;
    transform(cx, kind.as_deref().unwrap_or("NONE"), scores)
}

/// The transform called `kind`.
fn transform(cx: &mut Importer<'_, '_>, kind: &str, scores: ValueId) -> Result<ValueId, ImportError> {
    match kind {
        "NONE" => Ok(scores),
        "LOGISTIC" => cx.emit_one("Sigmoid", &[Some(scores)], []),
        "SOFTMAX" => cx.emit_one("Softmax", &[Some(scores)], [("axis", Attr::Int(-1))]),
        "SOFTMAX_ZERO" => Ok(cx.rw.create_one(SoftmaxIgnoreZero {}, &[scores])?),
        "PROBIT" => Ok(cx.rw.create_one(Probit {}, &[scores])?),
        other => Err(ImportError::invalid(format!("post_transform '{other}' is not known"))),
    }
}

/// The labels of classes: strings under `texts`, or integers under `numbers`.
fn class_labels(node: &mut Node<'_>, texts: &str, numbers: &str) -> Result<Tensor, ImportError> {
    let (texts, numbers) = (list::<Vec<std::sync::Arc<str>>>(node, texts)?, list::<Vec<i64>>(node, numbers)?);
    match (texts.is_empty(), numbers.is_empty()) {
        (false, true) => Ok(labels::texts(&texts)),
        (true, false) => Ok(Tensor::from_i64s(&numbers)),
        _ => Err(ImportError::invalid("the labels of the classes must be given, as strings or as integers")),
    }
}

/// The label of the largest score of each row.
fn best(cx: &mut Importer<'_, '_>, labels: Tensor, scores: ValueId) -> Result<ValueId, ImportError> {
    let at = cx.emit_one("ArgMax", &[Some(scores)], [("axis", Attr::Int(-1)), ("keepdims", Attr::Int(0))])?;
    let labels = cx.constant(labels)?;
    cx.emit_one("Gather", &[Some(labels), Some(at)], [])
}

/// `[-s, s]` side by side: the scores of two classes out of one.
fn both_signs(cx: &mut Importer<'_, '_>, s: ValueId) -> Result<ValueId, ImportError> {
    let other = cx.emit_one("Neg", &[Some(s)], [])?;
    cx.emit_one("Concat", &[Some(other), Some(s)], [("axis", Attr::Int(-1))])
}
