//! WebDataset: samples as members of a tar file.
//!
//! Source of the format: <https://github.com/webdataset/webdataset>: the members of a sample follow one another, and their names agree
//! up to the first dot of the last part; what follows the dot is the field.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use flate2::read::GzDecoder;
use of_diag::{Code, Diagnostics};
use of_ir::Tensor;

use super::data::{ColumnSpec, Values};
use super::encoded::{EncodedImage, EncodedImages};
use super::stack::Stack;
use crate::error::{error, io_error};
use crate::images::{self, ImageOptions};
use crate::npy;

/// Whether the name is that of such a file.
pub fn is_webdataset(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    [".tar", ".tar.gz", ".tgz"].iter().any(|end| name.ends_with(end))
}

/// Reads the columns `wanted`, of which the last are the labels. Fields are `NAME.npy`, `NAME.cls` (a whole number as text) or `NAME.jpg`
/// and other images for the column `NAME`; without a name, `cls` are the labels, and an array or image is for the only input. Other fields,
/// such as `json`, are left. Images stay in the archive, or in memory if it is compressed, until a batch needs them.
///
/// # Errors
/// When the file cannot be read or is damaged, or a sample lacks a column or has it in another type or with other extents than the first.
pub fn read(path: &Path, wanted: &[ColumnSpec], images: &ImageOptions) -> Result<Vec<(String, Values)>, Diagnostics> {
    let failed = |e: std::io::Error| {
        let hint = "it is damaged, not written completely, or no archive of tar";
        Diagnostics::from(io_error(path, "read as an archive of tar", &e).hint(hint))
    };
    let file = std::io::BufReader::new(std::fs::File::open(path).map_err(failed)?);
    let is_packed = !path.extension().is_some_and(|e| e.eq_ignore_ascii_case("tar"));
    let bytes: Box<dyn Read> = if is_packed { Box::new(GzDecoder::new(file)) } else { Box::new(file) };
    let mut archive = tar::Archive::new(bytes);
    let archive_path: Arc<Path> = path.into();
    let mut stacks: Vec<Samples> = wanted.iter().map(|_| Samples::default()).collect();
    let mut sample = Sample::default();
    for member in archive.entries().map_err(failed)? {
        let mut member = member.map_err(failed)?;
        if !member.header().entry_type().is_file() {
            continue;
        }
        let name = String::from_utf8_lossy(&member.path_bytes()).into_owned();
        let folder = name.rfind('/').map_or(0, |slash| slash + 1);
        let Some(dot) = name[folder..].find('.').map(|dot| folder + dot) else { continue };
        if sample.key != name[..dot] {
            std::mem::take(&mut sample).finish(path, wanted, &mut stacks)?;
            sample.key = name[..dot].to_owned();
        }
        let field = &name[dot + 1..];
        let Some(column) = column_of(field, wanted) else { continue };
        let place = format!("'{name}' in '{}'", path.display());
        let is_number = matches!(kind_of(field), "npy" | "cls");
        let value = if is_number || is_packed {
            let mut bytes = Vec::new();
            member.read_to_end(&mut bytes).map_err(failed)?;
            match is_number {
                true => Field::Number(number(field, &bytes, &place)?),
                false => Field::Image(EncodedImage::Held { place: place.clone(), bytes: bytes.into() }),
            }
        } else {
            let (offset, bytes) = (member.raw_file_position(), member.size());
            Field::Image(EncodedImage::Member { name: name.clone(), archive: Arc::clone(&archive_path), offset, bytes })
        };
        if sample.values.insert(column, (value, place.clone())).is_some() {
            let what = format!("{place} is the second value for '{}' in a sample", wanted[column].name);
            return Err(error(Code::INPUT, what).into());
        }
    }
    sample.finish(path, wanted, &mut stacks)?;
    let column = |(spec, samples): (&ColumnSpec, Samples)| {
        let values = match EncodedImages::new(spec, images, samples.images)? {
            Some(images) => Some(Values::Images(images)),
            None => samples.numbers.finish()?.map(Values::Numbers),
        };
        Ok(values.map(|values| (spec.name.clone(), values)))
    };
    wanted.iter().zip(stacks).filter_map(|pair| column(pair).transpose()).collect()
}

/// The value of a column in a sample.
enum Field {
    Number(Tensor),
    Image(EncodedImage),
}

/// The values of a column: numbers, or images.
#[derive(Default)]
struct Samples {
    numbers: Stack,
    images: Vec<EncodedImage>,
}

impl Samples {
    fn push(&mut self, value: Field, place: &str) -> Result<(), Diagnostics> {
        let (first, second) = match (&value, self.images.is_empty(), self.numbers.is_empty()) {
            (Field::Number(_), false, _) => ("an array", "images"),
            (Field::Image(_), _, false) => ("an image", "arrays"),
            _ => {
                match value {
                    Field::Number(value) => self.numbers.push(&value, place)?,
                    Field::Image(image) => self.images.push(image),
                }
                return Ok(());
            }
        };
        Err(error(Code::INPUT, format!("{place} is {first}, and the samples before are {second}")).into())
    }
}

/// The members of a sample, by the numbers of their columns.
#[derive(Default)]
struct Sample {
    key: String,
    values: BTreeMap<usize, (Field, String)>,
}

impl Sample {
    fn finish(mut self, path: &Path, wanted: &[ColumnSpec], stacks: &mut [Samples]) -> Result<(), Diagnostics> {
        if self.values.is_empty() {
            return Ok(());
        }
        for (number, (spec, stack)) in wanted.iter().zip(stacks).enumerate() {
            let Some((value, place)) = self.values.remove(&number) else {
                let what =
                    format!("the sample '{}' in '{}' has no field for '{}'", self.key, path.display(), spec.name);
                let hint = format!("a field is called {0}.npy, {0}.cls or {0}.jpg; 'cls' are the labels", spec.name);
                return Err(error(Code::INPUT, what).hint(hint).into());
            };
            stack.push(value, &place)?;
        }
        Ok(())
    }
}

