//! Which fields are encoded images.

use super::schema::{Field, Kind};

/// The field of a structure that has the images, as the package datasets of Hugging Face writes them.
const BYTES: &str = "bytes";

/// The number of the column of encoded images among those of a field: a binary one, or the field `bytes` of a structure.
pub fn leaf(field: &Field) -> Option<usize> {
    match field.kind {
        Kind::Text { is_binary: true, .. } => Some(0),
        Kind::Struct => {
            let at = child(field)?;
            Some(field.children[..at].iter().map(Field::leaves).sum())
        }
        _ => None,
    }
}

/// The field of such a structure that has the paths of images without bytes.
const PATH: &str = "path";

/// The number of the child of a structure that has paths.
pub fn path(field: &Field) -> Option<usize> {
    let is_path = |child: &Field| child.name == PATH && matches!(child.kind, Kind::Text { is_binary: false, .. });
    field.children.iter().position(is_path)
}

/// The number of the child of a structure that has the images.
pub fn child(field: &Field) -> Option<usize> {
    let is_image = |child: &Field| child.name == BYTES && matches!(child.kind, Kind::Text { is_binary: true, .. });
    field.children.iter().position(is_image)
}
