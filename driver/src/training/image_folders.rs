//! A folder with a folder of images for each class.

use std::path::{Path, PathBuf};

use of_diag::{Code, Diagnostics};
use of_ir::Tensor;

use super::data::{ColumnSpec, DataOptions, Values};
use super::encoded::{EncodedImage, EncodedImages};
use crate::error::{error, io_error};
use crate::images;

/// The images and the labels of a folder, and the names of the classes.
pub(super) struct ImageFolders {
    pub columns: [(String, Values); 2],
    pub classes: Vec<String>,
}

/// Reads a folder for the columns `wanted`, one input and the labels. The classes are the folders in it that have images, in the order of their
/// names, or those of [`DataOptions::classes`]. Images may be in folders of a class's folder. Names that begin with a dot are left out.
///
/// # Errors
/// When a folder cannot be read, none has images, or one is of a class that is not among [`DataOptions::classes`].
pub(super) fn read(path: &Path, wanted: &[ColumnSpec], options: &DataOptions) -> Result<ImageFolders, Diagnostics> {
    let [input, labels] = wanted else {
        let what =
            format!("'{}': images are for models of one input, and this has {}", path.display(), wanted.len() - 1);
        return Err(error(Code::INPUT, what).into());
    };
    let mut found: Vec<(String, Vec<PathBuf>)> = Vec::new();
    let mut is_flat = false;
    for entry in entries(path)? {
        is_flat |= images::is_image(&entry) && entry.is_file();
        if entry.is_dir() {
            let images = images_in(&entry)?;
            found.extend((!images.is_empty()).then(|| (name(&entry), images)));
        }
    }
    let classes = match &options.classes[..] {
        [] => found.iter().map(|(class, _)| class.clone()).collect(),
        known => known.to_vec(),
    };
    let (mut files, mut targets): (Vec<EncodedImage>, Vec<i64>) = Default::default();
    for (class, images) in found {
        let Some(number) = classes.iter().position(|known| *known == class) else {
            let what = format!("'{}': the training data has no class '{class}'", path.join(&class).display());
            let hint = format!("its classes are {}; a folder whose name begins with '.' is left out", listed(&classes));
            return Err(error(Code::INPUT, what).hint(hint).into());
        };
        targets.extend(images.iter().map(|_| number as i64));
        files.extend(images.into_iter().map(EncodedImage::File));
    }
    let Some(values) = EncodedImages::new(input, &options.images, files)? else {
        let what = format!("'{}' has no folders of images, one for each class", path.display());
        let hint = match is_flat {
            true => "put the images of each class into a folder of its own, such as DIR/cat/1.jpg",
            false => {
                "a folder for each class is needed, such as DIR/cat with 1.jpg; of-opt reads JPEG, PNG, WebP, BMP, TIFF, JPEG 2000 and PNM"
            }
        };
        return Err(error(Code::INPUT, what).hint(hint).into());
    };
    let targets = Tensor::from_slice(&[targets.len()], &targets).map_err(|e| error(Code::INPUT, e.to_string()))?;
    let columns = [(input.name.clone(), Values::Images(values)), (labels.name.clone(), Values::Numbers(targets))];
    Ok(ImageFolders { columns, classes })
}

/// Names for a message; of many, the first.
fn listed(names: &[String]) -> String {
    const MOST: usize = 10;
    let more = if names.len() > MOST { format!(" and {} more", names.len() - MOST) } else { String::new() };
    format!("{}{more}", names[..names.len().min(MOST)].join(", "))
}

fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// What is in a folder, in the order of names.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, Diagnostics> {
    let failed = |e: std::io::Error| Diagnostics::from(io_error(folder, "read", &e));
    let mut list = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        // Programs keep files such as .DS_Store and .ipynb_checkpoints next to those of the user.
        if !name(&path).starts_with('.') {
            list.push(path);
        }
    }
    list.sort();
    Ok(list)
}

/// The images in a folder and in the folders below it.
fn images_in(folder: &Path) -> Result<Vec<PathBuf>, Diagnostics> {
    let mut out = Vec::new();
    for entry in entries(folder)? {
        // A link to a folder above would never end.
        if entry.is_dir() && !entry.is_symlink() {
            out.extend(images_in(&entry)?);
        } else if images::is_image(&entry) && !entry.is_dir() {
            out.push(entry);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use of_ir::{DType, Dim, Type};

    use super::super::data::Dataset;
    use super::*;

    fn image(dir: &Path, name: &str, grey: u8) {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, [&b"P6\n1 1\n255\n"[..], &[grey; 3]].concat()).unwrap();
    }

    fn read(dir: &Path, classes: &[&str]) -> Result<Dataset, String> {
        let n = || Dim::symbol("n");
        let wanted = [
            ColumnSpec {
                name: "x".into(),
                ty: Type::tensor(DType::U8, vec![n(), Dim::from(1i64), Dim::from(1i64), Dim::from(3i64)]),
            },
            ColumnSpec { name: "y".into(), ty: Type::tensor(DType::I64, vec![n()]) },
        ];
        let classes = classes.iter().map(|name| (*name).to_owned()).collect();
        let options = DataOptions { classes, ..DataOptions::default() };
        Dataset::read_with(&[dir.into()], &wanted, &options).map_err(|e| e.to_string())
    }

    fn labels(data: &Dataset) -> Vec<i64> {
        let all: Vec<usize> = (0..data.len()).collect();
        data.batch(&all).unwrap()[1].as_tensor().unwrap().to_elements::<i64>().unwrap()
    }

    #[test]
    fn classes_are_folders_with_images_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["dog/a.ppm", "dog/more/b.ppm", "cat/a.ppm", ".git/a.ppm", "cat/.thumbs/a.ppm", "cat/._a.ppm"] {
            image(dir.path(), name, 1);
        }
        std::fs::create_dir(dir.path().join("bird")).unwrap();
        std::fs::write(dir.path().join("bird/notes.txt"), "none").unwrap();
        let data = read(dir.path(), &[]).unwrap();
        assert_eq!((data.classes.clone(), labels(&data)), (vec!["cat".into(), "dog".into()], vec![0, 1, 1]));
        assert_eq!(data.largest_label(-100), Some(1));
    }

    #[test]
    fn numbers_of_classes_are_those_of_the_training() {
        let dir = tempfile::tempdir().unwrap();
        image(dir.path(), "dog/a.ppm", 1);
        let data = read(dir.path(), &["cat", "dog", "horse"]).unwrap();
        assert_eq!((data.classes.len(), labels(&data)), (3, vec![1]));
        image(dir.path(), "owl/a.ppm", 1);
        let e = read(dir.path(), &["cat", "dog"]).unwrap_err();
        assert!(e.contains("the training data has no class 'owl'") && e.contains("its classes are cat, dog"), "{e}");
    }

    #[test]
    fn images_without_a_folder_of_their_class_are_refused_with_a_hint() {
        let dir = tempfile::tempdir().unwrap();
        image(dir.path(), "a.ppm", 1);
        let e = read(dir.path(), &[]).unwrap_err();
        assert!(e.contains("no folders of images") && e.contains("such as DIR/cat/1.jpg"), "{e}");
    }
}