/// The column that a field is for.
fn column_of(field: &str, wanted: &[ColumnSpec]) -> Option<usize> {
    let (name, kind) = field.rsplit_once('.').unwrap_or(("", field));
    let known = matches!(kind, "npy" | "cls")
        || images::is_image(Path::new(field))
        || images::is_image(&Path::new("x").with_extension(field));
    match name {
        "" if kind == "cls" => wanted.len().checked_sub(1),
        "" if known && wanted.len() == 2 => Some(0),
        _ => wanted.iter().position(|spec| known && spec.name == name),
    }
}

/// What a field holds: the end of its name.
fn kind_of(field: &str) -> &str {
    field.rsplit_once('.').map_or(field, |(_, kind)| kind)
}

/// The value of a field that is no image.
fn number(field: &str, bytes: &[u8], place: &str) -> Result<Tensor, Diagnostics> {
    let wrong = |what: String| Diagnostics::from(error(Code::INPUT, format!("{place}: {what}")));
    if kind_of(field) == "npy" {
        return npy::array(bytes).map_err(wrong);
    }
    let text = String::from_utf8_lossy(bytes);
    let class: i64 = text.trim().parse().map_err(|_| wrong(format!("'{}' is no class", text.trim().escape_debug())))?;
    Tensor::from_slice(&[], &[class]).map_err(|e| wrong(e.to_string()))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use of_ir::{DType, Dim, Type};

    use super::*;
    use crate::training::Dataset;

    fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, bytes) in members {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, name, *bytes).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn array(values: &[f32]) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.npy");
        npy::write(&path, &Tensor::from_slice(&[values.len()], values).unwrap()).unwrap();
        std::fs::read(path).unwrap()
    }

    fn column(name: &str, dtype: DType, rest: &[i64]) -> ColumnSpec {
        let dims = std::iter::once(Dim::symbol("n")).chain(rest.iter().map(|d| Dim::from(*d))).collect();
        ColumnSpec { name: name.into(), ty: Type::tensor(dtype, dims) }
    }

    fn read_files(files: &[(&str, Vec<u8>)], wanted: &[ColumnSpec]) -> Result<Dataset, Diagnostics> {
        let dir = tempfile::tempdir().unwrap();
        let files = files.iter().map(|(name, bytes)| {
            std::fs::write(dir.path().join(name), bytes).unwrap();
            OsString::from(dir.path().join(name))
        });
        let data = Dataset::read(&files.collect::<Vec<_>>(), wanted, &ImageOptions::default())?;
        assert_eq!(data.has_images(), wanted.len() == 2);
        data.decode_small()
    }

    const RED: &[u8] = b"P6\n1 1\n255\n\xff\x00\x00";

    #[test]
    fn images_and_classes_are_samples_of_several_files() {
        let wanted = [column("x", DType::F32, &[3, 1, 1]), column("y", DType::I64, &[])];
        let first =
            archive(&[("a/1.ppm", RED), ("a/1.cls", b"4\n"), ("a/1.json", b"{}"), ("a/2.cls", b"5"), ("a/2.ppm", RED)]);
        let second = archive(&[("b.c/3.ppm", RED), ("b.c/3.cls", b"6")]);
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut packed, &second).unwrap();
        let data = read_files(&[("1.tar", first), ("2.tar.gz", packed.finish().unwrap())], &wanted).unwrap();
        let batch = data.batch(&[0, 1, 2]).unwrap();
        assert_eq!(batch[0].as_tensor().unwrap().to_elements::<f32>().unwrap(), [1., 0., 0., 1., 0., 0., 1., 0., 0.]);
        assert_eq!(batch[1].as_tensor().unwrap().to_elements::<i64>().unwrap(), [4, 5, 6]);
    }

    #[test]
    fn arrays_are_named_as_inputs_and_damage_is_an_error() {
        let wanted = [column("q", DType::F32, &[2]), column("k", DType::F32, &[1]), column("y", DType::I64, &[])];
        let (q, k) = (array(&[1.0, 2.0]), array(&[3.0]));
        let good = [("s.q.npy", &q[..]), ("s.k.npy", &k[..]), ("s.y.cls", b"7")];
        let data = read_files(&[("a.tar", archive(&good))], &wanted).unwrap();
        assert_eq!(data.batch(&[0]).unwrap()[0].as_tensor().unwrap().to_elements::<f32>().unwrap(), [1.0, 2.0]);
        let error_of =
            |members: &[(&str, &[u8])]| read_files(&[("a.tar", archive(members))], &wanted).unwrap_err().to_string();
        for (members, words) in [
            (&good[..2], "the sample 's' in"),
            (&[good[0], good[0]][..], "is the second value for 'q'"),
            (&[good[0], good[1], ("s.y.cls", b"cat")][..], "'cat' is no class"),
            (&[("s.q.npy", &q[..20])][..], "s.q.npy"),
            (
                &[good[0], good[1], good[2], ("t.q.npy", &k[..]), ("t.k.npy", &k[..]), ("t.cls", b"1")][..],
                "the samples before are f32 [2]",
            ),
            (&[("nothing", &b"1"[..])][..], "the data has no samples: no values for 'q'"),
        ] {
            assert!(error_of(members).contains(words), "{words}: {}", error_of(members));
        }
        let mut cut = archive(&good);
        cut.truncate(700);
        assert!(read_files(&[("a.tar", cut)], &wanted).is_err());
    }
}
